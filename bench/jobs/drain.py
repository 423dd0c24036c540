"""One drain: a backlog that is there, and workers that were idle a moment before."""

from __future__ import annotations

from time import perf_counter

import msgspec

from bench.jobs.databases import Place
from bench.jobs.side import Side
from bench.jobs.workers import Workers
from bench.measure import Timing, apart

DRAIN_SECONDS_MAX = 600.0


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took to send a backlog, and to work it off."""

    filled: Timing
    drained: Timing
    total: int
    """Jobs that this database has seen, the rehearsal's and earlier ones included."""


def drain_fresh(place: Place, side: Side, *, workers: int, count: int) -> Drained:
    """A drain on a database of its own."""
    with place.fresh(side) as url:
        return drain(place, side, url, workers=workers, count=count)


def drain(
    place: Place, side: Side, url: str, *, workers: int, count: int, before: int = 0
) -> Drained:
    """A drain on a database that has seen so many jobs before, all of them finished."""
    with Workers(side, url, workers) as crew, side.looking(url) as looked:
        rehearsed = crew.rehearse(looked)
        crew.pause(lambda: place.quiet(url, side))
        filled = apart(side.fill, url, count)
        place.level(url)
        cpu_began, began = crew.cpu_seconds, perf_counter()
        crew.resume()
        crew.finish(rehearsed + count, looked, seconds_max=DRAIN_SECONDS_MAX)
        ended, cpu_ended = perf_counter(), crew.cpu_seconds
    total = before + rehearsed + count
    side.recorded(url, total)
    return Drained(
        filled=filled,
        drained=Timing(count=count, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began),
        total=total,
    )

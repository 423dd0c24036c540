"""One drain: a backlog that is there, and workers that were idle a moment before."""

from __future__ import annotations

from time import perf_counter

import msgspec

from bench.measure import Timing, apart
from bench.places import Place
from bench.side import Side
from bench.workers import REHEARSAL, Workers

DRAIN_SECONDS_MAX = 600.0


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took to send a backlog, and to work it off."""

    filled: Timing
    drained: Timing
    total: int
    """Pieces that this database has seen, the rehearsal's and earlier ones included."""


def drain_fresh(
    place: Place, side: Side, *, workers: int, count: int, rehearsal: int = REHEARSAL
) -> Drained:
    """A drain on a database of its own."""
    with place.fresh(side.prepare) as url:
        return drain(place, side, url, workers=workers, count=count, rehearsal=rehearsal)


def drain(
    place: Place,
    side: Side,
    url: str,
    *,
    workers: int,
    count: int,
    before: int = 0,
    rehearsal: int = REHEARSAL,
) -> Drained:
    """A drain on a database that has seen so many before, all of them finished."""
    executor = Workers(side, url, workers, rehearsal=rehearsal)
    with executor, side.looking(url) as looked:
        rehearsed = executor.rehearse(looked)
        executor.pause(lambda: side.reads_when_idle or place.quiet(url))
        filled = apart(side.fill, url, count)
        place.level(url)
        cpu_began, began = executor.cpu_seconds, perf_counter()
        executor.resume()
        executor.finish(rehearsed + count, looked, seconds_max=DRAIN_SECONDS_MAX)
        ended, cpu_ended = perf_counter(), executor.cpu_seconds
    total = before + rehearsed + count
    side.recorded(url, total)
    return Drained(
        filled=filled,
        drained=Timing(count=count, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began),
        total=total,
    )

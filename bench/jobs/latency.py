"""How soon an idle worker begins: from the call that sends a job to the job's first line.

All moments are read from the system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from random import Random
from time import sleep
from typing import Any

import msgspec

from bench.engine.wake import NS_IN_MS, Rests
from bench.jobs.side import Prompt
from bench.measure import settle_memory
from bench.places import Place
from bench.workers import LOOK_SECONDS, Workers

START_SECONDS_MAX = 30.0


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds until a job began, since it was handed in and since it was committed."""

    since_call: list[float]
    since_commit: list[float]


def latencies(place: Place, side: Prompt, rests: Rests) -> Latencies:
    """Send jobs to an idle worker of another process, at moments that follow no rhythm."""
    with (
        place.fresh(side.prepare) as url,
        Workers(side, url, 1, stamps=True) as crew,
        side.looking(url) as looked,
        side.sending(url) as send,
    ):
        crew.rehearse(looked)
        _empty(crew.pipes[0])
        settle_memory()
        # Seeded: each side rests for the same times. Spread: no phase of a poll is favoured.
        random = Random(rests.count)  # noqa: S311 - no secret
        found = Latencies(since_call=[], since_commit=[])
        for _ in range(rests.count):
            sleep(random.uniform(rests.seconds_min, rests.seconds_max))
            called, committed = send()
            began = _arrived(crew)
            found.since_call.append((began - called) / NS_IN_MS)
            found.since_commit.append((began - committed) / NS_IN_MS)
            while looked():
                crew.check()
                sleep(LOOK_SECONDS)
    return found


def _empty(pipe: Connection[Any, Any]) -> None:
    while pipe.poll():
        pipe.recv()


def _arrived(crew: Workers) -> int:
    if not crew.pipes[0].poll(START_SECONDS_MAX):
        crew.check()
        message = f"a job was not begun within {START_SECONDS_MAX} s"
        raise TimeoutError(message)
    return int(crew.pipes[0].recv())

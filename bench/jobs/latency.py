"""How soon an idle worker begins: from the call that sends a job to the job's first line.

All moments are read from the system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from random import Random
from time import sleep
from typing import Any

import msgspec

from bench.engine.wake import NS_IN_MS, Rests
from bench.jobs.side import Prompt, Sent
from bench.measure import settle_memory
from bench.places import Place
from bench.side import Looked
from bench.workers import LOOK_SECONDS, Workers

START_SECONDS_MAX = 30.0


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds until a job began, since it was handed in and since it was committed."""

    since_call: list[float]
    since_commit: list[float]


def latencies(place: Place, sides: Sequence[Prompt], rests: Rests) -> dict[str, Latencies]:
    """Send jobs to idle workers of other processes, at moments that follow no rhythm.

    The sides take turns, job by job: what else happens on the machine happens to all of them.
    """
    # Seeded: it is the same every time. Spread: no phase of a poll is favoured.
    random = Random(rests.count)  # noqa: S311 - no secret
    with ExitStack() as opened:
        desks = [opened.enter_context(_desk(place, side)) for side in sides]
        settle_memory()
        for _ in range(rests.count):
            rest = random.uniform(rests.seconds_min, rests.seconds_max)
            for desk in random.sample(desks, len(desks)):
                sleep(rest)
                desk()
        return {side.name: desk.found for side, desk in zip(sides, desks, strict=True)}


class _JobChecker:
    """Where the jobs of one side are sent, and how soon they began."""

    def __init__(self, executor: Workers, looked: Looked, send: Callable[[], Sent]) -> None:
        self.found = Latencies(since_call=[], since_commit=[])
        self._executor = executor
        self._looked = looked
        self._send = send

    def __call__(self) -> None:
        """One job, from beginning to end."""
        called, committed = self._send()
        began = _arrived(self._executor)
        self.found.since_call.append((began - called) / NS_IN_MS)
        self.found.since_commit.append((began - committed) / NS_IN_MS)
        while self._looked():
            self._executor.check()
            sleep(LOOK_SECONDS)


@contextmanager
def _desk(place: Place, side: Prompt) -> Iterator[_JobChecker]:
    with (
        place.fresh(side.prepare) as url,
        Workers(side, url, 1, stamps=True) as executor,
        side.looking(url) as looked,
        side.sending(url) as send,
    ):
        executor.rehearse(looked)
        _empty(executor.pipes[0])
        yield _JobChecker(executor, looked, send)


def _empty(pipe: Connection[Any, Any]) -> None:
    while pipe.poll():
        pipe.recv()


def _arrived(executor: Workers) -> int:
    if not executor.pipes[0].poll(START_SECONDS_MAX):
        executor.check()
        message = f"a job was not begun within {START_SECONDS_MAX} s"
        raise TimeoutError(message)
    return int(executor.pipes[0].recv())

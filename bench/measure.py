"""Measuring on a machine that is not quiet: clean processes, pairs side by side, medians."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")

END_SECONDS_MAX = 30.0
US_IN_SECOND = 1e6


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Several measurements of one thing."""

    median: float
    least: float
    most: float
    p99: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        ordered = sorted(values)
        return cls(
            median=statistics.median(ordered),
            least=ordered[0],
            most=ordered[-1],
            p99=ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))],
            count=len(ordered),
        )


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long so many took, by the wall and by the processor of their process."""

    count: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def ratios(ours: Sequence[Timing], theirs: Sequence[Timing]) -> list[float]:
    """Of the rates, pair by pair."""
    return [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]


def cpu_us(taken: Sequence[Timing]) -> float:
    """Microseconds of the processor for each piece, in the middle run."""
    return statistics.median(t.cpu_seconds / t.count for t in taken) * US_IN_SECOND


def settle_memory() -> None:
    """Collect what is garbage, and let later collections pass over what is not."""
    gc.collect()
    gc.freeze()


def apart(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`function(…)` in a fresh process, so that one side's memory does not slow the other."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments, named))
    process.start()
    theirs.close()
    try:
        answer: T = ours.recv()
    except EOFError:
        process.join(END_SECONDS_MAX)
        message = f"{function} failed in its process; the traceback is above"
        raise RuntimeError(message) from None
    process.join(END_SECONDS_MAX)
    return answer


def _answer(
    pipe: Connection[Any, Any],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    pipe.send(function(*arguments, **named))
    pipe.close()

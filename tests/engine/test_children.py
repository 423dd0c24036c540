"""A child process for handlers: killed, dead while idle, and told to end by somebody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from ledgerstone.engine.executors.processes import Child
from ledgerstone.errors import BadInput, HandlerCrashed
from ledgerstone.testing.waiting import until
from tests.harness import children

pytestmark = pytest.mark.slow
KILLS = 5


@pytest.fixture
def child() -> Iterator[Child]:
    """A child that is ended with the test."""
    made = Child()
    yield made
    made.stop()


def test_one_that_was_killed_is_not_asked_again(child: Child) -> None:
    """After a kill the next call has another process, also at the moment of the kill."""
    pids = []
    for _ in range(KILLS):
        pids.append(child.call(children.pid_of_call, None))
        child.kill()

    assert len(set(pids)) == KILLS


def test_one_that_died_while_idle(child: Child) -> None:
    """A child that dies between two calls takes no call with it."""
    first = child.call(children.pid_of_call, None)
    process = child._process
    assert process is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: not process.is_alive(), what="its death")

    assert child.call(children.pid_of_call, None) != first


@pytest.mark.parametrize(("ends", "words"), [(-signal.SIGKILL, "by SIGKILL"), (7, "exit code 7")])
def test_how_it_died(child: Child, ends: int, words: str) -> None:
    """The error says by which signal, or with which exit code."""
    with pytest.raises(HandlerCrashed, match=f"died \\({words}\\)"):
        child.call(children.ends_with, ends)

    assert child.call(children.pid_of_call, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_the_whole_group(child: Child, number: signal.Signals) -> None:
    """A signal that ends the worker leaves its children at work: the worker waits for them."""
    before = child.call(children.pid_of_call, None)

    assert child.call(children.survives, int(number)) == before


def test_what_cannot_be_imported(child: Child) -> None:
    """A function that another process cannot find is refused before one is started."""
    with pytest.raises(BadInput, match="cannot be imported"):
        child.call(lambda _: None, None)

    assert child._process is None

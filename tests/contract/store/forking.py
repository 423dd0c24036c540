"""The forking contract: a process that forks keeps its connections to itself."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial

import pytest

from ledgerstone import errors
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.harness.forks import PipedFork
from tests.harness.ledgers import opened

CHILDREN = 3
TURNS_MANY = 25


class ForkContract:
    """What holds for a ledger that was used before its process forked. Fixtures: `home`."""

    def test_all_go_on(self, home: Home, ledger: Ledger) -> None:
        """Parent and children write and read at once, each through connections of its own."""
        _carried_out(_serve_with_children, home.url)

        assert _types(ledger) == ["before", *["served"] * TURNS_MANY * (CHILDREN + 1)]

    def test_a_child_closes_its_own(self, home: Home, ledger: Ledger) -> None:
        """A child that closes the ledger leaves the parent's connections open."""
        _carried_out(_go_on_after_children, home.url)

        assert _types(ledger) == ["after", "before"]

    def test_forked_while_others_were_busy(self, home: Home, ledger: Ledger) -> None:
        """What other threads of the parent held at that moment holds up no child."""
        _carried_out(_fork_while_all_is_locked, home.url)

        assert _types(ledger) == ["child"]

    def test_forked_inside_a_transaction(self, home: Home, ledger: Ledger) -> None:
        """The parent's transaction stays its own; a child uses a file that was in use no more."""
        _carried_out(_fork_inside, home.url)

        of_child = [] if ledger.database.dialect.one_writer else ["child"]
        assert _types(ledger) == [*of_child, "held"]


def _carried_out(function: Callable[[str], None], url: str) -> None:
    """The function, in a process that has no other threads."""
    process = PipedFork(function, url, environment=os.environ)
    try:
        code = process.wait(WAIT_SECONDS_MAX)
        complaints = process.stderr.read()
    finally:
        process.kill()
        process.close()
    assert code == 0, complaints


def _serve_with_children(url: str) -> None:
    with opened(url) as ledger:
        ledger.run(lambda tx: tx.jobs.enqueue("before"))
        children = [_forked(partial(_serve, ledger)) for _ in range(CHILDREN)]
        _serve(ledger)
        _expect(children)


def _serve(ledger: Ledger) -> None:
    for _ in range(TURNS_MANY):
        enqueued = ledger.run(lambda tx: tx.jobs.enqueue("served"))
        with ledger.reading() as tx:
            assert tx.jobs.get(enqueued.id).type == "served"


def _go_on_after_children(url: str) -> None:
    def close() -> None:
        ledger.close()
        gc.collect()

    with opened(url) as ledger:
        ledger.run(lambda tx: tx.jobs.enqueue("before"))
        _expect([_forked(close)])
        ledger.run(lambda tx: tx.jobs.enqueue("after"))


def _fork_while_all_is_locked(url: str) -> None:
    with opened(url) as ledger:
        database = ledger.database
        locks = (database._lock, database.wake_signals._lock, database.measure._lock)
        with locks[0], locks[1], locks[2]:
            _expect([_forked(lambda: ledger.run(_enqueue_one))])


def _enqueue_one(tx: Transaction) -> None:
    tx.jobs.enqueue("child")


def _fork_inside(url: str) -> None:
    def write() -> None:
        if ledger.database.dialect.one_writer:
            with pytest.raises(errors.NotAllowedNow, match="was in use when this process was fork"):
                ledger.run(_enqueue_one)
        else:
            ledger.run(_enqueue_one)

    with opened(url) as ledger, ledger.transaction() as tx:
        tx.jobs.enqueue("held")
        _expect([_forked(write)])


def _forked(work: Callable[[], None]) -> int:
    """The id of a child that does this and ends."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - its exit code and its words say so
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _expect(children: list[int]) -> None:
    """They end, and well."""
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert not any(codes), codes


def _types(ledger: Ledger) -> list[str]:
    with ledger.reading() as tx:
        return sorted(job.type for job in tx.jobs.find(limit=1000).rows)

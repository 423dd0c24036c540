"""Chores to do, and who does them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import ExecutorKind, Handler
from ledgerstone.ledger import Ledger
from ledgerstone.store.clock import Clock
from tests.chores import Chore, Chores, ChoreSource, NewChore, Status, install
from tests.harness import ledgers
from tests.harness.forks import preload
from tests.harness.processes import WorkerProcess

WORK = "tests.chores.work"

preload(WORK)


def chores(
    call: Callable[..., Any],
    *,
    where: ExecutorKind = ExecutorKind.THREAD,
    atomic: bool = False,
    backoff: Backoff | None = None,
) -> ChoreSource:
    """Chores done by this handler."""
    return ChoreSource(Handler(call, where=where, atomic=atomic), backoff=backoff)


def enqueue(ledger: Ledger, count: int, *, attempts: int = 5) -> list[str]:
    """So many chores, numbered from 0; their ids in that order."""
    new = [NewChore(body=number, max_attempts=attempts) for number in range(count)]
    with ledger.transaction() as tx:
        return [enqueued.id for enqueued in Chores(tx).enqueue_many(new)]


def counts(ledger: Ledger) -> dict[Status, int]:
    """How many stand where."""
    with ledger.reading() as tx:
        return Chores(tx).counts()


def standing(ledger: Ledger, key: str) -> Chore:
    """A chore as it stands."""
    with ledger.reading() as tx:
        return Chores(tx).get(key)


def opened(url: str, *, clock: Clock | None = None, **settings: Any) -> Ledger:
    """A ledger with settings and a clock of its own, migrated, with chores."""
    ledger = ledgers.opened(url, clock=clock, **settings)
    try:
        install(ledger.database)
    except BaseException:
        ledger.close()
        raise
    return ledger


def worker_process(
    url: str,
    *,
    handler: str = "tests.chores.work:nothing",
    settings: Mapping[str, object] | None = None,
    failpoint: str | None = None,
    arguments: tuple[str, ...] = (),
) -> WorkerProcess:
    """A process that does chores by the handler of this name."""
    words = ("--handler", handler, *arguments)
    return WorkerProcess(url, WORK, settings=settings, failpoint=failpoint, arguments=words)

"""Whether jobs are as they should be, for `doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ledgerstone.engine.source import Ask, Outcome, OutcomeKind
from ledgerstone.ids import new_id
from ledgerstone.jobs.handlers.kinds import Kinds
from ledgerstone.jobs.jobs import Jobs
from ledgerstone.jobs.read.status import jobs_of
from ledgerstone.jobs.source import JobSource
from ledgerstone.room import Check, CheckStatus, Opened, counted
from ledgerstone.store.schema import revisions

ROUND_TRIP = "ledgerstone.doctor"
"""The type of the job with which the way from enqueue to settlement is tried."""
TYPES_NAMED_MAX = 5


class _Undo(Exception):
    """Rolls the transaction back."""


def round_trip(opened: Opened[Any]) -> Iterator[Check]:
    """Accept, claim and settle a job, in a transaction that leaves nothing behind."""
    database = opened.database
    with database.reading() as tx:
        if not revisions.look(tx.connection, database.namespace, database.rooms).up_to_date:
            return
    kinds = Kinds()
    kinds.add(ROUND_TRIP, lambda: None, queue=f"{ROUND_TRIP}-{new_id()}")
    queue = kinds.all()[ROUND_TRIP].queue
    source = JobSource(queue, kinds, database, crashes_max=opened.settings.engine.crashes_max)
    began = time.perf_counter()
    refused = list[Outcome]()
    with suppress(_Undo), database.transaction() as tx:
        Jobs(tx, kinds).enqueue(ROUND_TRIP, queue=queue)
        claims = source.claim(tx, Ask(1, "doctor", 1.0))
        done = [Outcome(claim, OutcomeKind.DONE) for claim in claims]
        refused += source.settle(tx, done).lost
        raise _Undo
    took = (time.perf_counter() - began) * 1000
    if claims and not refused:
        found = f"accept, claim, settle in {took:.1f} ms, undone"
        yield Check("round trip", CheckStatus.OK, found)
    else:
        found = "what was accepted could not be claimed and settled"
        yield Check("round trip", CheckStatus.PROBLEM, found)


def jobs(opened: Opened[Any]) -> Iterator[Check]:
    """Dead letters, and jobs of types that nobody runs."""
    database = opened.database
    with database.reading() as tx:
        if not revisions.look(tx.connection, database.namespace, database.rooms).up_to_date:
            return
        found = jobs_of(tx)
    if found.dead_letters:
        dead = counted(found.dead_letters, found.counted_max)
        todo = "`ledgerstone jobs list --status dead_letter` shows why; then `jobs retry --all`"
        yield Check("dead letters", CheckStatus.WARNING, dead, todo)
    else:
        yield Check("dead letters", CheckStatus.OK, "none")
    if found.unserved:
        named = [f"{each.type} ({each.queue})" for each in found.unserved[:TYPES_NAMED_MAX]]
        rest = len(found.unserved) - len(named)
        words = ", ".join([*named, *([f"and {rest} more"] if rest else [])])
        todo = "start `ledgerstone work -A MODULE:LEDGER` with the code that has them"
        yield Check("types", CheckStatus.WARNING, f"queued, and run by no worker: {words}", todo)
    else:
        yield Check("types", CheckStatus.OK, "each type that is queued is run by a worker")

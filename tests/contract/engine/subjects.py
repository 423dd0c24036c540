"""The sources of Ledgerstone as subjects of the source contract."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from sqlalchemy import insert, select

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Claim, Outcome, OutcomeKind, Source
from ledgerstone.ids import new_id
from ledgerstone.jobs import NewJob
from ledgerstone.jobs.states import Status as JobStatus
from ledgerstone.jobs.tables import MAX_ATTEMPTS as JOB_ATTEMPTS_MAX
from ledgerstone.jobs.tables import job, job_event, job_key
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging.outbox.publishing import lane_id
from ledgerstone.messaging.relay.ordered import OrderedRelay
from ledgerstone.messaging.relay.sending import LaneClaim
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.tables import event, lane
from ledgerstone.store.schema.tables import history_permit, worker
from ledgerstone.testing.contracts.source_subject import plain_outcome
from tests.contract.messaging.destination import NAME, REFUSED, UNDELIVERABLE, Shop

LANE_ATTEMPTS_MAX = 4
TABLES_OF_MESSAGES = (
    "messenger_outbox",
    "messenger_messages",
    "outbox_lane",
    "outbox_pause",
    "outbox_key",
    "message_event",
    "leases",
    "worker",
    "history_permit",
)

_JOB_STATES = {
    JobStatus.QUEUED: "due",
    JobStatus.RUNNING: "held",
    JobStatus.SUCCEEDED: "done",
    JobStatus.DEAD_LETTER: "dead",
    JobStatus.CANCELED: "canceled",
}


class JobSubject:
    """The jobs of a queue."""

    attempts_max = JOB_ATTEMPTS_MAX
    verdicts = frozenset(OutcomeKind)
    unanswered: frozenset[OutcomeKind] = frozenset()
    outcome = staticmethod(plain_outcome)

    def __init__(self, ledger: Ledger) -> None:
        self._backoff = Backoff(jitter=0)
        ledger.kinds.add("subject", _nothing, backoff=self._backoff)
        self.source = ledger.job_source()

    def retry_seconds(self, failures: int) -> float:
        return self._backoff.after(failures)

    def clear(self, tx: Transaction) -> None:
        clear_jobs(tx)

    def add(self, tx: Transaction, count: int) -> list[str]:
        added = tx.jobs.enqueue_many([NewJob(type="subject") for _ in range(count)])
        return [enqueued.id for enqueued in added]

    def state(self, tx: Transaction, key: str) -> str:
        return _JOB_STATES[tx.jobs.get(key).status]

    def attempt(self, tx: Transaction, key: str) -> int:
        return tx.jobs.get(key).attempt

    def refusals(self, tx: Transaction, key: str) -> int:
        events = tx.jobs.events(key).rows
        return sum(event.prev_status == event.next_status for event in events)

    def moves(self, tx: Transaction, key: str) -> list[tuple[str | None, str]]:
        return [
            (event.prev_status, event.next_status)
            for event in tx.jobs.events(key).rows
            if event.prev_status != event.next_status
        ]


class LaneSubject:
    """The lanes of a destination, each with one message, each claimed by itself.

    A lane that was given up is parked. How a claim comes out is what the destination answers to its
    message before the claim is settled; the verdict itself only says that it was not asked.
    """

    attempts_max = LANE_ATTEMPTS_MAX
    verdicts = frozenset(
        {OutcomeKind.DONE, OutcomeKind.FAILED, OutcomeKind.DEAD, OutcomeKind.RETURNED}
    )
    unanswered = frozenset({OutcomeKind.RETURNED})

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        relay = shop.source()
        assert isinstance(relay, OrderedRelay)
        self.relay = relay
        self._numbers = itertools.count()
        self._partitions: dict[str, str] = {}

    @property
    def source(self) -> Source:
        return self.relay

    def clear(self, tx: Transaction) -> None:
        clear_messages(tx)

    def add(self, tx: Transaction, count: int) -> list[str]:
        partitions = [f"p{next(self._numbers)}" for _ in range(count)]
        keys = [lane_id(self._shop.destination, partition) for partition in partitions]
        for key, partition in zip(keys, partitions, strict=True):
            tx.outbox.publish(NAME, partition, partition=partition)
            self._partitions[key] = partition
        return keys

    def state(self, tx: Transaction, key: str) -> str:
        row = tx.execute(select(lane).where(lane.c.id == key)).mappings().one()
        if row["lease_until_ms"] is not None:
            stands = "held"
        elif row["state"] == LaneState.PARKED.value:
            stands = "dead"
        else:
            stands = "due" if row["due_at_ms"] is not None else "done"
        # What is marked as delivered is what its lane says is done, and nothing else.
        outbox = self._shop.ledger.registry.shared.outbox
        waits = select(outbox.c.id).where(
            outbox.c.partition_key == self._partitions[key], outbox.c.delivered_at.is_(None)
        )
        is_marked = tx.execute(waits).first() is None
        return stands if is_marked == (stands == "done") else f"{stands}, and marked: {is_marked}"

    def attempt(self, tx: Transaction, key: str) -> int:
        found = tx.execute(select(lane.c.attempts).where(lane.c.id == key))
        return int(found.scalar_one())

    def refusals(self, tx: Transaction, key: str) -> int:
        found = tx.execute(
            select(event.c.id).where(
                event.c.what == RecordKind.REFUSED.value,
                event.c.partition_key == self._partitions[key],
            )
        )
        return len(found.all())

    def outcome(self, taken: Claim, verdict: OutcomeKind, delay: float | None = None) -> Outcome:
        again = _as_claimed(taken)
        if verdict is OutcomeKind.RETURNED:
            return plain_outcome(again, verdict, delay)
        answer = {OutcomeKind.FAILED: REFUSED, OutcomeKind.DEAD: UNDELIVERABLE}.get(verdict)
        body = self._partitions[taken.key]
        if answer is not None:
            self._shop.shelf.tell(body, answer)
        self.relay.handler(again).call(again)
        self._shop.shelf.forgive(body)
        return Outcome(again, OutcomeKind.DONE if answer is None else verdict)


def clear_jobs(tx: Transaction) -> None:
    """Remove every job, and what workers have reported."""
    tx.execute(insert(history_permit).values(id=new_id()))
    for table in (job_event, job_key, job, worker, history_permit):
        tx.execute(table.delete())


def clear_messages(tx: Transaction) -> None:
    """The same with messages."""
    tx.execute(insert(history_permit).values(id=new_id()))
    for table in TABLES_OF_MESSAGES:
        tx.connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 - our own


def _as_claimed(taken: Claim) -> LaneClaim:
    """The claim as if its handler had not run: what was noted of its lane is forgotten."""
    assert isinstance(taken, LaneClaim)
    fresh = msgspec.structs.replace(taken.lane, confirmed=0, answer=None, counted=False)
    return msgspec.structs.replace(taken, carried=fresh)


def _nothing() -> Any:
    """The job that does nothing."""

"""The competing relay: sends the messages of one destination in any order.

A batch of rows is locked, sent and marked in one transaction. Other relays skip locked rows, and
the rows of a relay that dies are unlocked with its connection. So rows need no lease. The database
ends a transaction that stays idle for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, case, column, select, update

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Ask, Claim, Failure, Handler, NotSettled, Outcome, Settled
from ledgerstone.errors import TargetDown
from ledgerstone.failpoints import hit
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.transport import Answer, SendResult, Transport
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.failed.rows import Raw
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.publishing import channel_of
from ledgerstone.messaging.relay.delivery_marks import (
    DeliveryMarks,
    Malformed,
    RelayCounters,
    is_given_up,
    is_paused,
    place_of,
    read_row,
    refusal_pause,
)
from ledgerstone.messaging.relay.memory_budget import Budget, Share
from ledgerstone.messaging.states import RecordKind
from ledgerstone.messaging.symfony import envelope
from ledgerstone.messaging.symfony.time_zone import kept, moment_in
from ledgerstone.messaging.tables import ready_index
from ledgerstone.settings import DestinationSettings
from ledgerstone.settings.messaging import BACKOFF_MULTIPLIER
from ledgerstone.store.sql.batch import UpdateEach, WithRows
from ledgerstone.store.sql.expressions import beyond, by_index, byte_length, now_ms
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

BEGINNING: tuple[Any, int] = (datetime(1970, 1, 1), 0)  # noqa: DTZ001 - as the column keeps it
BATCHES_BEFORE_BEGINNING = 10
"""A relay starts again at the oldest row after this many batches."""
BATCHES_MAX = 3
"""Concurrent batches of one relay: the next batch is read while one is being sent."""


class CompetingRelay:
    """The source of work for one destination in the mode `competing`.

    - A claim is a call that takes a batch. The call selects its rows when it runs.
    - An unreachable destination does not count as an attempt of a message.
    - A refused message is sent again after a pause, and other messages overtake it. A message that
      cannot be delivered is moved to the failed table with its reason. If only its target is
      missing, it is sent again, unless the policy is `skip`.
    """

    def __init__(
        self,
        queue: str,
        destination: DestinationSettings,
        transport: Transport,
        registry: MessagingRegistry,
        *,
        database: Database[Any],
        origin: Callable[[], str],
    ) -> None:
        self.name = channel_of(queue)
        self.channel = channel_of(queue)
        self.queue = queue
        self.counters = RelayCounters()
        self.transport = transport
        self._destination = destination
        self._registry = registry
        self._database = database
        self._origin = origin
        self._marks = DeliveryMarks(registry)
        self._statements = _Statements(registry)
        self._backoff = Backoff(
            seconds=destination.backoff_seconds,
            multiplier=BACKOFF_MULTIPLIER,
            seconds_max=destination.backoff_seconds_max,
        )
        self._lock = Lock()
        self._calls = 0
        self._place: tuple[Any, int] = BEGINNING
        self._batches = 0
        self.budget = Budget(destination.in_flight_bytes_max)

    @property
    def duties(self) -> list[Duty]:
        return []

    def close(self) -> None:
        """Closes connections and threads. A later send opens new ones."""
        self.transport.close()

    def handler(self, claim: Claim) -> Handler:
        return Handler(self._carry)

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        free = min(ask.limit, BATCHES_MAX - self._calls)
        if free <= 0 or self.queue in ask.avoid:
            return ()
        self._registry.setup.ensure(tx, self._registry.shared.outbox)
        if is_paused(tx, self.queue) or self._statements.any.one(tx, queue=self.queue) is None:
            return ()
        return [Claim(new_id(), 1, 0, target=self.queue) for _ in range(free)]

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]:
        return NotSettled()

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]:
        return NotSettled()

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        return 0

    def _carry(self, claim: Claim) -> Settled:
        with self._lock:
            self._calls += 1
        try:
            more = self._carry_batch()
        finally:
            with self._lock:
                self._calls -= 1
        if more:
            self._database.wake_signals.notify({self.channel})
        return Settled()

    def _carry_batch(self) -> bool:
        """Takes a batch, sends it, and marks confirmed rows; returns whether more may wait."""
        with self._database.transaction() as tx:
            rows, share, more = self._take(tx)
            readable, malformed = self._read(rows)
            answers = self._send(readable) if readable else []
            pairs = list(zip(readable, answers, strict=True))
            delivered = [place_of(m) for m, a in pairs if a.result is SendResult.DELIVERED]
            self._marks.delivered(tx, delivered)
            self._refuse(tx, pairs, {row[0]: row[2] for row in rows})
            self._put_aside(tx, malformed)
            hit("relay.marked")
        share.shrink(0)
        self.counters.delivered += len(delivered)
        if pairs and all(answer.result is SendResult.UNKNOWN for answer in answers):
            raise TargetDown(self.queue, f"{self.queue}: {answers[0].reason or 'no answer came'}")
        return more

    def _take(self, tx: Transaction) -> tuple[list[Row], Share, bool]:
        """Locks the next rows after those of the last batch, as many as fit into the memory budget.

        Continues at the oldest row when it reaches the end. Also returns whether more may wait.
        """
        limit = self._destination.batch_max
        self._batches += 1
        if self._batches % BATCHES_BEFORE_BEGINNING == 0:
            # A transaction that committed late may have added rows before the current position.
            self._place = BEGINNING
        rows = self._next(tx, self._place, limit)
        if len(rows) < limit and self._place != BEGINNING:
            rows += self._next(tx, BEGINNING, limit - len(rows))
            # A transaction does not skip rows that it locked itself.
            rows = list({row[0]: row for row in rows}.values())
        fitting, taken = _fitting(rows, self.budget)
        more = len(rows) == limit or len(fitting) < len(rows)
        self._place = (fitting[-1][5], fitting[-1][0]) if more and fitting else BEGINNING
        share = self.budget.share(taken)
        return self._statements.complete(tx, fitting), share, more and bool(fitting)

    def _next(self, tx: Transaction, place: tuple[Any, int], limit: int) -> list[Row]:
        return self._statements.take.rows(
            tx,
            queue=self.queue,
            at=place[0],
            place=place[1],
            limit_=limit,
            small=self.budget.left // limit,
        )

    def _read(self, rows: Sequence[Row]) -> tuple[list[Message], list[Malformed]]:
        origin = f"{self._origin()}:{self._registry.shared.outbox.name}"
        readable: list[Message] = []
        malformed: list[Malformed] = []
        for place, body, headers, partition, created_at, *_ in rows:
            published_at = moment_in(self._registry.shared.outbox, created_at)
            message = read_row(place, body, headers, partition, published_at, origin=origin)
            if isinstance(message, Malformed):
                malformed.append(message)
            else:
                readable.append(message)
        return readable, malformed

    def _send(self, messages: Sequence[Message]) -> list[Answer]:
        hit("relay.sending")
        answers = self.transport.send(messages, seconds_max=self._destination.send_seconds_max)
        hit("relay.sent")
        return answers

    def _refuse(
        self,
        tx: Transaction,
        pairs: Sequence[tuple[Message, Answer]],
        headers: Mapping[int, str],
    ) -> None:
        """Refused messages: sends them again after a pause, or moves them to the failed table."""
        later: list[Row] = []
        for message, answer in pairs:
            if answer.result in {SendResult.DELIVERED, SendResult.UNKNOWN}:
                continue
            attempts = message.attempt + answer.counts
            self.counters.refused += 1
            if is_given_up(answer, self._destination, attempts, parks=False):
                self._fail(tx, message, place_of(message), answer, attempts)
                continue
            handling = self._destination.url == "local:"
            pause = refusal_pause(answer, self._backoff, attempts, exact=handling)
            place = place_of(message)
            # The column has whole seconds: round up, so that the row is not sent early.
            pause_ms = round(pause * 1000) + 999
            later.append((place, envelope.with_attempt(headers[place], attempts), pause_ms))
        if later:
            self._statements.later.apply(tx, sorted(later))

    def _put_aside(self, tx: Transaction, malformed: Sequence[Malformed]) -> None:
        for each in malformed:
            answer = Answer(SendResult.UNDELIVERABLE, "malformed", each.reason)
            self._fail(tx, each.raw, each.place, answer, 1)

    def _fail(
        self, tx: Transaction, item: Message | Raw, place: int, answer: Answer, attempts: int
    ) -> None:
        self.counters.parked += 1
        failed.put(
            tx,
            self._registry,
            item,
            consumer=None,
            failure=Failure(answer.code, answer.reason),
            attempts=attempts,
            origin=self.queue,
            what=RecordKind.PARKED,
        )
        self._marks.removed(tx, [place])


class _Statements:
    """The statements of a competing relay for an outbox."""

    def __init__(self, registry: MessagingRegistry) -> None:
        outbox = registry.shared.outbox
        waiting = (
            (outbox.c.queue_name == bindparam("queue", type_=outbox.c.queue_name.type))
            & outbox.c.delivered_at.is_(None)
            & (outbox.c.available_at <= kept(outbox, now_ms()))
        )
        place = (
            bindparam("at", type_=outbox.c.available_at.type),
            bindparam("place", type_=BigInteger()),
        )
        size = byte_length(outbox.c.body) + byte_length(outbox.c.headers)
        small = size <= bindparam("small", type_=BigInteger())
        # The order of the partial index of undelivered rows; delayed rows come last.
        order = (outbox.c.available_at, outbox.c.id)
        self.any = Statement(
            "relay.any",
            by_index(
                select(outbox.c.id).where(waiting).order_by(*order).limit(1),
                outbox,
                ready_index(outbox),
            ),
        )
        self.take = Statement(
            "relay.take",
            by_index(
                select(
                    outbox.c.id,
                    case((small, outbox.c.body)).label("body"),
                    case((small, outbox.c.headers)).label("headers"),
                    outbox.c.partition_key,
                    outbox.c.created_at,
                    outbox.c.available_at,
                    size.label("size"),
                )
                .where(waiting, beyond(order, place))
                .order_by(*order)
                .limit(bindparam("limit_", type_=BigInteger()))
                .with_for_update(skip_locked=True),
                outbox,
                ready_index(outbox),
            ),
        )
        self._whole = WithRows(
            "relay.whole",
            incoming=(column("place", BigInteger()),),
            build=lambda row: select(outbox.c.id, outbox.c.body, outbox.c.headers).where(
                outbox.c.id.in_(select(row.place))
            ),
        )
        self.later = UpdateEach(
            "relay.later",
            key=outbox.c.id,
            incoming=(outbox.c.id, outbox.c.headers, column("pause_ms", BigInteger())),
            build=lambda row: (
                update(outbox)
                .where(outbox.c.id == row.id)
                .values(headers=row.headers, available_at=kept(outbox, now_ms() + row.pause_ms))
            ),
        )

    def complete(self, tx: Transaction, rows: Sequence[Row]) -> list[Row]:
        """Reads the text of rows that were too large to be selected with it."""
        wanted = sorted((row[0],) for row in rows if row[2] is None)
        if not wanted:
            return list(rows)
        texts = {row[0]: row[1:] for row in self._whole.rows(tx, wanted)}
        return [(row[0], *texts[row[0]], *row[3:]) if row[2] is None else row for row in rows]


def _fitting(rows: Sequence[Row], budget: Budget) -> tuple[list[Row], int]:
    """The first rows that fit into the memory budget, and their size in bytes."""
    taken = 0
    for i, row in enumerate(rows):
        if not budget.fits(taken, row[6]):
            return list(rows[:i]), taken
        taken += row[6]
    return list(rows), taken

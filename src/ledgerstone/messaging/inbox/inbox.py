"""The inbox: each consumer handles a message once, however many times it is delivered.

    begin ─▶ receipt ─▶ handler, its writes, its own messages ─▶ finished ─▶ commit ─▶ acknowledged
               │
               └─ exists: finished, a duplicate; unfinished, the message goes to the failed table

The receipt is inserted first, without a SELECT before. Of two deliveries at the same time, the
second waits at the unique index until the first commits. A handler that fails rolls back the
receipt with all other writes.

A handler can commit in the middle: many statements of MySQL commit implicitly. Then the receipt
remains although the handler fails or its process dies. So a receipt is unfinished until the handler
has returned, and an unfinished receipt does not prove that the message was handled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    LargeBinary,
    MetaData,
    Select,
    Table,
    TypeDecorator,
    bindparam,
    delete,
    func,
    select,
    update,
)

from ledgerstone import errors, log_context
from ledgerstone.engine.attempt_log import FailedAttempt
from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.outcomes import MESSAGE_CHARS_MAX, failure_of
from ledgerstone.engine.source import Failure
from ledgerstone.failpoints import hit
from ledgerstone.messaging.inbox.consumers import Consumer
from ledgerstone.messaging.message import NAME_CHARS_MAX, Message
from ledgerstone.settings import MessagingSettings
from ledgerstone.store.sql.expressions import hexadecimal, now_ms, second
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.sql.timestamps import moment_of

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

CLEANUP_MAX = 1000
"""Receipts that one transaction removes, plus those of the same second."""
COUNTED_MAX = 250_000
"""The count of receipts stops here, so that its cost is bounded."""
DAYS_MAX = 36_500
PAUSE_SECONDS_MAX = 86_400.0
EVERY_SECONDS = 60.0
UNFINISHED = "unfinished: "
"""The prefix of the name in a receipt whose handler has not returned."""
TRANSACTION_ENDED = "transaction_ended"
"""The code of a message whose handler ended its transaction and did not finish."""
DAY_MS = 86_400_000

_log = logging.getLogger("ledgerstone.messaging")

# Outages and conflicts: they do not count as a failure of the message.
_AGAIN = (errors.StoreUnavailable, errors.StoreBusy, errors.StoreFull, errors.TargetDown)
# Reasons of the engine to stop a handler: the engine handles them.
_FOR_THE_DRIVER = (errors.LeaseLost, errors.Interrupted, errors.HandlerTimeout)


class Result(Enum):
    """The result of a message at one consumer."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    FAILED = "failed"
    """The handler raised: its writes and the receipt were rolled back."""
    DEAD = "dead"
    """The handler raised a permanent error, or ended its transaction and did not finish."""
    AGAIN = "again"
    """An outage or a conflict: the database, or the target of the handler, was unreachable or busy.
    If the answer to the commit was lost, the message may have been handled: the receipt tells."""


class Handled(msgspec.Struct, frozen=True):
    """The result of a message at one consumer, and its failure."""

    result: Result
    failure: Failure | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The record that a consumer has handled a message."""

    message_id: str
    consumer: str
    message_name: str
    processed_at: datetime
    finished: bool = True
    """False: the handler ended its transaction itself and did not finish."""


class _FromHex(TypeDecorator[bytes]):
    """Bytes that a cursor carries as hexadecimal text."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> bytes:
        return bytes.fromhex(value)


class _Statements:
    """The statements of a table of receipts."""

    def __init__(self, receipt: Table) -> None:
        message_id = bindparam("message_id", type_=receipt.c.message_id.type)
        consumer = bindparam("consumer", type_=receipt.c.consumer.type)
        cutoff = second(now_ms() - bindparam("age_ms", type_=BigInteger()))
        last = bindparam("last", type_=receipt.c.processed_at.type)
        self.take = InsertRows(
            "inbox.receipt",
            receipt,
            columns=("message_id", "consumer", "message_name"),
            values={"processed_at": second(now_ms())},
        )
        mine = (receipt.c.message_id == message_id, receipt.c.consumer == consumer)
        unfinished = func.substr(receipt.c.message_name, 1, len(UNFINISHED)) == UNFINISHED
        self.named = Statement("inbox.named", select(receipt.c.message_name).where(*mine))
        self.finish = Statement(
            "inbox.finish",
            update(receipt)
            .where(*mine, unfinished)
            .values(message_name=bindparam("name", type_=receipt.c.message_name.type)),
        )
        self.forget = Statement("inbox.forget", delete(receipt).where(*mine, unfinished))
        self.edge = Statement(
            "inbox.cleanup_edge",
            select(receipt.c.processed_at)
            .where(receipt.c.processed_at < cutoff)
            .order_by(receipt.c.processed_at)
            .limit(1)
            .offset(bindparam("offset", type_=BigInteger())),
        )
        self.remove_to = Statement(
            "inbox.cleanup",
            delete(receipt).where(receipt.c.processed_at < cutoff, receipt.c.processed_at <= last),
        )
        self.remove = Statement(
            "inbox.cleanup_rest", delete(receipt).where(receipt.c.processed_at < cutoff)
        )
        self.counts = {
            chosen: Statement("inbox.count", _counting(receipt, consumer if chosen else None))
            for chosen in (False, True)
        }
        self.pages = {chosen: _listing(receipt, chosen=chosen) for chosen in (False, True)}


_statements = cache(_Statements)


def _counting(receipt: Table, consumer: Any) -> Select[Any]:
    query = select(receipt.c.consumer).limit(COUNTED_MAX)
    if consumer is not None:
        query = query.where(receipt.c.consumer == consumer)
    return select(func.count()).select_from(query.subquery("counted"))


def _listing(receipt: Table, *, chosen: bool) -> Keyset[Receipt]:
    # The same table, with ids that are compared as bytes and read and bound as text.
    seen = Table(
        receipt.name,
        MetaData(),
        Column("message_id", _FromHex(), key="spelled"),
        *(Column(c.name, c.type) for c in receipt.c if c.name != "message_id"),
        schema=receipt.schema,
    ).c
    query = select(
        hexadecimal(seen.spelled).label("spelled"),
        seen.consumer,
        seen.message_name,
        seen.processed_at,
    )
    if chosen:
        query = query.where(seen.consumer == bindparam("consumer", type_=seen.consumer.type))
    return Keyset(
        "inbox.find.consumer" if chosen else "inbox.find",
        query,
        order=(seen.processed_at, seen.spelled, seen.consumer),
        descending=True,
        make=_made,
    )


def _made(row: Row) -> Receipt:
    return Receipt(
        message_id=str(UUID(row[0])),
        consumer=row[1],
        message_name=row[2].removeprefix(UNFINISHED),
        processed_at=moment_of(row[3]),
        finished=not row[2].startswith(UNFINISHED),
    )


def handle(
    database: Database[Any], registry: MessagingRegistry, consumer: Consumer, message: Message
) -> Handled:
    """Runs the handler in a transaction with its receipt, unless the receipt exists.

    - The writes of the handler, the messages it publishes and the receipt are one commit.
    - If the handler ended its transaction and then failed or died, the result is DEAD: its writes
      are kept, and another attempt would repeat them.
    - After a deadlock or serialization failure the transaction and the handler run again.
    - Raises errors that no retry can solve, such as missing tables or rights.
    """
    tries = database.settings.transaction_tries_max
    for attempt in range(1, tries + 1):
        stage = _HandlingState()
        try:
            with database.transaction() as tx:
                there = _received(tx, registry, consumer, message)
                if there is not None:
                    return there
                stage.handling = True
                with log_context.bound(**log_ids(consumer, message)):
                    consumer.run(tx, message)
                _finish(tx, registry, consumer, message)
                hit("inbox.handled")
        except _FOR_THE_DRIVER:
            raise
        except errors.StoreBusy as error:
            if not stage.handling or attempt == tries:
                return Handled(Result.AGAIN, failure_of(error))
        except BaseException as error:
            if not stage.handling and not isinstance(error, _AGAIN):
                raise
            handled = _unhandled(error)
            if handled.result is Result.FAILED and _is_left(database, registry, consumer, message):
                return _given_up(consumer, handled.failure)
            return handled
        else:
            return Handled(Result.HANDLED)
    raise AssertionError(tries)


def forget_unfinished(
    tx: Transaction, registry: MessagingRegistry, consumer: str, message: Message
) -> None:
    """Deletes an unfinished receipt, so that the message can be retried."""
    registry.setup.ensure(tx, registry.shared.receipt)
    _statements(registry.shared.receipt).forget.run(
        tx, message_id=UUID(message.id).bytes, consumer=consumer
    )


def log_ids(consumer: Consumer, message: Message) -> dict[str, str | int]:
    """The message and its consumer, for the context of log lines."""
    return {"message_name": message.name, "message_id": message.id, "consumer": consumer.name}


def log_failed(
    consumer: Consumer, message: Message, failure: Failure, *, attempt: int, next_seconds: float
) -> None:
    """Logs a failed attempt that is retried."""
    FailedAttempt(
        what=f"message {message.name} {message.id} for {consumer.name}",
        attempt=attempt,
        failure=failure,
        next_seconds=next_seconds,
        ids=log_ids(consumer, message),
    ).write(_log)


class _HandlingState:
    """Whether the handler has begun."""

    handling = False


def _received(
    tx: Transaction, registry: MessagingRegistry, consumer: Consumer, message: Message
) -> Handled | None:
    """Inserts the receipt; if one exists, returns the result that follows from it."""
    registry.setup.ensure(tx, registry.shared.receipt)
    statements = _statements(registry.shared.receipt)
    unfinished = (UNFINISHED + _name_of(message))[:NAME_CHARS_MAX]
    message_id = UUID(message.id).bytes
    inserted = statements.take.run(
        tx, [{"message_id_": message_id, "consumer_": consumer.name, "message_name_": unfinished}]
    )
    hit("inbox.receipt")
    if inserted:
        return None
    row = statements.named.one(tx, message_id=message_id, consumer=consumer.name)
    if row is not None and row[0].startswith(UNFINISHED):
        return _given_up(consumer)
    return Handled(Result.DUPLICATE)


def _name_of(message: Message) -> str:
    """The name of the message in a receipt, for operators. Other programs use any characters."""
    name = message.name.replace("\0", "")
    return name.replace(UNFINISHED.strip(), "")[:NAME_CHARS_MAX]


def _finish(
    tx: Transaction, registry: MessagingRegistry, consumer: Consumer, message: Message
) -> None:
    """Marks the receipt as finished, if the transaction still contains it.

    A handler may catch an error of the database and continue without its transaction: PostgreSQL
    would answer COMMIT with a rollback, and MySQL has undone the writes before a deadlock and would
    commit the others.
    """
    words = f"the transaction of the consumer {consumer.name} was rolled back before its end"
    hint = "do not roll it back, and do not catch errors of the database in the handler"
    _statements(registry.shared.receipt).finish.must_change(
        tx,
        errors.NotAllowedNow(words, hint=hint),
        message_id=UUID(message.id).bytes,
        consumer=consumer.name,
        name=_name_of(message),
    )


def _is_left(
    database: Database[Any], registry: MessagingRegistry, consumer: Consumer, message: Message
) -> bool:
    """Whether a failed attempt has left its receipt; False if that cannot be read."""
    try:
        with database.reading() as tx:
            row = _statements(registry.shared.receipt).named.one(
                tx, message_id=UUID(message.id).bytes, consumer=consumer.name
            )
    except errors.LedgerstoneError:
        return False
    return row is not None and row[0].startswith(UNFINISHED)


def _given_up(consumer: Consumer, failure: Failure | None = None) -> Handled:
    """The result of an attempt that ended its transaction and did not finish."""
    words = (
        f"{consumer.name} ended its transaction and did not finish: the writes before that are"
        " kept, and a retry repeats them"
    )
    if failure is None:
        return Handled(Result.DEAD, Failure(TRANSACTION_ENDED, words))
    message = f"{words}; it failed with {failure.code}: {failure.message}"[:MESSAGE_CHARS_MAX]
    return Handled(Result.DEAD, Failure(TRANSACTION_ENDED, message, failure.traceback))


def _unhandled(error: BaseException) -> Handled:
    failure = failure_of(error)
    if isinstance(error, _AGAIN):
        return Handled(Result.AGAIN, failure)
    if isinstance(error, errors.Hopeless):
        return Handled(Result.DEAD, failure)
    return Handled(Result.FAILED, failure)


def pause_seconds(settings: MessagingSettings, failures: int) -> float:
    """The pause after this many failures."""
    backoff = Backoff(
        seconds=settings.retry_seconds,
        multiplier=settings.retry_factor,
        seconds_max=PAUSE_SECONDS_MAX,
        jitter=0.0,
    )
    return backoff.after(failures + 1)


class Inbox:
    """The receipts inside one transaction: `tx.inbox`."""

    def __init__(self, tx: Transaction, registry: MessagingRegistry) -> None:
        self._tx = tx
        self._registry = registry

    def find(
        self, *, consumer: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[Receipt]:
        """Lists receipts, newest first.

        - `consumer`: only receipts of this consumer.
        - `limit`: the size of the page.
        - `cursor`: the `next` of the page before.
        """
        chosen = _chosen(consumer)
        self._registry.setup.ensure(self._tx, self._registry.shared.receipt)
        pages = _statements(self._registry.shared.receipt).pages[bool(chosen)]
        return pages.read(self._tx, limit=limit, cursor=cursor, **chosen)

    def count(self, *, consumer: str | None = None) -> int:
        """Counts receipts, at most COUNTED_MAX.

        - `consumer`: only receipts of this consumer.
        """
        chosen = _chosen(consumer)
        self._registry.setup.ensure(self._tx, self._registry.shared.receipt)
        row = (
            _statements(self._registry.shared.receipt).counts[bool(chosen)].one(self._tx, **chosen)
        )
        return int(row[0]) if row is not None else 0

    def cleanup(self, *, days: float) -> int:
        """Removes a bounded number of receipts; returns how many, and 0 when none are left.

        - `days`: only receipts that are older than this. Raises BadInput if a message can still be
          redelivered after that time (`messaging.redelivery_days_max`).
        """
        _check_days(days, self._registry.settings)
        self._registry.setup.ensure(self._tx, self._registry.shared.receipt)
        return _removed(self._tx, self._registry, days)


def cleanup(database: Database[Any], registry: MessagingRegistry, *, days: float) -> int:
    """Removes all receipts older than `days`, in bounded transactions; returns how many."""
    removed = 0
    while piece := database.run(lambda tx: Inbox(tx, registry).cleanup(days=days)):
        removed += piece
    return removed


def duty(registry: MessagingRegistry) -> Duty:
    """The duty that removes old receipts, a bounded number at a time."""
    settings = registry.settings
    days = max(settings.keep_receipts_days, settings.redelivery_days_max)
    return Duty("retire:receipts", EVERY_SECONDS, lambda tx: Inbox(tx, registry).cleanup(days=days))


def _chosen(consumer: str | None) -> Mapping[str, str]:
    return {} if consumer is None else {"consumer": consumer}


def _check_days(days: Any, settings: MessagingSettings) -> None:
    if not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise errors.BadInput(f"days must be a number from 0 to {DAYS_MAX}, not {days!r}")
    least = settings.redelivery_days_max
    if days < least:
        message = f"messages can be redelivered for {least:g} days: keep their receipts as long"
        hint = f"give at least {least:g} days, or lower messaging.redelivery_days_max"
        raise errors.BadInput(message, hint=hint)


def _removed(tx: Transaction, registry: MessagingRegistry, days: float) -> int:
    statements = _statements(registry.shared.receipt)
    age_ms = round(days * DAY_MS)
    # Deletes up to the second of the last row of the piece, by the index on processed_at.
    edge = statements.edge.one(tx, age_ms=age_ms, offset=CLEANUP_MAX - 1)
    if edge is None:
        return statements.remove.run(tx, age_ms=age_ms)
    return statements.remove_to.run(tx, age_ms=age_ms, last=edge[0])

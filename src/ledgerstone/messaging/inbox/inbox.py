"""The inbox: a message takes effect once for each consumer, however often it arrives.

    begin ─▶ receipt ─▶ handler, its writes, its own messages ─▶ finished ─▶ commit ─▶ the broker
               │                                                                      may forget it
               └─ there already: finished, a duplicate; unfinished, it goes to the failed table

The receipt is written first, and nobody looks before: of two that come at once the second waits at
the unique index until the first is through. A handler that fails takes the receipt back with all
else.

A handler may commit in the middle, knowingly or not: many statements of MySQL do. Then its receipt
stays when it fails, or when its process dies. So a receipt is unfinished until the handler has
returned, and one that was committed unfinished is no proof that the message was handled.
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
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import hexadecimal, now_ms, second
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.sql.timestamps import moment_of

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

CLEANUP_MAX = 1000
"""Receipts that one transaction removes, and those of the same second."""
COUNTED_MAX = 250_000
"""Receipts that are counted: looking has a bounded cost, however many there are."""
DAYS_MAX = 36_500
PAUSE_SECONDS_MAX = 86_400.0
EVERY_SECONDS = 60.0
UNFINISHED = "unfinished: "
"""What stands before the name in a receipt whose handler has not returned."""
TRANSACTION_ENDED = "transaction_ended"
"""The code of a message whose handler has ended the transaction and was not done."""
DAY_MS = 86_400_000

_log = logging.getLogger("ledgerstone.messaging")

# Not the message's doing: it is tried again, and that does not count.
_AGAIN = (errors.StoreUnavailable, errors.StoreBusy, errors.StoreFull, errors.TargetDown)
# Meant for whoever drives the thread that the handler runs in.
_FOR_THE_DRIVER = (errors.LeaseLost, errors.Interrupted, errors.HandlerTimeout)


class Result(Enum):
    """What became of a message at one consumer."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    FAILED = "failed"
    """The handler raised: nothing of it was kept, and no receipt."""
    DEAD = "dead"
    """The handler said that it is hopeless."""
    AGAIN = "again"
    """Not the message's doing: the database was out of reach or busy, or what the handler talks to.
    It may even have been handled, if the answer to the commit was lost: the receipt will tell."""


class Handled(msgspec.Struct, frozen=True):
    """What became of a message at one consumer, and why."""

    result: Result
    failure: Failure | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """That a consumer has handled a message."""

    message_id: str
    consumer: str
    message_name: str
    processed_at: datetime
    finished: bool = True
    """False: the handler has ended its transaction itself, and was not done."""


class _FromHex(TypeDecorator[bytes]):
    """Bytes that are given in hexadecimal, as a cursor carries them."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> bytes:
        return bytes.fromhex(value)


class _Statements:
    """What is asked of a table of receipts, whatever its name."""

    def __init__(self, receipt: Table) -> None:
        message_id = bindparam("message_id", type_=receipt.c.message_id.type)
        consumer = bindparam("consumer", type_=receipt.c.consumer.type)
        cutoff = second(now_ms() - bindparam("age_ms", type_=BigInteger()))
        last = bindparam("last", type_=receipt.c.processed_at.type)
        self.take = InsertEach(
            "inbox.receipt",
            receipt,
            incoming=(receipt.c.consumer, receipt.c.message_name),
            # Bytes do not travel with the rest; there is one message only.
            values=lambda _: {"message_id": message_id, "processed_at": second(now_ms())},
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
    # The same table; its ids are ordered as bytes and come and go as text.
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
    """Run the handler in a transaction with its receipt, unless there is one.

    - What the handler wrote, what it published and the receipt are one commit.
    - One whose handler has ended the transaction itself, and then failed or died, is DEAD: what was
      written before that is kept, and another try would write it again.
    - A transaction that met another one is run again, and the handler in it.
    - An error that no message can be blamed for and no waiting helps is raised: tables that are
      missing, rights.
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
    """Remove the receipt of a try that has ended its transaction: the message may be retried."""
    registry.setup.ensure(tx, registry.shared.receipt)
    _statements(registry.shared.receipt).forget.run(
        tx, message_id=UUID(message.id).bytes, consumer=consumer
    )


def log_ids(consumer: Consumer, message: Message) -> dict[str, str | int]:
    """The message and its consumer for the context of log lines."""
    return {"message_name": message.name, "message_id": message.id, "consumer": consumer.name}


def log_failed(
    consumer: Consumer, message: Message, failure: Failure, *, attempt: int, next_seconds: float
) -> None:
    """Log an attempt that failed and is made again."""
    FailedAttempt(
        what=f"message {message.name} {message.id} for {consumer.name}",
        attempt=attempt,
        failure=failure,
        next_seconds=next_seconds,
        ids=log_ids(consumer, message),
    ).write(_log)


class _HandlingState:
    """How far a transaction came."""

    handling = False


def _received(
    tx: Transaction, registry: MessagingRegistry, consumer: Consumer, message: Message
) -> Handled | None:
    """Write the receipt; if there is one, what that says of the message."""
    registry.setup.ensure(tx, registry.shared.receipt)
    statements = _statements(registry.shared.receipt)
    unfinished = (UNFINISHED + _name_of(message))[:NAME_CHARS_MAX]
    message_id = UUID(message.id).bytes
    taken = statements.take.run(tx, [(consumer.name, unfinished)], message_id=message_id)
    hit("inbox.receipt")
    if not taken:
        return None
    row = statements.named.one(tx, message_id=message_id, consumer=consumer.name)
    if row is not None and row[0].startswith(UNFINISHED):
        return _given_up(consumer)
    return Handled(Result.DUPLICATE)


def _name_of(message: Message) -> str:
    """What a receipt says of the name, a note for people: others name theirs as they like."""
    name = message.name.replace("\0", "")
    return name.replace(UNFINISHED.strip(), "")[:NAME_CHARS_MAX]


def _finish(
    tx: Transaction, registry: MessagingRegistry, consumer: Consumer, message: Message
) -> None:
    """Note that the handler has returned, if the transaction is the one that has the receipt.

    A handler that catches an error of the database and goes on may have lost it: PostgreSQL would
    answer the commit and keep nothing, MySQL has undone what was before a deadlock and would keep
    the rest.
    """
    words = f"the transaction of the consumer {consumer.name} was undone before its end"
    hint = "do not roll it back, and let errors of the database out of the handler"
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
    """Whether a try that failed has left its receipt; if nobody can say, the next try will."""
    try:
        with database.reading() as tx:
            row = _statements(registry.shared.receipt).named.one(
                tx, message_id=UUID(message.id).bytes, consumer=consumer.name
            )
    except errors.LedgerstoneError:
        return False
    return row is not None and row[0].startswith(UNFINISHED)


def _given_up(consumer: Consumer, failure: Failure | None = None) -> Handled:
    """A try has ended its transaction and was not done: people decide what is to be done."""
    words = (
        f"{consumer.name} ended its transaction and did not finish: what it wrote before that is"
        " kept, and a retry writes it again"
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
    """How long a message waits that failed so often before: none is the first time."""
    backoff = Backoff(
        seconds=settings.retry_seconds,
        multiplier=settings.retry_factor,
        seconds_max=PAUSE_SECONDS_MAX,
        jitter=0.0,
    )
    return backoff.after(failures + 1)


class Inbox:
    """What was handled, inside a transaction."""

    def __init__(self, tx: Transaction, registry: MessagingRegistry) -> None:
        self._tx = tx
        self._registry = registry

    def find(
        self, *, consumer: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[Receipt]:
        """Receipts, newest first."""
        chosen = _chosen(consumer)
        self._registry.setup.ensure(self._tx, self._registry.shared.receipt)
        pages = _statements(self._registry.shared.receipt).pages[bool(chosen)]
        return pages.read(self._tx, limit=limit, cursor=cursor, **chosen)

    def count(self, *, consumer: str | None = None) -> int:
        """How many receipts there are; no more than so many are counted."""
        chosen = _chosen(consumer)
        self._registry.setup.ensure(self._tx, self._registry.shared.receipt)
        row = (
            _statements(self._registry.shared.receipt).counts[bool(chosen)].one(self._tx, **chosen)
        )
        return int(row[0]) if row is not None else 0

    def cleanup(self, *, days: float) -> int:
        """Remove receipts that are older, a bounded piece; how many, and 0 when none are left."""
        _check_days(days, self._registry.settings)
        self._registry.setup.ensure(self._tx, self._registry.shared.receipt)
        return _removed(self._tx, self._registry, days)


def cleanup(database: Database[Any], registry: MessagingRegistry, *, days: float) -> int:
    """Remove all receipts that are older, each bounded piece in its own transaction; how many."""
    removed = 0
    while piece := database.run(lambda tx: Inbox(tx, registry).cleanup(days=days)):
        removed += piece
    return removed


def duty(registry: MessagingRegistry) -> Duty:
    """Removes old receipts, a bounded piece at a time."""
    settings = registry.settings
    days = max(settings.keep_receipts_days, settings.redelivery_days_max)
    return Duty("retire:receipts", EVERY_SECONDS, lambda tx: Inbox(tx, registry).cleanup(days=days))


def _chosen(consumer: str | None) -> Mapping[str, str]:
    return {} if consumer is None else {"consumer": consumer}


def _check_days(days: Any, settings: MessagingSettings) -> None:
    if not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise errors.BadInput(f"receipts are kept for 0 to {DAYS_MAX} days, not {days!r}")
    least = settings.redelivery_days_max
    if days < least:
        message = f"a message can arrive again for {least:g} days: receipts are kept as long"
        hint = f"give at least {least:g} days, or lower messaging.redelivery_days_max"
        raise errors.BadInput(message, hint=hint)


def _removed(tx: Transaction, registry: MessagingRegistry, days: float) -> int:
    statements = _statements(registry.shared.receipt)
    age_ms = round(days * DAY_MS)
    # Up to the second in which the last of them lies: an index knows it, whatever the key is.
    edge = statements.edge.one(tx, age_ms=age_ms, offset=CLEANUP_MAX - 1)
    if edge is None:
        return statements.remove.run(tx, age_ms=age_ms)
    return statements.remove_to.run(tx, age_ms=age_ms, last=edge[0])

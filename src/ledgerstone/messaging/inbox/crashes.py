"""Messages that crash the process: counted over all processes, given up after a maximum.

A broker redelivers unacknowledged messages without end and does not say why. So a row is written
before the handler of a redelivered message begins, and deleted when the handler has ended. A row
that remains belongs to a process that died.

    redelivered ─▶ begun, count 1 ─▶ handler ─▶ ended: row deleted
                                        └─ the process dies ─▶ redelivered ─▶ begun, count 2 …
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, delete, select, update

from ledgerstone.cancellation import Cancellation
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.outcomes import failure_of
from ledgerstone.engine.source import Failure
from ledgerstone.errors import LedgerstoneError
from ledgerstone.messaging.inbox.inbox import DAY_MS, EVERY_SECONDS, Handled, Result
from ledgerstone.messaging.tables import delivery_crash
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.message import Message
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

CRASHED = "crashed"
"""The code of a message that was given up after too many crashes."""
REMOVE_MAX = 1000

_row = delivery_crash.c
_its = (
    _row.message_id == bindparam("message_id_", type_=_row.message_id.type),
    _row.consumer == bindparam("consumer_", type_=_row.consumer.type),
)
_first = InsertEach(
    "crashes.first",
    delivery_crash,
    incoming=(_row.message_id, _row.consumer),
    values=lambda _: {"begun": 1, "begun_at_ms": now_ms()},
)
_again = Statement(
    "crashes.again",
    update(delivery_crash).where(*_its).values(begun=_row.begun + 1, begun_at_ms=now_ms()),
)
_begun = Statement("crashes.begun", select(_row.begun).where(*_its))
_forget = Statement("crashes.forget", delete(delivery_crash).where(*_its))
_old = Statement(
    "crashes.old",
    select(_row.message_id, _row.consumer)
    .where(_row.begun_at_ms < now_ms() - bindparam("age_ms", type_=BigInteger()))
    .order_by(_row.begun_at_ms)
    .limit(REMOVE_MAX),
)


def guarded(
    database: Database[Any],
    consumer: str,
    message: Message,
    handle: Callable[[], Handled],
    *,
    crashes_max: int,
    last_chance: Lock,
) -> Handled:
    """Handles a redelivered message, unless too many processes died while handling it.

    - The result is DEAD after `crashes_max` deaths. The caller moves the message to the failed
      table and calls `forget`.
    - A message that is given up after one more death is handled under the lock `last_chance`: only
      one such message runs in a process, so that it cannot take others along.
    """
    try:
        count = database.run(lambda tx: _count(tx, consumer, message))
        is_last = count + 1 == crashes_max
        if is_last and not last_chance.acquire(blocking=False):
            words = "another message is being handled that is given up after one more crash"
            return Handled(Result.AGAIN, Failure(CRASHED, words))
    except LedgerstoneError as error:
        if not error.retryable:
            raise
        return Handled(Result.AGAIN, failure_of(error))
    try:
        return _on_record(database, consumer, message, handle, crashes_max=crashes_max)
    finally:
        if is_last:
            last_chance.release()


def _on_record(
    database: Database[Any],
    consumer: str,
    message: Message,
    handle: Callable[[], Handled],
    *,
    crashes_max: int,
) -> Handled:
    try:
        begun = database.run(lambda tx: _noted(tx, consumer, message))
    except LedgerstoneError as error:
        if not error.retryable:
            raise
        return Handled(Result.AGAIN, failure_of(error))
    if begun > crashes_max:
        words = f"{begun - 1} processes died while {consumer} handled it after a redelivery"
        return Handled(Result.DEAD, Failure(CRASHED, words, crashed=True))
    try:
        return handle()
    finally:
        _ended(database, consumer, message)


def forget(tx: Transaction, consumer: str, message: Message) -> None:
    """Deletes the count: the handler has ended, or the message was given up."""
    _forget.run(tx, message_id_=message.id, consumer_=consumer)


def remove_old(tx: Transaction, *, age_ms: int) -> int:
    """Deletes a bounded number of counts that are older than `age_ms`; returns how many."""
    old = _old.rows(tx, age_ms=age_ms)
    for message_id, consumer in sorted((str(row[0]), row[1]) for row in old):
        _forget.run(tx, message_id_=message_id, consumer_=consumer)
    return len(old)


def duty(registry: MessagingRegistry) -> Duty:
    """The duty that deletes counts of messages that cannot be redelivered any more."""
    age_ms = round(registry.settings.redelivery_days_max * DAY_MS)
    return Duty("retire:crashes", EVERY_SECONDS, lambda tx: remove_old(tx, age_ms=age_ms))


def _noted(tx: Transaction, consumer: str, message: Message) -> int:
    """Records that the handler begins; returns how many times it has begun."""
    if not _first.run(tx, [(message.id, consumer)]):
        return 1
    _again.run(tx, message_id_=message.id, consumer_=consumer)
    return _count(tx, consumer, message)


def _count(tx: Transaction, consumer: str, message: Message) -> int:
    row = _begun.one(tx, message_id_=message.id, consumer_=consumer)
    return int(row[0]) if row is not None else 0


def _ended(database: Database[Any], consumer: str, message: Message) -> None:
    # This call must run even if the handler was told to stop.
    unhindered = Cancellation().begin()
    try:
        database.run(lambda tx: forget(tx, consumer, message))
    except LedgerstoneError:
        # The row counts as a crash then. The store has logged the outage.
        return
    finally:
        Cancellation.leave(unhindered)

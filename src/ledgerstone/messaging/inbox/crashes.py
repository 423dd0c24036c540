"""Messages that kill the process: counted for all processes, given up after so many deaths.

A broker delivers again what was not acknowledged, for ever, and does not say why. So before the
handler of a message that came again begins, that is written down; when the handler has ended, in
whatever way, it is forgotten. What is left was begun by a process that is no more.

    came again ─▶ begun, count 1 ─▶ handler ─▶ ended: forgotten
                                       └─ the process dies ─▶ came again ─▶ begun, count 2 …
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
"""The code of a message that was given up for it."""
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
    """Handle a message that was delivered before, unless so many processes died of it.

    - It is DEAD then; who puts it into the failed table forgets the count (`forget`).
    - One for which one more death is the end is handled while it holds `last_chance`. So one that
      kills its process takes none of its like along: it is tried again later.
    """
    try:
        count = database.run(lambda tx: _count(tx, consumer, message))
        is_last = count + 1 == crashes_max
        if is_last and not last_chance.acquire(blocking=False):
            words = "another message is handled for which one more death of a process is the end"
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
        words = f"{begun - 1} processes died while {consumer} handled it, after it had come again"
        return Handled(Result.DEAD, Failure(CRASHED, words, crashed=True))
    try:
        return handle()
    finally:
        _ended(database, consumer, message)


def forget(tx: Transaction, consumer: str, message: Message) -> None:
    """It counts no more: the handler has ended, or the message was given up."""
    _forget.run(tx, message_id_=message.id, consumer_=consumer)


def remove_old(tx: Transaction, *, age_ms: int) -> int:
    """Forget what was begun so long ago, a bounded piece; how many it were."""
    old = _old.rows(tx, age_ms=age_ms)
    for message_id, consumer in sorted((str(row[0]), row[1]) for row in old):
        _forget.run(tx, message_id_=message_id, consumer_=consumer)
    return len(old)


def duty(registry: MessagingRegistry) -> Duty:
    """Forgets what can no longer come again, a bounded piece at a time."""
    age_ms = round(registry.settings.redelivery_days_max * DAY_MS)
    return Duty("retire:crashes", EVERY_SECONDS, lambda tx: remove_old(tx, age_ms=age_ms))


def _noted(tx: Transaction, consumer: str, message: Message) -> int:
    """Write down that it begins; how often it has."""
    if not _first.run(tx, [(message.id, consumer)]):
        return 1
    _again.run(tx, message_id_=message.id, consumer_=consumer)
    return _count(tx, consumer, message)


def _count(tx: Transaction, consumer: str, message: Message) -> int:
    row = _begun.one(tx, message_id_=message.id, consumer_=consumer)
    return int(row[0]) if row is not None else 0


def _ended(database: Database[Any], consumer: str, message: Message) -> None:
    # Also when the handler was told to stop: this is not its own call.
    unhindered = Cancellation().begin()
    try:
        database.run(lambda tx: forget(tx, consumer, message))
    except LedgerstoneError:
        # It counts as a death then; the store has logged its outage.
        return
    finally:
        Cancellation.leave(unhindered)

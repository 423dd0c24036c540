"""What both relays ask, read and write: a pause, what waits, what was delivered, their counters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import BigInteger, bindparam, column, delete, select, update

from ledgerstone.engine.backoff import Backoff
from ledgerstone.errors import BadInput
from ledgerstone.messaging.brokers.transport import MISSING, PAUSE_SECONDS_MAX, Answer, SendResult
from ledgerstone.messaging.failed.rows import Raw
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.symfony import envelope
from ledgerstone.messaging.symfony.time_zone import kept
from ledgerstone.messaging.tables import pause
from ledgerstone.settings import DestinationSettings
from ledgerstone.store.sql.batch import UpdateEach, WithRows
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

_paused = Statement(
    "relay.paused",
    select(pause.c.who).where(
        pause.c.queue_name == bindparam("queue", type_=pause.c.queue_name.type)
    ),
)


def is_paused(tx: Transaction, queue: str) -> bool:
    """Whether an operator has paused the whole destination."""
    return _paused.one(tx, queue=queue) is not None


def is_given_up(answer: Answer, destination: DestinationSettings, attempts: int) -> bool:
    """Whether a message that was refused so often is not sent again by itself."""
    if answer.verdict is SendResult.UNDELIVERABLE:
        return destination.on_failure != "block" or answer.code not in MISSING
    return destination.on_failure != "block" and attempts >= destination.max_attempts


def refusal_pause(answer: Answer, backoff: Backoff, attempts: int, *, exact: bool) -> float:
    """How long a message that was refused waits: for its destination, and no shorter than always.

    `exact`: the consumers of this ledger know the back-off, and ask for what they mean.
    """
    asked = answer.retry_after_seconds
    if asked is None:
        return backoff.after(attempts)
    if exact:
        return asked
    return max(min(asked, PAUSE_SECONDS_MAX), backoff.after(attempts))


class DeliveryMarks:
    """Marks rows of an outbox of some name as delivered, or removes them."""

    def __init__(self, registry: MessagingRegistry) -> None:
        outbox = registry.shared.outbox
        self._keep = registry.settings.keep_delivered_days > 0
        self._mark = UpdateEach(
            "relay.mark",
            key=outbox.c.id,
            incoming=(outbox.c.id,),
            build=lambda row: (
                update(outbox)
                .where(outbox.c.id == row.id)
                .values(delivered_at=kept(outbox, now_ms()))
            ),
        )
        self._remove = WithRows(
            "relay.remove",
            incoming=(column("id", BigInteger()),),
            build=lambda row: delete(outbox).where(outbox.c.id.in_(select(row.id))),
        )

    def delivered(self, tx: Transaction, places: Sequence[int]) -> None:
        """These were delivered."""
        rows = [(place,) for place in sorted(places)]
        if not rows:
            return
        if self._keep:
            self._mark.apply(tx, rows)
        else:
            self._remove.run(tx, rows)

    def removed(self, tx: Transaction, places: Sequence[int]) -> None:
        """These are somewhere else now."""
        if places:
            self._remove.run(tx, [(place,) for place in sorted(places)])


class RelayCounters(msgspec.Struct):
    """What a relay did so far, in messages."""

    delivered: int = 0
    refused: int = 0
    parked: int = 0
    skipped: int = 0


class Malformed(msgspec.Struct, frozen=True):
    """A row of the outbox that cannot be read as a message."""

    place: int
    reason: str
    raw: Raw


def read_row(
    place: int, body: str, headers: str, partition: str, created_at: datetime, *, origin: str
) -> Message | Malformed:
    """The message in a row of the outbox, or why there is none."""
    try:
        return envelope.message_of(
            place=place,
            body=body,
            headers=headers,
            partition=partition,
            created_at=created_at,
            origin=origin,
        )
    except BadInput as error:
        raw = Raw(body=body.encode(), headers={"headers": headers})
        return Malformed(place, error.message, raw)


def place_of(message: Message) -> int:
    """Where a message that came from the outbox lies in it."""
    assert message.place is not None
    return message.place

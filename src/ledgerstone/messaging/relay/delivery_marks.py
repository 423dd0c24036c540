"""The parts that both relays use: pauses, refusals, the marking of rows, and counters."""

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
    """Whether an operator has paused the destination."""
    return _paused.one(tx, queue=queue) is not None


def is_given_up(
    answer: Answer, destination: DestinationSettings, attempts: int, *, parks: bool
) -> bool:
    """Whether the relay gives up a message that was refused `attempts` times.

    - `parks`: whether the message can be parked, and is resumed when its missing target is back.
      Otherwise only `skip` gives up a message whose target is missing.
    """
    if answer.result is SendResult.UNDELIVERABLE:
        given_up = {"park", "skip"} if parks else {"skip"}
        return answer.code not in MISSING or destination.on_failure in given_up
    return destination.on_failure != "block" and attempts >= destination.max_attempts


def refusal_pause(answer: Answer, backoff: Backoff, attempts: int, *, exact: bool) -> float:
    """The pause after a refusal, in seconds: the pause of the answer, at least the back-off.

    - `exact`: take the pause of the answer as it is. Local consumers compute the back-off
      themselves.
    """
    asked = answer.retry_after_seconds
    if asked is None:
        return backoff.after(attempts)
    if exact:
        return asked
    return max(min(asked, PAUSE_SECONDS_MAX), backoff.after(attempts))


class DeliveryMarks:
    """Marks rows of an outbox as delivered, or deletes them."""

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
        """Marks these rows as delivered, or deletes them if delivered rows are not kept."""
        rows = [(place,) for place in sorted(places)]
        if not rows:
            return
        if self._keep:
            self._mark.apply(tx, rows)
        else:
            self._remove.run(tx, rows)

    def removed(self, tx: Transaction, places: Sequence[int]) -> None:
        """Deletes these rows; they were moved elsewhere."""
        if places:
            self._remove.run(tx, [(place,) for place in sorted(places)])


class RelayCounters(msgspec.Struct):
    """The counters of a relay, in messages."""

    delivered: int = 0
    refused: int = 0
    parked: int = 0
    skipped: int = 0


class Malformed(msgspec.Struct, frozen=True):
    """A row of the outbox that cannot be parsed as a message."""

    place: int
    reason: str
    raw: Raw


def read_row(
    place: int, body: str, headers: str, partition: str, created_at: datetime, *, origin: str
) -> Message | Malformed:
    """The message in a row of the outbox, or the reason why it cannot be parsed."""
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
    """The id of the row of a message that was read from the outbox."""
    assert message.place is not None
    return message.place

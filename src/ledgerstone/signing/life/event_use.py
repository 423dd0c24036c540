"""The one request that an event has, and the one event that a source's id has.

Another program writes neither. An event without the second was not accepted here, so its requests
are looked for among all of them, once: one that was paid or signed must not be paid again.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ledgerstone.errors import EventReplayed
from ledgerstone.signing import hashes
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import (
    ArchivedRequestKey,
    EventIdKey,
    EventKey,
    EventUseKey,
    RequestKey,
    SignatureKey,
    request_prefix,
)
from ledgerstone.signing.life import records
from ledgerstone.signing.states import FINISHED, Status
from ledgerstone.signing.values import EventHash, RequestId, SigningEvent, SigningRequest


class EventLink(msgspec.Struct, frozen=True, kw_only=True):
    """The event to which a source gave an id."""

    event_hash: EventHash


class EventUse(msgspec.Struct, frozen=True, kw_only=True):
    """The one request that an event has."""

    request_id: RequestId
    spent: bool = False
    """The request was archived with a signature: the event is never signed for again."""


class LockedEvent(NamedTuple):
    """The keys of an event, under their locks."""

    by_id: EventIdKey | None
    use: EventUse | None

    def is_of(self, request: SigningRequest) -> bool:
        """Whether the event has no other request by now."""
        return self.use is None or self.use.request_id == request.request_id


def lock_event(tx: Transaction, event_hash: EventHash) -> LockedEvent:
    """Lock the keys of an event in the order of every other change, before those of a request."""
    event = records.find(tx, SigningEvent, EventKey(event_hash=event_hash))
    by_id = None if event is None else EventIdKey(source_hash=hashes.source_hash(event))
    if by_id is not None:
        tx.get_for_update(by_id.family, by_id.encode())
    use = records.lock(tx, EventUse, EventUseKey(event_hash=event_hash))
    return LockedEvent(by_id, use)


def is_accepted(reader: Reader, event: SigningEvent, event_hash: EventHash) -> bool:
    """Whether the event is known by the id that its source gave it.

    EventReplayed if another event is: this one could be that one, to be paid twice.
    """
    link = records.find(reader, EventLink, EventIdKey(source_hash=hashes.source_hash(event)))
    if link is not None and link.event_hash != event_hash:
        raise EventReplayed(
            f"the source gave the id {event.event_id!r} to the event {link.event_hash.hex()}"
        )
    return link is not None


def accept(tx: Transaction, event: SigningEvent, event_hash: EventHash) -> None:
    """Let the event be known by the id that its source gave it; the caller holds its locks."""
    by_id = EventIdKey(source_hash=hashes.source_hash(event))
    records.save(tx, by_id, EventLink(event_hash=event_hash))


def find_foreign_use(reader: Reader, event_hash: EventHash) -> EventUse | None:
    """The request that another program stored for an event; None if there is none.

    Of several the one that matters most: paid or signed, then open, then ended.
    """
    found = [
        records.decoded(SigningRequest, key, value)
        for kind in (RequestKey, ArchivedRequestKey)
        for key, value in records.rows(reader, kind.family, kind.prefix)
        if bytes(event_hash) in value
    ]
    of_event = [each for each in found if each.event_hash == event_hash]
    if not of_event:
        return None
    chosen = max(of_event, key=lambda each: _weight(reader, each))
    return EventUse(request_id=chosen.request_id)


def _weight(reader: Reader, request: SigningRequest) -> int:
    status = request.decision.status
    if status is Status.FINALIZED or has_signatures(reader, request.request_id):
        return 2
    return 0 if status in FINISHED else 1


def has_signatures(reader: Reader, request_id: RequestId) -> bool:
    """Whether a signature is stored, so that the transaction could be sent."""
    prefix = request_prefix(SignatureKey, request_id)
    return bool(reader.page(SignatureKey.family, prefix, rows_max=1).rows)

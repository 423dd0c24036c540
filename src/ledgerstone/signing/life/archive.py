"""Archive: finished requests leave the active ones, and later the store, with all that is theirs.

An event for which a signature was stored stays marked for ever as spent, under two small keys of
our own: its transaction could have been sent, so the event must not be signed for again.
"""

from __future__ import annotations

from typing import NamedTuple

from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import (
    AckKey,
    ArchivedRequestKey,
    ContextKey,
    EventKey,
    EventUseKey,
    InputKey,
    Key,
    OutgoingKey,
    ProposalKey,
    RequestChild,
    RequestKey,
    SignatureKey,
    TrailKey,
    request_prefix,
)
from ledgerstone.signing.life import records
from ledgerstone.signing.life.event_use import (
    EventLink,
    EventUse,
    LockedEvent,
    has_signatures,
    lock_event,
)
from ledgerstone.signing.life.requests import find_context
from ledgerstone.signing.states import FINISHED, Status
from ledgerstone.signing.values import RequestId, SigningEvent, SigningRequest

CHILDREN: tuple[type[RequestChild], ...] = (SignatureKey, InputKey, AckKey, TrailKey)


class DeletedRows(NamedTuple):
    """How many rows a step deleted, and whether the request is gone with it."""

    rows: int
    done: bool


def finished_at_nanos(reader: Reader, request: SigningRequest) -> int:
    """When a finished request ended, by our clock.

    Of a request of another program: the time of its event, or its own limit if there is no event.
    """
    context = find_context(reader, request.request_id)
    if context is not None and context.finished_at_nanos:
        return context.finished_at_nanos
    event = records.find(reader, SigningEvent, EventKey(event_hash=request.event_hash))
    return request.expires_at_nanos if event is None else event.timestamp_nanos


def archive_request(tx: Transaction, request_id: RequestId, *, before_nanos: int) -> bool:
    """Archive a request that ended before a moment; False if it is not to be archived."""
    key = RequestKey(request_id=request_id)
    found = records.find(tx, SigningRequest, key)
    if found is None:
        return False
    event = lock_event(tx, found.event_hash)
    request = records.lock(tx, SigningRequest, key)
    if request is None or request.decision.status not in FINISHED:
        return False
    if finished_at_nanos(tx, request) >= before_nanos:
        return False
    paid = request.decision.status is Status.FINALIZED
    if event.is_of(request) and (paid or has_signatures(tx, request_id)):
        _mark_spent(tx, request, event)
    tx.put(key.family, ArchivedRequestKey(request_id=request_id).encode(), _raw(tx, key))
    tx.delete(key.family, key.encode())
    return True


def _mark_spent(tx: Transaction, request: SigningRequest, event: LockedEvent) -> None:
    used = EventUse(request_id=request.request_id, spent=True)
    records.save(tx, EventUseKey(event_hash=request.event_hash), used)
    if event.by_id is not None:
        records.save(tx, event.by_id, EventLink(event_hash=request.event_hash))


def _raw(tx: Transaction, key: Key) -> bytes:
    value = tx.get(key.family, key.encode())
    assert value is not None
    return value


def is_deletable(
    reader: Reader, request: SigningRequest, *, before_nanos: int, publish: bool
) -> bool:
    """Whether an archived request ended before a moment, and does not wait to be published."""
    outgoing = _outgoing_key(reader, request)
    waits = publish and reader.get(outgoing.family, outgoing.encode()) is not None
    return outgoing.at_nanos < before_nanos and not waits


def _outgoing_key(reader: Reader, request: SigningRequest) -> OutgoingKey:
    return OutgoingKey(at_nanos=finished_at_nanos(reader, request), request_id=request.request_id)


def delete_archived(
    tx: Transaction, request_id: RequestId, *, before_nanos: int, publish: bool, rows_max: int
) -> DeletedRows:
    """Delete at most about `rows_max` rows of an archived request that ended before a moment.

    - Its children go first and the request last: a deletion that is interrupted is taken up again.
    - With `publish`, a request whose end is still to be published is left alone.
    """
    key = ArchivedRequestKey(request_id=request_id)
    request = records.lock(tx, SigningRequest, key)
    if request is None:
        return DeletedRows(0, done=True)
    if not is_deletable(tx, request, before_nanos=before_nanos, publish=publish):
        return DeletedRows(0, done=True)
    # Its context goes last: it says when the request ended.
    outgoing = _outgoing_key(tx, request)
    deleted = 0
    for kind in CHILDREN:
        deleted += _delete_page(tx, kind, request_id, rows_max - deleted)
        if deleted >= rows_max:
            return DeletedRows(deleted, done=False)
    own = (ProposalKey(request_id=request_id), ContextKey(request_id=request_id), outgoing, key)
    for each in (*own, *_event_keys(tx, request)):
        deleted += tx.get(each.family, each.encode()) is not None
        tx.delete(each.family, each.encode())
    return DeletedRows(deleted, done=True)


def _delete_page(
    tx: Transaction,
    kind: type[SignatureKey | InputKey | AckKey | TrailKey],
    request_id: RequestId,
    rows_max: int,
) -> int:
    page = tx.page(kind.family, request_prefix(kind, request_id), rows_max=rows_max)
    for child, _ in page.rows:
        tx.delete(kind.family, child)
    return len(page.rows)


def _event_keys(tx: Transaction, request: SigningRequest) -> list[Key]:
    """The keys that go with the request of its event: none if the event has a later request."""
    event = lock_event(tx, request.event_hash)
    if not event.is_of(request):
        return []
    found: list[Key] = [EventKey(event_hash=request.event_hash)]
    if event.use is not None and event.use.spent:
        return found
    found.append(EventUseKey(event_hash=request.event_hash))
    return found if event.by_id is None else [*found, event.by_id]

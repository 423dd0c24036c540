"""Requests: one attempt at a time to have an event signed by a group."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ledgerstone.errors import (
    BadInput,
    EventReplayed,
    KeyConflict,
    MoveNotAllowed,
    NotFound,
    RequestExpired,
)
from ledgerstone.signing import hashes
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.groups import Roster, check_group, member_key, roster
from ledgerstone.signing.keys import (
    NANOS_PER_DAY,
    ArchivedRequestKey,
    ContextKey,
    DueKey,
    EventUseKey,
    GroupKey,
    RequestKey,
)
from ledgerstone.signing.life import records, trail, volume
from ledgerstone.signing.life.event_use import (
    EventLink,
    EventUse,
    LockedEvent,
    accept,
    find_foreign_use,
    has_signatures,
    is_accepted,
    lock_event,
)
from ledgerstone.signing.life.events import get_event
from ledgerstone.signing.life.outgoing import add_outgoing
from ledgerstone.signing.life.trail import Created, Moved, RequestContext, TrailEntry
from ledgerstone.signing.states import FINISHED, Status, check_move
from ledgerstone.signing.values import (
    GroupConfig,
    GroupId,
    PeerId,
    Pending,
    RequestDecision,
    RequestId,
    SigningRequest,
    Stored,
)

LIFE_NANOS_MAX = 366 * NANOS_PER_DAY
"""An approved request keeps its amount reserved until it ends, so each one must end."""
SERVICE = PeerId("")
"""The actor of what no peer did."""


class OpenRequest(NamedTuple):
    """A request under its lock, and its group."""

    request: SigningRequest
    context: RequestContext
    group: GroupConfig
    members: Roster


def upsert_group_config(tx: Transaction, config: GroupConfig) -> GroupId:
    """Store a group under the hash of its content; BadInput lists what is wrong with it."""
    check_group(config)
    group_id = hashes.group_id(config)
    records.save(tx, GroupKey(group_id=group_id), config)
    return group_id


def get_group_config(reader: Reader, group_id: GroupId) -> GroupConfig:
    """The group, or NotFound."""
    key = GroupKey(group_id=group_id)
    return records.load(reader, GroupConfig, key, f"group {group_id.hex()}")


def insert_request(
    tx: Transaction, request: SigningRequest, *, group_id: GroupId, now_nanos: int
) -> Stored:
    """Begin a request of a group for an event.

    - The same request again is SAME, also after it has moved on; another one with its id is
      KeyConflict.
    - NotFound unless event and group are there; NotAMember unless the coordinator is a member.
    - EventReplayed if the event has another request, unless that one ended without being finalized
      and without a signature: a transaction with signatures may still be sent. Also if its source
      gave the same id to another event that was accepted.
    """
    _check_new(request)
    # Locked before it is read for good: nobody deletes the event meanwhile.
    locked = lock_event(tx, request.event_hash)
    event = get_event(tx, request.event_hash)
    config = get_group_config(tx, group_id)
    member_key(roster(config), request.coordinator_peer_id)
    known = records.lock(tx, SigningRequest, RequestKey(request_id=request.request_id))
    if known is None:
        archived = ArchivedRequestKey(request_id=request.request_id)
        known = records.find(tx, SigningRequest, archived)
    if known is not None:
        return _same_request(tx, known, request, group_id)
    if request.expires_at_nanos <= now_nanos:
        raise BadInput("expires_at_nanos is in the past")
    if request.expires_at_nanos > now_nanos + LIFE_NANOS_MAX:
        raise BadInput("expires_at_nanos is more than a year ahead")
    used_by = locked.use
    if not is_accepted(tx, event, request.event_hash):
        # Another program stored it; from now on it is known by the id of its source, too.
        used_by = used_by or find_foreign_use(tx, request.event_hash)
        accept(tx, event, request.event_hash)
    if used_by is not None and not _is_over(tx, used_by):
        raise EventReplayed(f"the event has the request {used_by.request_id!r}")
    records.save(
        tx,
        EventUseKey(event_hash=request.event_hash),
        EventUse(request_id=request.request_id),
    )
    _add_due(tx, request)
    records.save(tx, RequestKey(request_id=request.request_id), request)
    context = RequestContext(group_id=group_id, created_at_nanos=now_nanos)
    entry = TrailEntry(at_nanos=now_nanos, actor=request.coordinator_peer_id, happened=Created())
    trail.append(tx, request, context, entry)
    return Stored.NEW


def _check_new(request: SigningRequest) -> None:
    later = (request.final_tx_id, request.final_tx_accepted_blue_score)
    if request.decision != Pending() or later != (None, None):
        raise BadInput("a new request is pending, and has no final transaction")


def _same_request(
    tx: Transaction, known: SigningRequest, request: SigningRequest, group_id: GroupId
) -> Stored:
    as_new = msgspec.structs.replace(
        known, decision=Pending(), final_tx_id=None, final_tx_accepted_blue_score=None
    )
    if as_new != request or _context(tx, known.request_id).group_id != group_id:
        raise KeyConflict(f"there is another request {request.request_id!r}")
    return Stored.SAME


def _is_over(tx: Transaction, use: EventUse) -> bool:
    """Whether an earlier request of an event can no longer lead to a payment."""
    if use.spent:
        return False
    earlier = records.lock(tx, SigningRequest, RequestKey(request_id=use.request_id))
    if earlier is None:
        archived = ArchivedRequestKey(request_id=use.request_id)
        earlier = records.find(tx, SigningRequest, archived)
    if earlier is None or earlier.decision.status not in FINISHED - {Status.FINALIZED}:
        return False
    return not has_signatures(tx, use.request_id)


def _add_due(tx: Transaction, request: SigningRequest) -> None:
    key = due_key(request)
    tx.put(key.family, key.encode(), b"")


def due_key(request: SigningRequest) -> DueKey:
    """Where the request is in the order of due times."""
    return DueKey(expires_at_nanos=request.expires_at_nanos, request_id=request.request_id)


def adopt_request(
    tx: Transaction, request_id: RequestId, *, group_id: GroupId, now_nanos: int
) -> Stored:
    """Give a request that another program stored its group, and its event this one request.

    An approved one reserves its amount: it will be paid, and the limit of a day counts it.
    KeyConflict if it has another group; EventReplayed if it is open, and its event has another
    request.
    """
    found = records.load(
        tx, SigningRequest, RequestKey(request_id=request_id), f"request {request_id!r}"
    )
    event = lock_event(tx, found.event_hash)
    request = lock_request(tx, request_id)
    get_group_config(tx, group_id)
    known = records.find(tx, RequestContext, ContextKey(request_id=request_id))
    if known is not None:
        if known.group_id != group_id:
            raise KeyConflict(f"the request {request_id!r} belongs to another group")
        return Stored.SAME
    _take_over_event(tx, request, event)
    context = RequestContext(group_id=group_id, created_at_nanos=now_nanos)
    if request.decision.status is Status.APPROVED:
        amount = get_event(tx, request.event_hash).amount_sompi
        volume.reserve(tx, amount)
        context = msgspec.structs.replace(context, reserved_sompi=amount)
    if request.decision.status not in FINISHED:
        _add_due(tx, request)
    entry = TrailEntry(at_nanos=now_nanos, actor=SERVICE, happened=Created(), detail="adopted")
    trail.append(tx, request, context, entry)
    return Stored.NEW


def _take_over_event(tx: Transaction, request: SigningRequest, event: LockedEvent) -> None:
    use = event.use or find_foreign_use(tx, request.event_hash)
    assert use is not None, "the request itself was found"
    if use.request_id != request.request_id and request.decision.status not in FINISHED:
        if not _is_over(tx, use):
            raise EventReplayed(f"the event has the request {use.request_id!r}")
        use = EventUse(request_id=request.request_id)
    if use != event.use:
        records.save(tx, EventUseKey(event_hash=request.event_hash), use)
    if event.by_id is not None and records.find(tx, EventLink, event.by_id) is None:
        records.save(tx, event.by_id, EventLink(event_hash=request.event_hash))


def get_request(reader: Reader, request_id: RequestId) -> SigningRequest:
    """The request, also an archived one, or NotFound."""
    active = records.find(reader, SigningRequest, RequestKey(request_id=request_id))
    if active is not None:
        return active
    archived = ArchivedRequestKey(request_id=request_id)
    return records.load(reader, SigningRequest, archived, f"request {request_id!r}")


def lock_request(tx: Transaction, request_id: RequestId) -> SigningRequest:
    """The request under its lock, or NotFound."""
    request = records.lock(tx, SigningRequest, RequestKey(request_id=request_id))
    if request is None:
        raise NotFound(f"there is no request {request_id!r}")
    return request


def open_request(tx: Transaction, request_id: RequestId) -> OpenRequest:
    """The request under its lock, with its group."""
    request = lock_request(tx, request_id)
    context = _context(tx, request_id)
    config = get_group_config(tx, context.group_id)
    return OpenRequest(request, context, config, roster(config))


def group_of(reader: Reader, request_id: RequestId) -> GroupConfig:
    """The group of a request, or NotFound."""
    get_request(reader, request_id)
    return get_group_config(reader, _context(reader, request_id).group_id)


def find_context(reader: Reader, request_id: RequestId) -> RequestContext | None:
    """The record that Ledgerstone keeps of the request; None if another program stored it."""
    return records.find(reader, RequestContext, ContextKey(request_id=request_id))


def _context(reader: Reader, request_id: RequestId) -> RequestContext:
    key = ContextKey(request_id=request_id)
    return records.load(reader, RequestContext, key, f"group of the request {request_id!r}")


def check_live(request: SigningRequest, now_nanos: int, *allowed: Status) -> None:
    """MoveNotAllowed unless it is in one of these states, RequestExpired after its time."""
    if request.decision.status not in allowed:
        raise MoveNotAllowed(
            f"the request {request.request_id!r} is {request.decision.status.value}"
        )
    if now_nanos >= request.expires_at_nanos:
        raise RequestExpired(f"the time of the request {request.request_id!r} has run out")


def move(
    tx: Transaction,
    opened: OpenRequest,
    decision: RequestDecision,
    *,
    actor: PeerId,
    now_nanos: int,
    detail: str = "",
) -> OpenRequest:
    """Move a request to another state, on record; a move that ends it releases its reservation.

    MoveNotAllowed unless the table has the move.
    """
    before, after = opened.request.decision.status, decision.status
    check_move(before, after)
    request = msgspec.structs.replace(opened.request, decision=decision)
    context = opened.context
    if after in FINISHED:
        context = _finish(tx, request, context, now_nanos)
    records.save(tx, RequestKey(request_id=request.request_id), request)
    happened = Moved(before=before.value, after=after.value)
    entry = TrailEntry(at_nanos=now_nanos, actor=actor, happened=happened, detail=detail)
    return opened._replace(request=request, context=trail.append(tx, request, context, entry))


def _finish(
    tx: Transaction, request: SigningRequest, context: RequestContext, now_nanos: int
) -> RequestContext:
    """Give back what is reserved, expire it no more, and have its end published."""
    if context.reserved_sompi:
        volume.release(tx, context.reserved_sompi)
    due = due_key(request)
    tx.delete(due.family, due.encode())
    add_outgoing(tx, request, group_id=context.group_id, now_nanos=now_nanos)
    return msgspec.structs.replace(context, reserved_sompi=0, finished_at_nanos=now_nanos)

"""Applying an event: it is written down, projected, and what waits for it is woken, or it waits.

    identity ──▶ in the log? ──yes──▶ nothing happens
                     │ no
                     ▼
                 projector ──▶ keys unblocked: their markers become due
                     │ Blocked
                     ▼
                 undone, and kept in `blocked` under its first reason

An event that waits must not miss its key: another transaction may commit it after this one has
looked. So where two can write at once, the marker of the key is locked and the event tried again
before it is kept: the transaction that unblocks the key changes the same marker, before or after
this commit.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import msgspec

from ledgerstone.errors import Hopeless
from ledgerstone.failpoints import hit
from ledgerstone.protocols import log, rechecks, waiting
from ledgerstone.protocols.connection import Projecting, Reading
from ledgerstone.protocols.events import Envelope, decode, identity_of
from ledgerstone.protocols.protocol import Projector, Protocol
from ledgerstone.protocols.results import Blocked, Reason
from ledgerstone.store.transaction import Transaction

REASONS_MAX = 32
"""So many markers one event locks while it is tried."""
WIRE = "ledgerstone.wire"
"""The type of bytes that the decoder of a protocol cannot read yet."""


class Applied(Enum):
    """What became of an event."""

    NEW = "new"
    KNOWN = "known"
    BLOCKED = "blocked"
    DROPPED = "dropped"
    """The decoder says that it is not for us."""


def received(protocol: Protocol, blob: bytes, received_by: str, created_at_ms: int) -> Envelope:
    """The envelope of an item of `incoming`; bytes for a decoder travel as they are."""
    if protocol.decode is None:
        envelope = decode(blob)
        changes: dict[str, Any] = {}
        if received_by and not envelope.received_by:
            changes["received_by"] = received_by
        if not envelope.created_at_ms:
            changes["created_at_ms"] = created_at_ms
        return msgspec.structs.replace(envelope, **changes) if changes else envelope
    return Envelope(
        type=WIRE,
        data={"blob": base64.b64encode(blob).decode()},
        event_id=identity_of(WIRE, blob),
        received_by=received_by,
        created_at_ms=created_at_ms,
    )


def apply(tx: Transaction, protocol: Protocol, envelope: Envelope, now: int) -> Applied:
    """Apply an event; raises what its projector raises, Blocked too: then undo it all."""
    if envelope.type == WIRE:
        return _apply_wire(tx, protocol, envelope, now)
    projector = _projector_of(protocol, envelope.type)
    event, payload = log.identified(protocol, envelope, now)
    if not log.append(tx, protocol.name, event, payload):
        return Applied.KNOWN
    if projector is not None:
        db = Projecting(tx, protocol, now)
        projector(db, event)
        hit("protocols.projected")
        if db.unblocked:
            rechecks.wake(tx, protocol.name, db.unblocked)
    return Applied.NEW


def place(
    tx: Transaction, protocol: Protocol, envelope: Envelope, now: int, *, kept_as: int | None = None
) -> Applied:
    """Apply an event, or keep it in `blocked`; `kept_as` is its number there."""
    locked: set[Reason] = set()
    while True:
        try:
            with tx.savepoint():
                return apply(tx, protocol, envelope, now)
        except Blocked as blocked:
            reasons = blocked.reasons
        first = reasons[0]
        if tx.database.dialect.one_writer or first in locked:
            break
        if len(locked) == REASONS_MAX:
            raise Hopeless(f"it names more than {REASONS_MAX} reasons, one after the other")
        rechecks.lock(tx, protocol.name, first)
        locked.add(first)
    event = envelope if envelope.type == WIRE else log.identified(protocol, envelope, now)[0]
    waiting.keep(tx, protocol.name, event, reasons, now, kept_as=kept_as)
    return Applied.BLOCKED


def apply_all(
    tx: Transaction, protocol: Protocol, envelopes: Sequence[Envelope], now: int
) -> list[Applied]:
    """Apply many in order, when all are new and none waits; otherwise nothing, and Mixed.

    Their rows are sent together, before the first projector runs.
    """
    types = {each.type for each in envelopes}
    if WIRE in types:
        raise Mixed
    projectors = {kind: _projector_of(protocol, kind) for kind in types}
    events = log.append_all(tx, protocol, envelopes, now)
    if events is None:
        raise Mixed
    db = Projecting(tx, protocol, now)
    try:
        # Events that are only kept are not made a second time.
        for event in events if any(projectors.values()) else ():
            if (projector := projectors[event.type]) is not None:
                projector(db, event)
    except Blocked as blocked:
        raise Mixed from blocked
    if db.unblocked:
        rechecks.wake(tx, protocol.name, db.unblocked)
    return [Applied.NEW] * len(envelopes)


class Mixed(Exception):
    """Some events of a batch are known, or wait: each has to be looked at by itself."""


def place_all(
    tx: Transaction, protocol: Protocol, envelopes: Iterable[Envelope], now: int
) -> list[Applied]:
    """Apply many, one after the other; those that wait are kept."""
    return [place(tx, protocol, each, now) for each in envelopes]


def wire_of(envelope: Envelope) -> bytes:
    """The bytes that travel in an envelope of the type WIRE."""
    return base64.b64decode(envelope.data["blob"])


def _apply_wire(tx: Transaction, protocol: Protocol, wire: Envelope, now: int) -> Applied:
    assert protocol.decode is not None
    blob = wire_of(wire)
    inner = protocol.decode(Reading(tx, protocol.name, now), blob)
    if inner is None:
        return Applied.DROPPED
    inner.check()
    if not inner.received_by or not inner.created_at_ms:
        inner = msgspec.structs.replace(
            inner,
            received_by=inner.received_by or wire.received_by,
            created_at_ms=inner.created_at_ms or wire.created_at_ms,
        )
    if inner.type == WIRE:
        raise Hopeless("a decoder answers an event, and not bytes for a decoder")
    return apply(tx, protocol, inner, now)


def _projector_of(protocol: Protocol, kind: str) -> Projector | None:
    try:
        return protocol.projectors[kind]
    except KeyError:
        raise Hopeless(f"the protocol {protocol.name} knows no event {kind!r}") from None

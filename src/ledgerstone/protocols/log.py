"""The log of events: appended to, never changed; one of an identity for each that receives it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, select

from ledgerstone.errors import EventsPruned, KeyConflict
from ledgerstone.items.sequence import Sequence
from ledgerstone.protocols.events import Envelope, data_of, identity_of, payload_of
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.tables import (
    KEY_CHARS_MAX,
    event_position,
    events,
    protocol_progress,
)
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction

SEQUENCE = Sequence(
    name="events",
    number=events.c.id,
    position=event_position.c.position,
    numbered=event_position.c.number,
    progress=protocol_progress,
)
"""The order of the commits, where numbers do not follow them."""
_COLUMNS = (
    "event_type",
    "created_at_ms",
    "payload",
    "protocol",
    "received_by",
    "event_id",
)
_append = InsertRows("protocols.append", events, columns=_COLUMNS)
_content = Statement(
    "protocols.content",
    select(events.c.event_type, events.c.payload).where(
        events.c.event_id == bindparam("event_id_"),
        events.c.received_by == bindparam("received_by_"),
        events.c.protocol == bindparam("protocol_"),
    ),
)
_now = Statement("protocols.now", select(now_ms()))
_READ = (
    events.c.id,
    events.c.event_type,
    events.c.created_at_ms,
    events.c.payload,
    events.c.received_by,
    events.c.event_id,
)
_after = Statement(
    "protocols.events_after",
    select(*_READ)
    .where(
        events.c.protocol == bindparam("protocol_"),
        events.c.id > bindparam("after_", type_=BigInteger()),
    )
    .order_by(events.c.id)
    .limit(bindparam("limit", type_=BigInteger())),
)
PRUNED_HINT = "`protocols snapshots` says how far; what came of it is in the protocol's tables"


def now_of(tx: Transaction) -> int:
    """The moment, by the clock that decides."""
    (row,) = _now.rows(tx)
    return int(row[0])


def identified(protocol: Protocol, envelope: Envelope, now: int) -> tuple[Envelope, bytes]:
    """The envelope with its identity and moment, and its content as the log keeps it."""
    payload = payload_of(envelope)
    if envelope.event_id and envelope.created_at_ms:
        return envelope, payload
    event_id = _identity(protocol, envelope, payload)
    return _with(envelope, event_id, now), payload


def _identity(protocol: Protocol, envelope: Envelope, payload: bytes) -> str:
    if envelope.event_id:
        return envelope.event_id
    if protocol.identify is not None and (made := protocol.identify(envelope)):
        check_name(made, "the identity of an event", chars_max=KEY_CHARS_MAX)
        return made
    return identity_of(envelope.type, payload)


def _with(envelope: Envelope, event_id: str, now: int) -> Envelope:
    return Envelope(
        type=envelope.type,
        data=envelope.data,
        event_id=event_id,
        received_by=envelope.received_by,
        created_at_ms=envelope.created_at_ms or now,
    )


def dated(envelope: Envelope, now: int) -> Envelope:
    """The envelope with a moment."""
    if envelope.created_at_ms:
        return envelope
    return msgspec.structs.replace(envelope, created_at_ms=now)


def append(tx: Transaction, protocol: str, event: Envelope, payload: bytes) -> bool:
    """Write down an event; False if it is there already, KeyConflict if with other content."""
    row = _row(protocol, event, payload, event.event_id, event.created_at_ms)
    if _append.run(tx, [row]):
        return True
    named = {name: row[name] for name in ("event_id_", "received_by_", "protocol_")}
    for kind, kept in _content.rows(tx, **named):
        # The content of an event that was pruned cannot be compared.
        check_same(event, kind, bytes(kept) or payload)
    return False


def check_same(event: Envelope, kind: str, payload: bytes) -> None:
    """KeyConflict unless the event that has the identity of this one has its content, too."""
    if (event.type, payload_of(event)) != (kind, payload):
        raise KeyConflict(f"the event {event.event_id} came before with other content")


def append_all(
    tx: Transaction, protocol: Protocol, envelopes: Several[Envelope], now: int
) -> Iterator[Envelope] | None:
    """Write down many; each with its identity, or None if one of them was there already."""
    name, rows = protocol.name, list[dict[str, Any]]()
    for each in envelopes:
        payload = payload_of(each)
        event_id = each.event_id or _identity(protocol, each, payload)
        rows.append(_row(name, each, payload, event_id, each.created_at_ms or now))
    if _append.run(tx, rows) < len(rows):
        return None
    return (_with(each, row["event_id_"], now) for each, row in zip(envelopes, rows, strict=True))


def _row(
    protocol: str, event: Envelope, payload: bytes, event_id: str, moment: int
) -> dict[str, Any]:
    return {
        "event_type_": event.type,
        "created_at_ms_": moment,
        "payload_": payload,
        "protocol_": protocol,
        "received_by_": event.received_by,
        "event_id_": event_id,
    }


def rows_after(tx: Transaction, protocol: str, number: int, *, limit: int) -> list[Row]:
    """Rows of the log behind a number, in order: for `envelope_of`."""
    return _after.rows(tx, protocol_=protocol, after_=number, limit=limit)


def is_pruned(row: Row) -> bool:
    """Whether the content of a row of the log was removed; an event without content has `{}`."""
    return not row[3]


def envelope_of(row: Row) -> Envelope:
    """The event of a row of the log: number, type, moment, content, identities."""
    number, kind, created, payload, received_by, event_id = row
    if is_pruned(row):
        raise EventsPruned(f"the content of event {number} was pruned", hint=PRUNED_HINT)
    return Envelope(
        type=kind,
        data=data_of(bytes(payload)),
        event_id=event_id or "",
        received_by=received_by,
        created_at_ms=created,
    )

"""`blocked`: events that wait for a key, each under the first thing that it lacks.

An event that lacks several things waits for the first of them. When that has come it is looked at
again, and waits for what it then lacks first: no key can be missed, and none is looked at twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, delete, select, update

from ledgerstone.protocols import log
from ledgerstone.protocols.events import Envelope, decode, encode, payload_of
from ledgerstone.protocols.results import Reason
from ledgerstone.protocols.tables import blocked
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

_number = bindparam("id_", type_=BigInteger())
_of = (
    (blocked.c.protocol == bindparam("protocol_"))
    & (blocked.c.reason_type == bindparam("reason_type_"))
    & (blocked.c.reason_key == bindparam("reason_key_"))
)
_keep = InsertRows(
    "protocols.block",
    blocked,
    columns=(
        *("reason_type", "reason_key", "envelope", "created_at_ms", "event_id", "protocol"),
        *("received_by", "event_type", "also"),
    ),
)
_content = Statement(
    "protocols.blocked_content",
    select(blocked.c.envelope).where(
        blocked.c.event_id == bindparam("event_id_"),
        blocked.c.received_by == bindparam("received_by_"),
        blocked.c.protocol == bindparam("protocol_"),
    ),
)
_rekey = Statement(
    "protocols.rekey",
    update(blocked)
    .where(blocked.c.id == _number)
    .values(
        reason_type=bindparam("reason_type_", type_=blocked.c.reason_type.type),
        reason_key=bindparam("reason_key_", type_=blocked.c.reason_key.type),
        also=bindparam("also_", type_=blocked.c.also.type),
        rechecks=blocked.c.rechecks + 1,
    ),
)
_lock = Statement(
    "protocols.lock_blocked",
    select(blocked.c.envelope).where(blocked.c.id == _number, _of).with_for_update(),
)
_numbers = Statement(
    "protocols.blocked_on",
    select(blocked.c.id)
    .where(_of, blocked.c.id > bindparam("after_", type_=BigInteger()))
    .order_by(blocked.c.id)
    .limit(bindparam("limit", type_=BigInteger())),
)
_remove = Statement("protocols.unblock", delete(blocked).where(blocked.c.id == _number))


def keep(
    tx: Transaction,
    protocol: str,
    event: Envelope,
    reasons: Sequence[Reason],
    now: int,
    *,
    kept_as: int | None,
) -> None:
    """Keep an event until its first reason is gone; one that waits already is left as it is.

    KeyConflict if the one that waits has the same identity and other content.
    """
    first, *others = reasons
    also = msgspec.json.encode([[each.type, each.key] for each in others]).decode()
    named = {
        "reason_type_": first.type,
        "reason_key_": first.key,
        "also_": also if others else None,
    }
    if kept_as is not None:
        _rekey.run(tx, id_=kept_as, **named)
        return
    row: dict[str, Any] = {
        **named,
        "envelope_": encode(event),
        "created_at_ms_": event.created_at_ms or now,
        "event_id_": event.event_id,
        "protocol_": protocol,
        "received_by_": event.received_by,
        "event_type_": event.type,
    }
    if not _keep.run(tx, [row]):
        named = {name: row[name] for name in ("event_id_", "received_by_", "protocol_")}
        for (kept,) in _content.rows(tx, **named):
            there = decode(bytes(kept))
            log.check_same(event, there.type, payload_of(there))


def waiting_for(
    tx: Transaction, protocol: str, reason: Reason, *, after: int, limit: int
) -> list[int]:
    """The numbers of events that wait for this, the oldest first, behind a number."""
    rows = _numbers.rows(tx, after_=after, limit=limit, **_named(protocol, reason))
    return [row[0] for row in rows]


def locked(tx: Transaction, protocol: str, reason: Reason, number: int) -> bytes | None:
    """The envelope of an event that still waits for this; nobody else changes it meanwhile."""
    row = _lock.one(tx, id_=number, **_named(protocol, reason))
    return None if row is None else bytes(row[0])


def remove(tx: Transaction, number: int) -> bool:
    """It waits no more; False if it was not there."""
    return bool(_remove.run(tx, id_=number))


def _named(protocol: str, reason: Reason) -> dict[str, str]:
    return {"protocol_": protocol, "reason_type_": reason.type, "reason_key_": reason.key}

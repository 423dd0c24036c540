"""`recheck_queue`: one marker for each key that has come, and what waits for it is tried again.

    unblock(key) ──▶ marker due, generation + 1 ──claim──▶ each event that waits for the key:
         ▲                   ▲                             applied, or kept under its next reason
         │                   └─ generation has changed ──◀──┘  otherwise: marker deleted
    a projector, in its transaction

Markers of one key are one row, so that many events that unblock it are one pass. A wake-up that
comes while a worker has the marker raises `generation`, and the marker is due again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import case, null

from ledgerstone.items import Begun, Delete, Items, More
from ledgerstone.protocols.refusals import refused_in
from ledgerstone.protocols.results import Reason
from ledgerstone.protocols.tables import recheck_queue as marker
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import UpsertRow
from ledgerstone.store.transaction import Transaction

CHANNEL = "protocols.rechecks"
_NAMED = ("partition_key", "reason_type", "protocol", "reason_key")
_wake = UpsertRow(
    "protocols.wake",
    marker,
    key=("partition_key",),
    columns=_NAMED,
    values={"available_at_ms": now_ms(), "generation": 1},
    changes={
        "available_at_ms": case(
            (marker.c.available_at_ms <= now_ms(), marker.c.available_at_ms), else_=now_ms()
        ),
        "generation": marker.c.generation + 1,
    },
)
_lock = UpsertRow(
    "protocols.lock_marker",
    marker,
    key=("partition_key",),
    columns=_NAMED,
    values={"available_at_ms": null(), "generation": 0},
    changes={},
)
MARKERS = Items(
    name=CHANNEL,
    table=marker,
    key=(marker.c.partition_key,),
    due=marker.c.available_at_ms,
    order=(marker.c.available_at_ms, marker.c.partition_key),
    token=marker.c.token,
    lease=marker.c.lease_until_ms,
    attempt=Begun(marker.c.attempts),
    worker=marker.c.worker,
    crashes=marker.c.crashes,
    error=marker.c.last_error,
    carries=(marker.c.protocol, marker.c.reason_type, marker.c.reason_key),
    done=Delete(),
    more=More(
        seen=(marker.c.generation,),
        arrived=lambda row: marker.c.generation != row.generation,
    ),
    index="idx_recheck_queue__due",
    refuse=refused_in(CHANNEL),
)


def wake(tx: Transaction, protocol: str, reasons: Iterable[Reason]) -> None:
    """These keys have come: what waits for them is looked at after the commit."""
    # In one order, so that two that wake the same keys do not wait for each other.
    for reason in sorted(reasons):
        _wake.run(tx, **_given(protocol, reason))
    tx.wake(CHANNEL)


def lock(tx: Transaction, protocol: str, reason: Reason) -> None:
    """Nobody unblocks this key until the transaction ends."""
    _lock.run(tx, **_given(protocol, reason))


def _given(protocol: str, reason: Reason) -> dict[str, Any]:
    return {
        "partition_key_": f"{protocol}/{reason.type}/{reason.key}",
        "reason_type_": reason.type,
        "protocol_": protocol,
        "reason_key_": reason.key,
    }

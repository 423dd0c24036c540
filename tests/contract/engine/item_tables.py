"""Example tables of leased items: one for each shape that a declaration can have.

anchor     counts failures; a state; stays when it is done
tx_ref     a key of four columns; no state, no attempts; idle when it is done
marker     no state; deleted when it is done, unless work arrived meanwhile
incoming   a state; counts attempts; deleted when it is done, parked when it is given up
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from ledgerstone.items import Begun, Delete, Failures, Idle, Items, More, State, ToState
from ledgerstone.items.events import events
from ledgerstone.store.schema.columns import (
    MYSQL_TABLE,
    NAMING,
    partial_index,
    serial_type,
    text_type,
)

ATTEMPTS_MAX = 4
CHARS = 100

tables = MetaData(naming_convention=NAMING)


def _leased() -> list[Column[Any]]:
    return [
        Column("token", BigInteger, nullable=False, server_default="0"),
        Column("lease_until_ms", BigInteger),
        Column("worker", String(CHARS)),
    ]


def _event(name: str, *of: Column[Any]) -> Table:
    return Table(
        name,
        tables,
        Column("id", serial_type(), primary_key=True, autoincrement=True),
        *of,
        Column("at_ms", BigInteger, nullable=False),
        Column("prev_status", String(16)),
        Column("next_status", String(16)),
        Column("attempt", Integer, nullable=False),
        Column("worker", String(CHARS)),
        Column("reason", text_type()),
        **MYSQL_TABLE,
    )


class AnchorState(Enum):
    """As the documented table spells them."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    FAILED = "failed"


anchor = Table(
    "outbox_jobs",
    tables,
    Column("id", String(36), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("last_error", text_type()),
    *_leased(),
    **MYSQL_TABLE,
)
partial_index(
    "idx_outbox_jobs_due",
    anchor.c.next_attempt_ms,
    anchor.c.id,
    where=anchor.c.status == AnchorState.QUEUED.value,
    leading=(anchor.c.status,),
)
anchor_event = _event("anchor_event", Column("anchor_id", String(36), nullable=False))
_failures = Failures(anchor.c.attempts)
ANCHORS = Items(
    name="anchors",
    table=anchor,
    key=(anchor.c.id,),
    due=anchor.c.next_attempt_ms,
    order=(anchor.c.next_attempt_ms, anchor.c.id),
    state=State(
        column=anchor.c.status,
        due=AnchorState.QUEUED,
        held=AnchorState.IN_PROGRESS,
        dead=AnchorState.FAILED,
        ended=frozenset({AnchorState.DONE, AnchorState.FAILED}),
        moves=frozenset(
            {
                (AnchorState.QUEUED, AnchorState.IN_PROGRESS),
                (AnchorState.IN_PROGRESS, AnchorState.DONE),
                (AnchorState.IN_PROGRESS, AnchorState.QUEUED),
                (AnchorState.IN_PROGRESS, AnchorState.FAILED),
            }
        ),
    ),
    done=ToState(AnchorState.DONE),
    attempt=_failures,
    attempts_max=ATTEMPTS_MAX,
    token=anchor.c.token,
    lease=anchor.c.lease_until_ms,
    worker=anchor.c.worker,
    crashes=anchor.c.crashes,
    error=anchor.c.last_error,
    changed=anchor.c.updated_ms,
    history=events(
        "anchors",
        anchor_event,
        of=[anchor_event.c.anchor_id],
        key=[anchor.c.id],
        attempt=_failures,
    ),
)

tx_ref = Table(
    "outbox_tx_refs",
    tables,
    Column("job_id", String(36), primary_key=True),
    Column("chain", String(16), primary_key=True),
    Column("network", Integer, primary_key=True, autoincrement=False),
    Column("tx_hash", String(64), primary_key=True),
    Column("confirmed", Integer, nullable=False, server_default="0"),
    Column("next_check_ms", BigInteger),
    *_leased(),
    **MYSQL_TABLE,
)
partial_index(
    "idx_outbox_tx_refs_due",
    tx_ref.c.chain,
    tx_ref.c.next_check_ms,
    *[tx_ref.c[name] for name in ("job_id", "network", "tx_hash")],
    where=tx_ref.c.lease_until_ms.is_(None),
    leading=(tx_ref.c.lease_until_ms,),
)
_of_tx_ref: list[Column[Any]] = [
    Column("of_job", String(36), nullable=False),
    Column("of_chain", String(16), nullable=False),
    Column("of_network", Integer, nullable=False),
    Column("of_tx", String(64), nullable=False),
]
tx_ref_event = _event("tx_ref_event", *_of_tx_ref)
TX_REFS = Items(
    name="tx_refs",
    table=tx_ref,
    key=(tx_ref.c.job_id, tx_ref.c.chain, tx_ref.c.network, tx_ref.c.tx_hash),
    due=tx_ref.c.next_check_ms,
    order=(tx_ref.c.next_check_ms, tx_ref.c.job_id, tx_ref.c.network, tx_ref.c.tx_hash),
    ready=tx_ref.c.confirmed == 0,
    done=Idle({"confirmed": 1}),
    token=tx_ref.c.token,
    lease=tx_ref.c.lease_until_ms,
    worker=tx_ref.c.worker,
    history=events(
        "tx_refs",
        tx_ref_event,
        of=_of_tx_ref,
        key=(tx_ref.c.job_id, tx_ref.c.chain, tx_ref.c.network, tx_ref.c.tx_hash),
        attempt=None,
    ),
)

marker = Table(
    "recheck_marker",
    tables,
    Column("identity", String(36), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("available_at_ms", BigInteger),
    Column("attempt", Integer, nullable=False, server_default="0"),
    *_leased(),
    **MYSQL_TABLE,
)
partial_index(
    "idx_recheck_marker_due",
    marker.c.available_at_ms,
    marker.c.identity,
    where=marker.c.lease_until_ms.is_(None),
    leading=(marker.c.lease_until_ms,),
)
marker_event = _event("marker_event", Column("marker_id", String(36), nullable=False))
_checks = Begun(marker.c.attempt)
MARKERS = Items(
    name="markers",
    table=marker,
    key=(marker.c.identity,),
    due=marker.c.available_at_ms,
    order=(marker.c.available_at_ms, marker.c.identity),
    done=Delete(),
    attempt=_checks,
    token=marker.c.token,
    lease=marker.c.lease_until_ms,
    worker=marker.c.worker,
    more=More(
        seen=(marker.c.generation,),
        arrived=lambda row: marker.c.generation != row.generation,
    ),
    history=events(
        "markers",
        marker_event,
        of=[marker_event.c.marker_id],
        key=[marker.c.identity],
        attempt=_checks,
    ),
)


class IncomingState(Enum):
    """Where an incoming envelope stands."""

    WAITING = "waiting"
    HELD = "held"
    PARKED = "parked"


incoming = Table(
    "incoming_envelope",
    tables,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("due_ms", BigInteger, nullable=False),
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("error", String(50)),
    *_leased(),
    **MYSQL_TABLE,
)
partial_index(
    "idx_incoming_due",
    incoming.c.due_ms,
    incoming.c.id,
    where=incoming.c.state == IncomingState.WAITING.value,
    leading=(incoming.c.state,),
)
incoming_event = _event("incoming_event", Column("incoming_id", Integer, nullable=False))
_begun = Begun(incoming.c.attempt)
INCOMING = Items(
    name="incoming",
    table=incoming,
    key=(incoming.c.id,),
    due=incoming.c.due_ms,
    order=(incoming.c.due_ms, incoming.c.id),
    state=State(
        column=incoming.c.state,
        due=IncomingState.WAITING,
        held=IncomingState.HELD,
        dead=IncomingState.PARKED,
        ended=frozenset({IncomingState.PARKED}),
        moves=frozenset(
            {
                (IncomingState.WAITING, IncomingState.HELD),
                (IncomingState.HELD, IncomingState.WAITING),
                (IncomingState.HELD, IncomingState.PARKED),
            }
        ),
    ),
    done=Delete(),
    attempt=_begun,
    attempts_max=ATTEMPTS_MAX,
    token=incoming.c.token,
    lease=incoming.c.lease_until_ms,
    worker=incoming.c.worker,
    crashes=incoming.c.crashes,
    error=incoming.c.error,
    history=events(
        "incoming",
        incoming_event,
        of=[incoming_event.c.incoming_id],
        key=[incoming.c.id],
        attempt=_begun,
    ),
)

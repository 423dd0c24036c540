"""Requests that ended and are to be published, until the ledger has their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import EventKey, OutgoingKey
from ledgerstone.signing.life import records
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    U64,
    EventHash,
    GroupId,
    RequestId,
    SigningEvent,
    SigningRequest,
    TransactionId,
)

PUBLISHED = frozenset({Status.FINALIZED, Status.REJECTED})
"""The ends that are published."""


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The published facts of a request; `at_nanos` is when it ended, by our clock."""

    request_id: RequestId
    group_id: GroupId
    event_hash: EventHash
    event_id: str
    status: str
    reason: str
    destination_address: str
    amount_sompi: U64
    final_tx_id: TransactionId | None
    at_nanos: U64


def add_outgoing(
    tx: Transaction, request: SigningRequest, *, group_id: GroupId, now_nanos: int
) -> None:
    """Have the end of a request published, if it is one that is."""
    decision = request.decision
    if decision.status not in PUBLISHED:
        return
    event = records.find(tx, SigningEvent, EventKey(event_hash=request.event_hash))
    finished = FinishedRequest(
        request_id=request.request_id,
        group_id=group_id,
        event_hash=request.event_hash,
        event_id=event.event_id if event else "",
        status=decision.status.value,
        reason=getattr(decision, "reason", ""),
        destination_address=event.destination_address if event else "",
        amount_sompi=event.amount_sompi if event else 0,
        final_tx_id=request.final_tx_id,
        at_nanos=now_nanos,
    )
    records.save(tx, _key(finished), finished)


def list_outgoing(reader: Reader, *, rows_max: int) -> Sequence[FinishedRequest]:
    """The first requests that are to be published, the earliest end first."""
    page = reader.page(OutgoingKey.family, OutgoingKey.prefix, rows_max=rows_max)
    return [records.decoded(FinishedRequest, key, value) for key, value in page.rows]


def remove_outgoing(tx: Transaction, published: Iterable[FinishedRequest]) -> None:
    """Forget requests whose messages the ledger has."""
    for finished in published:
        key = _key(finished)
        tx.delete(key.family, key.encode())


def _key(finished: FinishedRequest) -> OutgoingKey:
    return OutgoingKey(at_nanos=finished.at_nanos, request_id=finished.request_id)

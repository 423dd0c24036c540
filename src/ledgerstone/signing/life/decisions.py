"""Decisions that a caller asks for by name: each is allowed only where the facts say the same."""

from __future__ import annotations

from typing import assert_never

from ledgerstone.errors import MoveNotAllowed, NotAllowedNow
from ledgerstone.signing.access import Transaction
from ledgerstone.signing.life.acks import decide
from ledgerstone.signing.life.finishing import abort_request, expire_request
from ledgerstone.signing.life.requests import check_live, open_request
from ledgerstone.signing.states import Status, check_move
from ledgerstone.signing.values import (
    Aborted,
    Approved,
    Expired,
    Finalized,
    Pending,
    Rejected,
    RequestDecision,
    RequestId,
    Stored,
)


def update_request_decision(
    tx: Transaction, request_id: RequestId, decision: RequestDecision, *, now_nanos: int
) -> Stored:
    """Move a request to a decision that the table of moves and the facts allow.

    - The decision that stands already is SAME.
    - Approved and Rejected count the stored votes again: of use for a request of another program,
      whose votes were stored without being counted. MoveNotAllowed if they decide otherwise.
    - Expired needs a time that has run out. Aborted is in the name of the coordinator.
    - Finalized is NotAllowedNow: it needs the transaction, see `update_request_final_tx`.
    """
    opened = open_request(tx, request_id)
    status = opened.request.decision.status
    if status is decision.status:
        return Stored.SAME
    check_move(status, decision.status)
    match decision:
        case Approved() | Rejected():
            check_live(opened.request, now_nanos, Status.PENDING)
            coordinator = opened.request.coordinator_peer_id
            decided = decide(tx, opened, actor=coordinator, now_nanos=now_nanos)
            if decided.request.decision.status is not decision.status:
                found = decided.request.decision.status.value
                raise MoveNotAllowed(f"the votes on {request_id!r} say {found}")
        case Expired():
            if not expire_request(tx, request_id, now_nanos=now_nanos):
                raise NotAllowedNow(f"the request {request_id!r} is not to be expired")
        case Aborted(reason=reason):
            coordinator = opened.request.coordinator_peer_id
            abort_request(tx, request_id, peer_id=coordinator, reason=reason, now_nanos=now_nanos)
        case Finalized() | Pending():
            raise NotAllowedNow("a request is finalized by its final transaction")
        case never:
            assert_never(never)
    return Stored.NEW

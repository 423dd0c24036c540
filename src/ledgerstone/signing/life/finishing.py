"""The ends of a request: finalized, expired, aborted."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ledgerstone.errors import BadInput, KeyConflict, NotAllowedNow, ThresholdNotMet, TooLarge
from ledgerstone.signing import hashes
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import DueKey, RequestKey, parse
from ledgerstone.signing.life import records, volume
from ledgerstone.signing.life.acks import REASON_BYTES_MAX
from ledgerstone.signing.life.events import get_event
from ledgerstone.signing.life.requests import SERVICE, due_key, lock_request, move, open_request
from ledgerstone.signing.life.signatures import signatures_missing
from ledgerstone.signing.states import FINISHED, Status, check_move
from ledgerstone.signing.values import (
    Aborted,
    Expired,
    Finalized,
    PeerId,
    RequestId,
    SigningRequest,
    Stored,
    TransactionId,
)


class DueRequests(NamedTuple):
    """Some requests with their keys, and where to go on; None if no other one is due."""

    request_ids: list[RequestId]
    keys: list[bytes]
    after: bytes | None


def update_request_final_tx(
    tx: Transaction, request_id: RequestId, final_tx_id: TransactionId, *, now_nanos: int
) -> Stored:
    """Record that the transaction was sent: finalized, and its amount in the volume of today.

    - The same transaction again is SAME, and adds no volume; another one is KeyConflict.
    - ThresholdNotMet unless every input has M verified signatures.
    - It may happen after the time of the request: the transaction has been sent.
    """
    if type(final_tx_id) is not bytes or len(final_tx_id) != hashes.HASH_BYTES:
        raise BadInput(f"a transaction id has {hashes.HASH_BYTES} bytes, not {final_tx_id!r:.80}")
    opened = open_request(tx, request_id)
    known = opened.request.final_tx_id
    if opened.request.decision.status is Status.FINALIZED:
        if known != final_tx_id:
            raise KeyConflict(f"the request {request_id!r} was finalized by another transaction")
        return Stored.SAME
    check_move(opened.request.decision.status, Status.FINALIZED)
    missing = signatures_missing(tx, request_id, opened.group)
    if missing is not None:
        needs = ", ".join(f"input {index} needs {count}" for index, count in missing.items())
        raise ThresholdNotMet(f"signatures are missing: {needs or 'there are no inputs'}")
    amount = get_event(tx, opened.request.event_hash).amount_sompi
    volume.settle(
        tx,
        reserved_sompi=opened.context.reserved_sompi,
        paid_sompi=amount,
        now_nanos=now_nanos,
    )
    settled = opened._replace(
        request=msgspec.structs.replace(opened.request, final_tx_id=final_tx_id),
        context=msgspec.structs.replace(opened.context, reserved_sompi=0),
    )
    coordinator = opened.request.coordinator_peer_id
    move(tx, settled, Finalized(), actor=coordinator, now_nanos=now_nanos, detail=final_tx_id.hex())
    return Stored.NEW


def update_request_final_tx_score(
    tx: Transaction, request_id: RequestId, blue_score: int
) -> SigningRequest:
    """Record at which blue score the final transaction was accepted; a later call corrects it."""
    request = lock_request(tx, request_id)
    if request.decision.status is not Status.FINALIZED:
        raise NotAllowedNow(f"the request {request_id!r} is {request.decision.status.value}")
    scored = msgspec.structs.replace(request, final_tx_accepted_blue_score=blue_score)
    records.save(tx, RequestKey(request_id=request_id), scored)
    return scored


def abort_request(
    tx: Transaction, request_id: RequestId, *, peer_id: PeerId, reason: str, now_nanos: int
) -> Stored:
    """Give a request up; only its coordinator may. Aborting it again is SAME."""
    if len(reason.encode(errors="surrogatepass")) > REASON_BYTES_MAX:
        raise TooLarge(f"a reason has at most {REASON_BYTES_MAX} bytes")
    opened = open_request(tx, request_id)
    if peer_id != opened.request.coordinator_peer_id:
        raise NotAllowedNow(f"only its coordinator aborts the request {request_id!r}")
    if opened.request.decision.status is Status.ABORTED:
        return Stored.SAME
    move(tx, opened, Aborted(reason=reason), actor=peer_id, now_nanos=now_nanos)
    return Stored.NEW


def expire_request(tx: Transaction, request_id: RequestId, *, now_nanos: int) -> bool:
    """Expire a request whose time has run out; False if it is not to be expired.

    An approved request that has all its signatures is left alone, and is due no more: its
    transaction may have been sent, so its volume stays reserved until it is finalized or aborted.
    """
    opened = open_request(tx, request_id)
    request = opened.request
    if now_nanos < request.expires_at_nanos:
        return False
    approved = request.decision.status is Status.APPROVED
    if request.decision.status in FINISHED or (
        approved and signatures_missing(tx, request_id, opened.group) is None
    ):
        # Nothing is left to expire at the next sweep: another program may have finished it, and
        # signatures are never taken back.
        due = due_key(request)
        tx.delete(due.family, due.encode())
        return False
    move(tx, opened, Expired(), actor=SERVICE, now_nanos=now_nanos)
    return True


def list_due(
    reader: Reader, *, now_nanos: int, after: bytes | None = None, rows_max: int
) -> DueRequests:
    """Requests whose time has run out, the earliest first."""
    page = reader.page(DueKey.family, DueKey.prefix, after=after, rows_max=rows_max)
    found = [parse(key) for key, _ in page.rows]
    due = [key for key in found if isinstance(key, DueKey) and _is_due(key, now_nanos)]
    return DueRequests(
        [key.request_id for key in due],
        [key.encode() for key in due],
        page.after if len(due) == len(found) else None,
    )


def _is_due(key: DueKey, now_nanos: int) -> bool:
    return key.expires_at_nanos <= now_nanos

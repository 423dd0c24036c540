"""A request made of an event and a transaction: its ids, hashes and limit are worked out here."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ledgerstone.errors import BadInput, NotFound
from ledgerstone.ids import new_id
from ledgerstone.signing import hashes
from ledgerstone.signing.cli.documents import record
from ledgerstone.signing.signing import Signing
from ledgerstone.signing.values import (
    U32,
    U64,
    EventHash,
    GroupId,
    Hash32,
    PeerId,
    RequestId,
    RequestInput,
    SessionId,
    SigningRequest,
    Stored,
)

NANOS_PER_SECOND = 1_000_000_000
HASH_BYTES = 32


class ProposedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a proposed transaction, in its order."""

    utxo_tx_id: Hash32
    utxo_output_index: U32
    utxo_value: U64
    signing_hash: Hash32


class ProposedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction that a file proposes."""

    tx_template_hash: Hash32
    kpsbt_blob: bytes
    inputs: tuple[ProposedInput, ...]


class Begun(NamedTuple):
    """A request, and whether it is new."""

    request: SigningRequest
    stored: Stored


def begun(
    signing: Signing,
    *,
    event_hash: bytes,
    group_id: bytes,
    peer: str,
    request_id: str | None,
    file: str,
) -> Begun:
    """Store request, proposal and inputs for a stored event; the same again is SAME.

    The request expires after the group's session timeout, by our clock.
    """
    proposed = record(ProposedTransaction, file, "the transaction")
    if not proposed.inputs:
        raise BadInput("the transaction has no inputs: there is nothing to sign")
    event = signing.get_event(EventHash(event_hash))
    group = GroupId(group_id)
    timeout = signing.get_group_config(group).session_timeout_seconds
    known = RequestId(request_id or new_id())
    inputs = [_input(index, each) for index, each in enumerate(proposed.inputs)]
    template = _hash(proposed.tx_template_hash, "tx_template_hash")
    request = SigningRequest(
        request_id=known,
        session_id=SessionId(hashes.payload_hash(group + known.encode())),
        event_hash=EventHash(event_hash),
        coordinator_peer_id=PeerId(peer),
        tx_template_hash=template,
        validation_hash=hashes.validation_hash(
            EventHash(event_hash), template, [each.signing_hash for each in inputs]
        ),
        expires_at_nanos=_earlier_limit(signing, known)
        or signing.clock() + timeout * NANOS_PER_SECOND,
    )
    stored = signing.propose(
        request, group_id=group, event=event, inputs=inputs, kpsbt_blob=proposed.kpsbt_blob
    )
    return Begun(request, stored)


def _earlier_limit(signing: Signing, request_id: RequestId) -> int | None:
    """The limit of the request that is stored, so that the same call again is the same request."""
    try:
        return signing.get_request(request_id).expires_at_nanos
    except NotFound:
        return None


def _input(index: int, given: ProposedInput) -> RequestInput:
    where = f"inputs[{index}]"
    return RequestInput(
        input_index=index,
        utxo_tx_id=_hash(given.utxo_tx_id, f"{where}.utxo_tx_id"),
        utxo_output_index=given.utxo_output_index,
        utxo_value=given.utxo_value,
        signing_hash=_hash(given.signing_hash, f"{where}.signing_hash"),
    )


def _hash(data: bytes, what: str) -> bytes:
    if len(data) != HASH_BYTES:
        raise BadInput(f"{what} has {HASH_BYTES} bytes, not {len(data)}")
    return data

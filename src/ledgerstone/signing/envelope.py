"""Envelopes: how peers send each other messages, and how a receiver checks them.

The number of a message has two halves: the epoch, which a sender raises whenever it starts, and a
counter within it. A sender that was restarted begins a new epoch, so its messages are not mistaken
for those it sent before, and the key of a seen message stays the documented one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledgerstone.errors import BadInput, EnvelopeRefused, RateLimited
from ledgerstone.signing.bincode import encode
from ledgerstone.signing.hashes import payload_hash
from ledgerstone.signing.keys import check_peer_id
from ledgerstone.signing.rate import RateLimiter
from ledgerstone.signing.values import U64, GroupId, Hash32, PeerId, SessionId

PAYLOAD_BYTES_MAX = 10 * 1024 * 1024
AGE_NANOS_MAX = 24 * 60 * 60 * 1_000_000_000
"""Seen messages are kept for as long: an older message could have been seen and forgotten."""
AHEAD_NANOS_MAX = 5 * 60 * 1_000_000_000
"""How far the clock of a sender may be ahead of ours."""
COUNTER_MAX = 2**32 - 1
PEER_KEY_BYTES = 32
CONTEXT = "ledgerstone peer envelope 1"
"""Is signed with every envelope, so that the signature means nothing elsewhere."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a peer; the signature covers everything else."""

    sender_peer_id: PeerId
    group_id: GroupId
    session_id: SessionId
    seq_no: U64
    timestamp_nanos: U64
    payload: bytes
    payload_hash: Hash32
    signature: bytes


class _Signed(msgspec.Struct, frozen=True, kw_only=True):
    context: str
    sender_peer_id: PeerId
    group_id: GroupId
    session_id: SessionId
    seq_no: U64
    timestamp_nanos: U64
    payload_hash: Hash32


class PeerChecks:
    """Checks the envelopes of the peers of one group.

    `peer_keys` holds the Ed25519 key of every peer that may send; `limiter` bounds how often.
    """

    def __init__(
        self, *, group_id: GroupId, peer_keys: Mapping[PeerId, bytes], limiter: RateLimiter
    ) -> None:
        self._group_id = group_id
        self._limiter = limiter
        self._keys = {check_peer_id(peer): _public(key) for peer, key in peer_keys.items()}

    def check(
        self, envelope: Envelope, *, now_nanos: int, received_from: str | None = None
    ) -> None:
        """EnvelopeRefused unless the envelope may be delivered; a replay is noticed by the store.

        The rate limit comes first: it bounds how many signatures are verified. It counts for
        `received_from`, the connection or address that the message came by, where that is known:
        the sender's name alone can be claimed by anybody.
        """
        if envelope.sender_peer_id not in self._keys:
            raise EnvelopeRefused(f"{envelope.sender_peer_id!r:.80} is no peer of this group")
        if not self._limiter.allows(received_from or envelope.sender_peer_id):
            raise RateLimited(f"{envelope.sender_peer_id!r} sends too much")
        if len(envelope.payload) > PAYLOAD_BYTES_MAX:
            raise EnvelopeRefused(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes")
        if envelope.group_id != self._group_id:
            raise EnvelopeRefused("the message is for another group")
        age = now_nanos - envelope.timestamp_nanos
        if not -AHEAD_NANOS_MAX <= age <= AGE_NANOS_MAX:
            raise EnvelopeRefused(f"the message is {age // 1_000_000_000} seconds old")
        if payload_hash(envelope.payload) != envelope.payload_hash:
            raise EnvelopeRefused("the payload does not have the hash that was signed")
        try:
            self._keys[envelope.sender_peer_id].verify(envelope.signature, _signed(envelope))
        except (InvalidSignature, BadInput) as error:
            raise EnvelopeRefused(f"{envelope.sender_peer_id!r} did not sign it") from error


def seal_envelope(
    secret: bytes,
    *,
    sender_peer_id: PeerId,
    group_id: GroupId,
    session_id: SessionId,
    seq_no: int,
    timestamp_nanos: int,
    payload: bytes,
) -> Envelope:
    """An envelope signed with a peer's secret key (Ed25519, 32 bytes)."""
    unsigned = Envelope(
        sender_peer_id=check_peer_id(sender_peer_id),
        group_id=group_id,
        session_id=session_id,
        seq_no=seq_no,
        timestamp_nanos=timestamp_nanos,
        payload=payload,
        payload_hash=payload_hash(payload),
        signature=b"",
    )
    try:
        key = Ed25519PrivateKey.from_private_bytes(secret)
    except ValueError as error:
        raise BadInput(f"a peer's secret key has {PEER_KEY_BYTES} bytes") from error
    return msgspec.structs.replace(unsigned, signature=key.sign(_signed(unsigned)))


def sequence_number(*, epoch: int, counter: int) -> int:
    """The number of a message: the epoch above, the counter below."""
    if not (0 <= epoch <= COUNTER_MAX and 0 <= counter <= COUNTER_MAX):
        raise BadInput(f"an epoch and a counter are from 0 to {COUNTER_MAX}")
    return epoch << 32 | counter


def _signed(envelope: Envelope) -> bytes:
    return encode(
        _Signed(
            context=CONTEXT,
            sender_peer_id=envelope.sender_peer_id,
            group_id=envelope.group_id,
            session_id=envelope.session_id,
            seq_no=envelope.seq_no,
            timestamp_nanos=envelope.timestamp_nanos,
            payload_hash=envelope.payload_hash,
        )
    )


def _public(key: bytes) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(key)
    except ValueError as error:
        raise BadInput(f"a peer's key has {PEER_KEY_BYTES} bytes") from error

"""Messages of peers: who sent them, whole, fresh, and not too many."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput, EnvelopeRefused, LedgerstoneError, RateLimited
from ledgerstone.signing import envelope as envelopes
from ledgerstone.signing.bincode import decode, encode
from ledgerstone.signing.envelope import Envelope, PeerChecks, seal_envelope, sequence_number
from ledgerstone.signing.hashes import payload_hash
from ledgerstone.signing.rate import RateLimiter
from ledgerstone.signing.values import GroupId, PeerId, SessionId
from tests.signing.people import NOW, peer, secret

GROUP = GroupId(b"g" * 32)
SECOND = 1_000_000_000


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.nanos = 0

    def __call__(self) -> int:
        return self.nanos


def public(number: int) -> bytes:
    """The Ed25519 key of a peer."""
    return Ed25519PrivateKey.from_private_bytes(secret(number)).public_key().public_bytes_raw()


def checks(clock: Clock | None = None, **limits: int) -> PeerChecks:
    """Checks for the peers 1 and 2."""
    limiter = RateLimiter(clock or Clock(), **limits)
    return PeerChecks(
        group_id=GROUP, peer_keys={peer(n): public(n) for n in (1, 2)}, limiter=limiter
    )


def sealed(number: int = 1, *, signer: int | None = None, **fields: Any) -> Envelope:
    """An envelope from a peer."""
    given_fields: dict[str, Any] = {
        "sender_peer_id": peer(number),
        "group_id": GROUP,
        "session_id": SessionId(b"s" * 32),
        "seq_no": 1,
        "timestamp_nanos": NOW,
        "payload": b"hello",
    }
    return seal_envelope(secret(signer or number), **(given_fields | fields))


def test_a_sound_envelope() -> None:
    """An envelope that its sender signed is accepted."""
    checks().check(sealed(), now_nanos=NOW)
    checks().check(sealed(payload=b""), now_nanos=NOW)


CHANGES: list[dict[str, Any]] = [
    {"sender_peer_id": peer(2)},
    {"session_id": b"t" * 32},
    {"seq_no": 2},
    {"timestamp_nanos": NOW + 1},
    {"payload": b"hullo"},
    {"payload": b"hullo", "payload_hash": payload_hash(b"hullo")},
    {"payload_hash": b"h" * 32},
    {"group_id": b"h" * 32},
    {"signature": b""},
    {"signature": bytes(64)},
    {"sender_peer_id": peer(3)},
    {"session_id": b"short"},
    {"seq_no": 2**64},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_changed_envelopes(change: dict[str, Any]) -> None:
    """An envelope in which anything was changed is refused."""
    with pytest.raises(EnvelopeRefused):
        checks().check(msgspec.structs.replace(sealed(), **change), now_nanos=NOW)


def test_another_signer() -> None:
    """An envelope that one peer signed in the name of another is refused."""
    with pytest.raises(EnvelopeRefused, match="did not sign"):
        checks().check(sealed(1, signer=2), now_nanos=NOW)


def test_another_group() -> None:
    """An envelope for another group is refused, though its sender signed it."""
    with pytest.raises(EnvelopeRefused, match="another group"):
        checks().check(sealed(group_id=GroupId(b"h" * 32)), now_nanos=NOW)


@pytest.mark.parametrize(
    ("age", "accepted"),
    [
        (envelopes.AGE_NANOS_MAX, True),
        (envelopes.AGE_NANOS_MAX + 1, False),
        (-envelopes.AHEAD_NANOS_MAX, True),
        (-envelopes.AHEAD_NANOS_MAX - 1, False),
    ],
)
def test_age(age: int, accepted: bool) -> None:
    """A message older than seen messages are kept, or too far ahead of our clock, is refused."""
    message = sealed(timestamp_nanos=NOW - age)

    if accepted:
        checks().check(message, now_nanos=NOW)
    else:
        with pytest.raises(EnvelopeRefused, match="seconds old"):
            checks().check(message, now_nanos=NOW)


def test_a_large_payload() -> None:
    """A payload beyond the limit is refused before it is hashed."""
    large = msgspec.structs.replace(sealed(), payload=bytes(envelopes.PAYLOAD_BYTES_MAX + 1))

    with pytest.raises(EnvelopeRefused, match="at most"):
        checks().check(large, now_nanos=NOW)


def test_the_rate_of_one_peer() -> None:
    """A peer may send a burst, then so many a second; others are not held up by it."""
    clock = Clock()
    door = checks(clock, burst=3, per_second=2)

    for _ in range(3):
        door.check(sealed(1), now_nanos=NOW)
    with pytest.raises(RateLimited):
        door.check(sealed(1), now_nanos=NOW)
    door.check(sealed(2), now_nanos=NOW)
    clock.nanos += SECOND // 2

    door.check(sealed(1), now_nanos=NOW)
    with pytest.raises(RateLimited):
        door.check(sealed(1), now_nanos=NOW)


def test_a_claimed_name() -> None:
    """Messages in a peer's name that came from elsewhere do not use up that peer's rate."""
    door = checks(burst=1)
    forged = sealed(1, signer=2)

    with pytest.raises(EnvelopeRefused):
        door.check(forged, now_nanos=NOW, received_from="192.0.2.1")

    door.check(sealed(1), now_nanos=NOW, received_from="192.0.2.2")


def test_the_limiter_is_bounded() -> None:
    """No more peers are remembered than allowed; idle ones make room, busy ones do not."""
    clock = Clock()
    limiter = RateLimiter(clock, burst=2, per_second=1, peers_max=2)

    assert [limiter.allows(name) for name in ("a", "b", "c")] == [True, True, False]
    assert limiter.allows("a")
    assert not limiter.allows("a")
    clock.nanos += SECOND

    assert limiter.allows("c")
    assert not limiter.allows("d")
    assert limiter.allows("a")


def test_silence_saves_nothing_up() -> None:
    """A peer that was silent for an hour sends a burst at once, and no more."""
    clock = Clock()
    limiter = RateLimiter(clock, burst=5, per_second=2)
    limiter.allows("a")
    clock.nanos += 3600 * SECOND

    allowed = [limiter.allows("a") for _ in range(10)]

    assert allowed == [True] * 5 + [False] * 5


@given(st.lists(st.integers(0, 3 * SECOND), max_size=60))
def test_the_rate_in_the_long_run(pauses: list[int]) -> None:
    """Never more messages than the burst and the rate allow, and never fewer than the rate."""
    clock = Clock()
    limiter = RateLimiter(clock, burst=5, per_second=2)
    allowed = 0

    for pause in pauses:
        clock.nanos += pause
        allowed += limiter.allows("a")
        assert allowed <= 5 + clock.nanos * 2 // SECOND
    clock.nanos += SECOND // 2

    assert limiter.allows("a")


@given(data=st.data())
def test_hostile_envelopes(data: st.DataObject) -> None:
    """An envelope with changed bytes is refused by a typed error, never accepted as another."""
    message = sealed()
    encoded = bytearray(encode(message))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at : at + 1] = data.draw(st.binary(max_size=3))

    try:
        received = decode(Envelope, bytes(encoded))
        checks().check(received, now_nanos=NOW)
    except LedgerstoneError:
        return

    assert received == message


def test_sequence_numbers() -> None:
    """A later epoch has greater numbers than any counter of an earlier one."""
    assert sequence_number(epoch=0, counter=7) == 7
    assert sequence_number(epoch=2, counter=0) > sequence_number(epoch=1, counter=2**32 - 1)
    for wrong in ({"epoch": 2**32, "counter": 0}, {"epoch": 0, "counter": -1}):
        with pytest.raises(BadInput):
            sequence_number(**wrong)


def test_wrong_peer_keys() -> None:
    """A key of another length, and a peer id that no key may hold, are BadInput."""
    with pytest.raises(BadInput):
        seal_envelope(
            b"short",
            sender_peer_id=peer(1),
            group_id=GROUP,
            session_id=SessionId(bytes(32)),
            seq_no=1,
            timestamp_nanos=NOW,
            payload=b"",
        )
    for keys in ({peer(1): b"short"}, {PeerId("a:b"): public(1)}):
        with pytest.raises(BadInput):
            PeerChecks(group_id=GROUP, peer_keys=keys, limiter=RateLimiter(Clock()))

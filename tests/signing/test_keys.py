"""The keys of the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput, KeyAmbiguous, Malformed
from ledgerstone.signing import keys
from ledgerstone.signing.values import EventHash, GroupId, PeerId, RequestId, SessionId

UUID = RequestId("550e8400-e29b-41d4-a716-446655440000")
PEER = PeerId("peer-1")
HASH = bytes(range(32, 64))
COLONS = b":" * 32

TABLE: list[tuple[keys.Key, bytes, str]] = [
    (keys.AppConfigKey(), b"cfg:app", "default"),
    (keys.GroupKey(group_id=GroupId(COLONS)), b"grp:" + COLONS, "group"),
    (keys.EventKey(event_hash=EventHash(HASH)), b"evt:" + HASH, "event"),
    (keys.RequestKey(request_id=UUID), b"req:" + UUID.encode(), "request"),
    (keys.ArchivedRequestKey(request_id=UUID), b"archive:req:" + UUID.encode(), "request"),
    (keys.ProposalKey(request_id=UUID), b"proposal:" + UUID.encode(), "proposal"),
    (
        keys.InputKey(request_id=UUID, input_index=0x3A000102),
        b"req_input:" + UUID.encode() + b":\x3a\x00\x01\x02",
        "request_input",
    ),
    (
        keys.AckKey(request_id=UUID, peer_id=PEER),
        b"req_ack:" + UUID.encode() + b":peer-1",
        "signer_ack",
    ),
    (
        keys.SignatureKey(request_id=UUID, peer_id=PEER, input_index=1),
        b"req_sig:" + UUID.encode() + b":peer-1:\0\0\0\1",
        "partial_sig",
    ),
    (
        keys.VolumeKey(day_start_nanos=1735689600000000000),
        b"vol:" + (1735689600000000000).to_bytes(8, "big"),
        "volume",
    ),
    (
        keys.SeenKey(peer_id=PEER, session_id=SessionId(COLONS), seq_no=2**64 - 1),
        b"seen:peer-1:" + COLONS + b":" + b"\xff" * 8,
        "seen",
    ),
    (keys.ContextKey(request_id=UUID), b"own:req:" + UUID.encode(), "default"),
    (keys.EventUseKey(event_hash=EventHash(HASH)), b"own:evt:" + HASH, "default"),
    (keys.EventIdKey(source_hash=HASH), b"own:src:" + HASH, "default"),
    (
        keys.TrailKey(request_id=UUID, number=5),
        b"own:trail:" + UUID.encode() + b":\0\0\0\5",
        "default",
    ),
    (keys.ReservedKey(), b"own:reserved", "default"),
    (
        keys.DueKey(expires_at_nanos=0x3A, request_id=UUID),
        b"own:due:" + bytes(7) + b"\x3a:" + UUID.encode(),
        "default",
    ),
    (
        keys.OutgoingKey(at_nanos=2**64 - 1, request_id=UUID),
        b"own:out:" + b"\xff" * 8 + b":" + UUID.encode(),
        "default",
    ),
    (keys.StoreIdKey(), b"own:store", "default"),
]

request_ids = st.from_regex(r"[a-zA-Z0-9 ._é-]{1,40}", fullmatch=True).map(RequestId)
peer_ids = request_ids.map(PeerId)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
hashes = st.binary(min_size=32, max_size=32)

any_key: st.SearchStrategy[keys.Key] = st.one_of(
    st.builds(keys.GroupKey, group_id=hashes),
    st.builds(keys.RequestKey, request_id=request_ids),
    st.builds(keys.ArchivedRequestKey, request_id=request_ids),
    st.builds(keys.InputKey, request_id=request_ids, input_index=u32),
    st.builds(keys.AckKey, request_id=request_ids, peer_id=peer_ids),
    st.builds(keys.SignatureKey, request_id=request_ids, peer_id=peer_ids, input_index=u32),
    st.builds(keys.VolumeKey, day_start_nanos=u64),
    st.builds(keys.SeenKey, peer_id=peer_ids, session_id=hashes, seq_no=u64),
    st.builds(keys.TrailKey, request_id=request_ids, number=u32),
)


@pytest.mark.parametrize(("key", "encoded", "family"), TABLE, ids=lambda value: str(value)[:20])
def test_the_table_of_keys(key: keys.Key, encoded: bytes, family: str) -> None:
    """Every key has the bytes and the family of the documented table, and is read back."""
    assert key.encode() == encoded
    assert key.family.value == family
    assert keys.parse(encoded) == key


def test_every_kind_is_in_the_table() -> None:
    """No kind of key is missing above, and no prefix is the beginning of another."""
    prefixes = [kind.prefix for kind in keys.KINDS]

    assert {type(key) for key, _, _ in TABLE} == set(keys.KINDS)
    assert [p for p in prefixes for q in prefixes if p != q and q.startswith(p)] == []
    assert len(keys.Family) == 10


@given(any_key)
def test_what_is_built_is_parsed(key: keys.Key) -> None:
    """A key is read from its bytes as it was, also if its numbers and hashes hold separators."""
    assert keys.parse(key.encode()) == key


@given(first=any_key, second=any_key)
def test_keys_are_unique(first: keys.Key, second: keys.Key) -> None:
    """Two different keys never have the same bytes."""
    assert (first == second) is (first.encode() == second.encode())


@given(request=request_ids, peer=peer_ids, first=u64, second=u64)
def test_numbers_keep_their_order(
    request: RequestId, peer: PeerId, first: int, second: int
) -> None:
    """Keys that differ in a number sort as the numbers do."""
    session = SessionId(b"s" * 32)

    def seen(number: int) -> bytes:
        return keys.SeenKey(peer_id=peer, session_id=session, seq_no=number).encode()

    def volume(number: int) -> bytes:
        return keys.VolumeKey(day_start_nanos=number).encode()

    def an_input(number: int) -> bytes:
        return keys.InputKey(request_id=request, input_index=number >> 32).encode()

    assert (seen(first) < seen(second)) is (first < second)
    assert (volume(first) < volume(second)) is (first < second)
    assert (an_input(first) < an_input(second)) is (first >> 32 < second >> 32)


@given(request=request_ids, key=any_key)
def test_prefixes_of_scans(request: RequestId, key: keys.Key) -> None:
    """The prefix of a request's records begins its own keys and those of no other request."""
    prefixes = {
        keys.InputKey: keys.request_prefix(keys.InputKey, request),
        keys.AckKey: keys.request_prefix(keys.AckKey, request),
        keys.SignatureKey: keys.request_prefix(keys.SignatureKey, request),
        keys.TrailKey: keys.request_prefix(keys.TrailKey, request),
    }

    found = [kind for kind, prefix in prefixes.items() if key.encode().startswith(prefix)]

    mine = type(key) in prefixes and getattr(key, "request_id", None) == request
    assert found == ([type(key)] if mine else [])


@pytest.mark.parametrize(
    "wrong",
    ["", "a:b", ":", "a\n", "\0", "\x1b[2J", "\x85", "\ud800", "é" * 65, "x" * 129],
    ids=repr,
)
def test_request_ids_that_are_refused(wrong: str) -> None:
    """A request id that is empty, over-long, no text, or holds a separator is KeyAmbiguous."""
    with pytest.raises(KeyAmbiguous):
        keys.check_request_id(wrong)
    with pytest.raises(KeyAmbiguous):
        keys.AckKey(request_id=RequestId(wrong), peer_id=PEER).encode()
    with pytest.raises(KeyAmbiguous):
        keys.request_prefix(keys.InputKey, RequestId(wrong))


@pytest.mark.parametrize("wrong", ["", "a:b", "a:", "x" * 257])
def test_peer_ids_that_are_refused(wrong: str) -> None:
    """A peer id that is empty, over-long, or holds a separator is KeyAmbiguous."""
    with pytest.raises(KeyAmbiguous):
        keys.check_peer_id(wrong)
    with pytest.raises(KeyAmbiguous):
        keys.SeenKey(peer_id=PeerId(wrong), session_id=SessionId(COLONS), seq_no=1).encode()


def test_ids_of_the_longest_length() -> None:
    """Ids of exactly the longest length are accepted."""
    assert keys.check_request_id("é" * 64) == "é" * 64
    assert keys.check_peer_id("x" * 256) == "x" * 256


@pytest.mark.parametrize(
    "wrong",
    [
        keys.GroupKey(group_id=GroupId(b"x" * 31)),
        keys.InputKey(request_id=UUID, input_index=2**32),
        keys.InputKey(request_id=UUID, input_index=-1),
        keys.VolumeKey(day_start_nanos=2**64),
        keys.VolumeKey(day_start_nanos=True),
        keys.RequestKey(request_id=7),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_parts_that_do_not_fit(wrong: keys.Key) -> None:
    """A hash of another length and a number that does not fit are BadInput."""
    with pytest.raises(BadInput):
        wrong.encode()


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"nonsense",
        b"req",
        b"cfg:apple",
        b"grp:" + b"x" * 31,
        b"grp:" + b"x" * 33,
        b"req:",
        b"req:a:b",
        b"req:\xff",
        b"req_input:a",
        b"req_input:a:\0\0\0",
        b"req_input:a:\0\0\0\0\0",
        b"req_input:a:b:\0\0\0\1",
        b"req_ack:a",
        b"req_ack:a:",
        b"req_ack:a:b:c",
        b"req_sig:a:b:c:\0\0\0\1",
        b"seen:p:" + b"s" * 32 + b"\0" * 9,
        b"vol:1",
    ],
    ids=repr,
)
def test_keys_that_are_none(wrong: bytes) -> None:
    """Bytes that no key has, also those made of ids with separators, are refused when parsed."""
    with pytest.raises((Malformed, KeyAmbiguous)):
        keys.parse(wrong)


@given(key=any_key, data=st.data())
def test_hostile_keys(key: keys.Key, data: st.DataObject) -> None:
    """A key with an error in it parses to a key with exactly these bytes, or is refused."""
    encoded = bytearray(key.encode())
    at = data.draw(st.integers(0, len(encoded)))
    encoded[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))

    try:
        parsed = keys.parse(bytes(encoded))
    except (Malformed, KeyAmbiguous):
        return

    assert parsed.encode() == encoded


@pytest.mark.parametrize(
    ("now", "start"),
    [
        (0, 0),
        (86_399_999_999_999, 0),
        (86_400_000_000_000, 86_400_000_000_000),
        (1735689600000000001, 1735689600000000000),
        (2**64 - 1, 18446659200000000000),
    ],
)
def test_days(now: int, start: int) -> None:
    """A day begins at midnight UTC."""
    assert keys.day_start_nanos(now) == start

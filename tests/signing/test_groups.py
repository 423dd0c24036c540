"""Groups: which are accepted, and who is in them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledgerstone.errors import BadInput, NotAMember
from ledgerstone.signing import schnorr
from ledgerstone.signing.groups import check_group, member_key, roster
from ledgerstone.signing.kaspa import Network
from ledgerstone.signing.values import GroupConfig, GroupMetadata, GroupPolicy, PeerId
from tests.signing.people import address, group, peer, secret

KEY = schnorr.public_key(secret(1))
OTHER = schnorr.public_key(secret(9))


def changed(**fields: Any) -> GroupConfig:
    """A sound group of two out of three with something changed."""
    return msgspec.structs.replace(group(2, 3), **fields)


def with_extra(**extra: str) -> GroupConfig:
    """The same with other entries in its metadata."""
    return changed(group_metadata=GroupMetadata(creation_timestamp_nanos=0, extra=extra))


@pytest.mark.parametrize(("threshold", "members"), [(1, 1), (2, 3), (3, 5), (100, 100)])
def test_sound_groups(threshold: int, members: int) -> None:
    """A group of any size up to the largest is accepted, and its members are known by peer id."""
    found = check_group(group(threshold, members))

    assert len(found) == members
    assert member_key(found, peer(1)) == KEY


def test_groups_without_peer_entries() -> None:
    """In a group that names no peers a peer's id is its key in hex; other entries name none."""
    config = with_extra(zeta="1", peers="2")

    assert PeerId(KEY.hex()) in check_group(config)


def test_compressed_member_keys() -> None:
    """A member key of 33 bytes is the same member as its x-only key."""
    config = group(1, 1)

    found = roster(msgspec.structs.replace(config, member_pubkeys=(b"\3" + KEY,)))

    assert found == {peer(1): KEY}


def test_a_stranger() -> None:
    """A peer that is not in the group is NotAMember."""
    with pytest.raises(NotAMember, match="peer-9"):
        member_key(roster(group(2, 3)), peer(9))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed(threshold_m=0), "threshold_m"),
        (changed(threshold_m=4), "threshold_m"),
        (changed(threshold_n=4), "4, with 3 member keys"),
        (changed(member_pubkeys=()), "0 member keys"),
        (group(1, 101), "at most 100"),
        (changed(member_pubkeys=(KEY, KEY, OTHER)), "twice"),
        (changed(member_pubkeys=(KEY, b"\2" + KEY, OTHER)), "twice"),
        (changed(member_pubkeys=(KEY, OTHER, b"\3" * 31)), "32 bytes"),
        (changed(member_pubkeys=(KEY, OTHER, bytes(32))), "no point"),
        (changed(session_timeout_seconds=0), "session_timeout"),
        (changed(session_timeout_seconds=601), "session_timeout"),
        (changed(network_id=4), "no network"),
        (changed(policy=GroupPolicy(min_amount_sompi=2, max_amount_sompi=1)), "above"),
        (changed(policy=GroupPolicy(allowed_destinations=("kaspa:qr0",))), "checksum"),
        (
            changed(policy=GroupPolicy(allowed_destinations=(address(1, Network.TESTNET),))),
            "belongs to testnet",
        ),
        (with_extra(**{"peer:a": KEY.hex()}), "exactly one peer"),
        (with_extra(**{"peer:a": "zz"}), "peer:a"),
        (with_extra(**{"peer:": KEY.hex()}), "peer id"),
        (with_extra(**{"peer:a:b": KEY.hex()}), "no `:`"),
    ],
)
def test_groups_that_are_refused(config: GroupConfig, message: str) -> None:
    """A group that cannot work is BadInput, which says why."""
    with pytest.raises(BadInput, match=message):
        check_group(config)


def test_all_problems_at_once() -> None:
    """Everything that is wrong with a group is said at once."""
    with pytest.raises(BadInput, match=r"threshold_m.*session_timeout.*no network.*twice"):
        check_group(
            changed(
                threshold_m=0,
                session_timeout_seconds=0,
                network_id=9,
                member_pubkeys=(KEY, KEY, OTHER),
            )
        )

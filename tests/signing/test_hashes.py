"""The hashes of groups, events and proposals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput
from ledgerstone.signing import hashes
from ledgerstone.signing.values import (
    EventHash,
    GroupConfig,
    GroupId,
    GroupMetadata,
    GroupPolicy,
    SigningEvent,
)
from tests.signing.shapes import GOLDEN, drawn, golden

EVENTS = [case for case in GOLDEN if "event_hash" in case]
GROUP = next(case for case in GOLDEN if "group_id" in case)
VALIDATION = next(case for case in GOLDEN if case["type"] == "validation_hash")
CONFIG: GroupConfig = golden(GroupConfig, GROUP["value"])


@pytest.mark.parametrize("case", EVENTS, ids=[case["value"]["event_id"] for case in EVENTS])
def test_golden_event_hash(case: dict[str, Any]) -> None:
    """An event has the hash that the original gives it, and its signature is part of it."""
    event: SigningEvent = golden(SigningEvent, case["value"])
    unsigned = msgspec.structs.replace(event, signature=None)

    assert hashes.event_hash(event).hex() == case["event_hash"]
    assert hashes.external_hash(event) == hashes.event_hash(unsigned)
    assert (hashes.external_hash(event) == hashes.event_hash(event)) is (event.signature is None)


def test_golden_group_id() -> None:
    """A group has the id that the original gives it."""
    assert hashes.group_id(CONFIG).hex() == GROUP["group_id"]


def test_golden_validation_hash() -> None:
    """A proposal has the validation hash that the original gives it."""
    given_parts = VALIDATION["value"]

    found = hashes.validation_hash(
        EventHash(bytes.fromhex(given_parts["event_hash"])),
        bytes.fromhex(given_parts["tx_template_hash"]),
        [bytes.fromhex(part) for part in given_parts["per_input"]],
    )

    assert found.hex() == VALIDATION["hash"]


def test_validation_hash_of_wrong_lengths() -> None:
    """A part that is no hash is refused: bytes could move from one part to the next."""
    with pytest.raises(BadInput, match="32 bytes"):
        hashes.validation_hash(EventHash(b"1" * 33), b"2" * 31, [])


def test_the_empty_hash() -> None:
    """The hash is BLAKE3: that of nothing is the published one."""
    published = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"

    assert hashes.payload_hash(b"").hex() == published


@given(st.permutations(CONFIG.member_pubkeys))
def test_group_id_and_the_order_of_keys(keys: list[bytes]) -> None:
    """The id of a group does not depend on the order of its members' keys."""
    shuffled = msgspec.structs.replace(CONFIG, member_pubkeys=tuple(keys))

    assert hashes.group_id(shuffled) == hashes.group_id(CONFIG)


@pytest.mark.parametrize("field", GroupConfig.__struct_fields__)
@given(data=st.data())
def test_group_id_covers_every_field(field: str, data: st.DataObject) -> None:
    """The id of a group changes with each of its fields."""
    changes: dict[str, Any] = {
        "member_pubkeys": (*CONFIG.member_pubkeys, data.draw(st.binary(min_size=32, max_size=32))),
        "group_metadata": data.draw(drawn(GroupMetadata)),
        "policy": data.draw(drawn(GroupPolicy)),
    }
    value = changes.get(field, data.draw(st.integers(0, 255)))
    changed = msgspec.structs.replace(CONFIG, **{field: value})

    same = getattr(CONFIG, field) == value

    assert (hashes.group_id(changed) == hashes.group_id(CONFIG)) is same


def test_group_id_of_numbers_that_do_not_fit() -> None:
    """A group whose numbers do not fit their fields has no id."""
    with pytest.raises(BadInput, match="threshold_m"):
        hashes.group_id(msgspec.structs.replace(CONFIG, threshold_m=2**16))


def test_source_hash() -> None:
    """Two events share their source's hash exactly if source and id are the same."""
    event: SigningEvent = golden(SigningEvent, EVENTS[0]["value"])
    later = msgspec.structs.replace(event, timestamp_nanos=1)
    renamed = msgspec.structs.replace(event, event_id="another")

    assert hashes.source_hash(later) == hashes.source_hash(event)
    assert hashes.source_hash(renamed) != hashes.source_hash(event)


def test_hyperlane_session() -> None:
    """A bridge message has the same session on every node: of the group and the message."""
    session = hashes.hyperlane_session_id(GroupId(b"g" * 32), b"m" * 32)

    assert session == hashes.payload_hash(b"g" * 32 + b"m" * 32)

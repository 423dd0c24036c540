"""Proposals and inputs of a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledgerstone.errors import (
    BadInput,
    KeyConflict,
    MoveNotAllowed,
    NotFound,
    RequestExpired,
    TooLarge,
)
from ledgerstone.signing import hashes
from ledgerstone.signing.life import proposals
from ledgerstone.signing.values import RequestId, Stored
from tests.signing.people import KAS, NOW, payment
from tests.signing.world import MINUTE, TEMPLATE, Worlds, an_input, proposal

GONE = RequestId("gone")


def test_once(worlds: Worlds) -> None:
    """Proposal and inputs repeated are the same, also later; others are KeyConflict."""
    world = worlds()
    request_id = world.approved()
    request = world.new_request("r1", payment())
    same = proposal(request, payment())

    with world.store.transaction() as tx:
        assert proposals.insert_proposal(tx, same, now_nanos=NOW) is Stored.SAME
        again = proposals.insert_request_input(tx, request_id, an_input("r1", 0), now_nanos=NOW)
        assert again is Stored.SAME
        assert proposals.get_proposal(tx, request_id) == same
        with pytest.raises(KeyConflict):
            proposals.insert_proposal(
                tx, msgspec.structs.replace(same, kpsbt_blob=b"other"), now_nanos=NOW
            )
        with pytest.raises(KeyConflict):
            changed = msgspec.structs.replace(an_input("r1", 0), utxo_value=2)
            proposals.insert_request_input(tx, request_id, changed, now_nanos=NOW)


def test_only_while_pending(worlds: Worlds) -> None:
    """Nothing is added to a request that is decided, or whose time has run out."""
    world = worlds()
    approved, late = world.approved(), world.propose("r2", payment(2))

    with world.store.transaction() as tx:
        with pytest.raises(MoveNotAllowed):
            proposals.insert_request_input(tx, approved, an_input("r1", 2), now_nanos=NOW)
        with pytest.raises(RequestExpired):
            proposals.insert_request_input(tx, late, an_input("r2", 2), now_nanos=NOW + MINUTE)


def test_references(worlds: Worlds) -> None:
    """Without its request a proposal, and an input, is NotFound."""
    world = worlds()

    with world.store.transaction() as tx:
        with pytest.raises(NotFound):
            request = world.new_request("r1", payment())
            proposals.insert_proposal(tx, proposal(request, payment()), now_nanos=NOW)
        with pytest.raises(NotFound):
            proposals.insert_request_input(tx, GONE, an_input("r1", 0), now_nanos=NOW)
        with pytest.raises(NotFound):
            proposals.get_proposal(tx, GONE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"session_id": bytes(32)}, "session_id"),
        ({"event_hash": bytes(32)}, "event_hash"),
        ({"validation_hash": bytes(32)}, "validation_hash"),
        ({"signing_event": payment(amount_sompi=1)}, "event_hash_mismatch"),
        ({"kpsbt_blob": bytes(proposals.KPSBT_BYTES_MAX + 1)}, "at most"),
    ],
    ids=["session", "event", "validation", "other event", "large"],
)
def test_proposals_that_are_refused(worlds: Worlds, change: dict[str, Any], message: str) -> None:
    """A proposal of another session, event or validation, or a large one, is refused."""
    world = worlds()
    world.event(payment())
    request = world.new_request("r1", payment())
    world.request(request)
    wrong = msgspec.structs.replace(proposal(request, payment()), **change)

    with world.store.transaction() as tx, pytest.raises(BadInput, match=message):
        proposals.insert_proposal(tx, wrong, now_nanos=NOW)


def test_too_many_inputs(worlds: Worlds) -> None:
    """An input beyond the limit is TooLarge."""
    world = worlds()
    request = world.propose()

    with world.store.transaction() as tx, pytest.raises(TooLarge):
        proposals.insert_request_input(
            tx, request, an_input("r1", proposals.INPUTS_MAX), now_nanos=NOW
        )


def test_review(worlds: Worlds) -> None:
    """A signer sees what does not match and what the policy says before it votes."""
    world = worlds(min_amount_sompi=11 * KAS)
    request = world.propose()

    with world.store.transaction() as tx:
        proposals.insert_request_input(tx, request, an_input("r1", 2), now_nanos=NOW)
        review = proposals.review_request(tx, request, world.config, now_nanos=NOW)

    assert review.mismatches == ("validation_hash_mismatch",)
    assert "minimum_amount" in review.reason


def test_a_gap_in_the_inputs(worlds: Worlds) -> None:
    """Inputs that are not numbered from 0 on do not match, whatever their hash says."""
    world = worlds()
    event = payment()
    hashes_of_inputs = [an_input("r1", index).signing_hash for index in (0, 2)]
    request = msgspec.structs.replace(
        world.new_request("r1", event),
        validation_hash=hashes.validation_hash(
            hashes.event_hash(event), TEMPLATE, hashes_of_inputs
        ),
    )
    inputs = [an_input("r1", index) for index in (0, 2)]
    world.signing.propose(
        request, group_id=world.group_id, event=event, inputs=inputs, kpsbt_blob=b""
    )

    review = world.signing.review_request(request.request_id)

    assert review.mismatches == ("validation_hash_mismatch",)

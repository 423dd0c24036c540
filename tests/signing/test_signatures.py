"""Signatures of members."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerstone.errors import (
    MoveNotAllowed,
    NotAMember,
    NotFound,
    RequestExpired,
    SignatureInvalid,
    ThresholdNotMet,
)
from ledgerstone.signing import schnorr
from ledgerstone.signing.keys import Family
from ledgerstone.signing.life import signatures
from ledgerstone.signing.values import RequestId, Stored
from tests.signing.people import payment, peer, secret
from tests.signing.world import MINUTE, Worlds, signing_hash

GONE = RequestId("gone")


def test_once(worlds: Worlds) -> None:
    """A member's second signature for an input is the same: the first one stays."""
    world = worlds()
    request = world.approved()

    assert world.sign(request, 1, 0) is Stored.NEW
    assert world.sign(request, 1, 0) is Stored.SAME


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"signer_peer_id": peer(4)}, NotAMember),
        ({"signer_peer_id": peer(2)}, NotAMember),
        ({"pubkey": schnorr.public_key(secret(9))}, NotAMember),
        ({"pubkey": b"short"}, SignatureInvalid),
        ({"signature": bytes(64)}, SignatureInvalid),
        ({"signature": b"short"}, SignatureInvalid),
        ({"signature": schnorr.sign(secret(2), signing_hash("r1", 0))}, SignatureInvalid),
        ({"signature": schnorr.sign(secret(1), signing_hash("r1", 1))}, SignatureInvalid),
        ({"input_index": 2}, NotFound),
    ],
    ids=["stranger", "other", "key", "short key", "zeros", "short", "by 2", "of 1", "no input"],
)
def test_signatures_that_are_refused(
    worlds: Worlds, change: dict[str, Any], error: type[Exception]
) -> None:
    """A stranger, another's key, a wrong signature and an unknown input store nothing."""
    world = worlds()
    request = world.approved()

    with pytest.raises(error):
        world.sign(request, 1, 0, **change)

    with world.store.transaction() as tx:
        assert signatures.list_partial_sigs(tx, request) == []


def test_compressed_keys(worlds: Worlds) -> None:
    """A signature that names its key with its sign is the member's."""
    world = worlds()
    request = world.approved()
    key = schnorr.public_key(secret(1))

    assert world.sign(request, 1, 0, pubkey=b"\2" + key) is Stored.NEW


def test_only_while_approved(worlds: Worlds) -> None:
    """Signatures are taken after the approval and before the end, and no others."""
    world = worlds()
    pending = world.propose()

    with pytest.raises(MoveNotAllowed):
        world.sign(pending, 1, 0)
    with pytest.raises(NotFound):
        world.sign(GONE, 1, 0)
    approved = world.approved("r2", payment(2))
    world.now += MINUTE
    with pytest.raises(RequestExpired):
        world.sign(approved, 1, 0)


def test_unverified_signatures_of_another_program(worlds: Worlds) -> None:
    """A stored signature that does not verify does not count; a right one replaces it."""
    world = worlds()
    request = world.approved()
    for number, index in ((1, 0), (1, 1), (2, 0), (2, 1)):
        world.sign(request, number, index)
    with world.store.transaction() as tx:
        for (family, key), value in world.rows().items():
            if family == "partial_sig" and key.endswith(b"peer-2:\0\0\0\1"):
                tx.put(Family(family), key, value[:-9] + bytes([value[-9] ^ 1]) + value[-8:])

    with pytest.raises(ThresholdNotMet, match="input 1 needs 1"):
        world.finalize(request)
    assert world.signing.audit_request(request).missing == {1: 1}
    assert world.signing.missing_signatures(request) == {1: 1}
    assert world.sign(request, 2, 1) is Stored.NEW

    assert world.finalize(request) is Stored.NEW

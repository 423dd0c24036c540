"""The policy of a group."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.signing.kaspa import Network
from ledgerstone.signing.policy import Check, PolicyReport, evaluate
from tests.signing.people import KAS, address, group, payment


def report(
    *, volume: int = 0, reserved: int = 0, policy: dict[str, Any] | None = None, **fields: Any
) -> PolicyReport:
    """The policy of a group, applied to payments."""
    return evaluate(
        group(2, 3, **(policy or {})),
        payment(**fields),
        volume_sompi=volume,
        reserved_sompi=reserved,
    )


def failed(found: PolicyReport) -> list[Check]:
    """The checks that did not pass."""
    return [finding.check for finding in found.violations]


def test_all_checks_are_reported_in_order() -> None:
    """Every check is reported in the documented order, whether it passed or failed."""
    fine = report()
    bad = report(
        volume=KAS,
        destination_address="nowhere",
        amount_sompi=0,
        metadata={},
        policy={
            "allowed_destinations": (address(1),),
            "min_amount_sompi": KAS,
            "max_daily_volume_sompi": 1,
            "require_reason": True,
        },
    )

    assert [finding.check for finding in fine.findings] == list(Check)
    assert [finding.check for finding in bad.findings] == list(Check)
    assert failed(fine) == []
    assert failed(bad) == [check for check in Check if check is not Check.MAXIMUM_AMOUNT]


def test_the_reason() -> None:
    """It names every violation in their order, and is empty without one."""
    bad = report(amount_sompi=0, metadata={}, policy={"require_reason": True})

    assert re.fullmatch("amount_not_zero: .+; reason_given: .+", bad.reason)
    assert report().reason == ""


@pytest.mark.parametrize(
    ("destination", "allowed", "violations"),
    [
        (address(1), (), []),
        (address(1), (address(1),), []),
        (address(1), (address(2), "kaspa:qr0", address(1)), []),
        (address(1), (address(2),), [Check.DESTINATION_ALLOWED]),
        (address(1), ("kaspa:qr0",), [Check.DESTINATION_ALLOWED]),
        ("kaspa:qr0", ("kaspa:qr0",), [Check.DESTINATION_VALID, Check.DESTINATION_ALLOWED]),
        ("kaspa:qr0", (), [Check.DESTINATION_VALID, Check.DESTINATION_ALLOWED]),
        (
            address(1, Network.TESTNET),
            (address(1),),
            [Check.DESTINATION_VALID, Check.DESTINATION_ALLOWED],
        ),
    ],
)
def test_destinations(destination: str, allowed: tuple[str, ...], violations: list[Check]) -> None:
    """A destination is allowed if the list is empty or holds it, compared as parsed addresses."""
    found = report(destination_address=destination, policy={"allowed_destinations": allowed})

    assert failed(found) == violations


@pytest.mark.parametrize(
    ("amount", "violations"),
    [
        (0, [Check.AMOUNT_NOT_ZERO, Check.MINIMUM_AMOUNT]),
        (4, [Check.MINIMUM_AMOUNT]),
        (5, []),
        (9, []),
        (10, [Check.MAXIMUM_AMOUNT]),
        (2**64 - 1, [Check.MAXIMUM_AMOUNT]),
    ],
)
def test_amounts(amount: int, violations: list[Check]) -> None:
    """An amount of zero, below the minimum or above the maximum violates the policy."""
    limits = {"min_amount_sompi": 5, "max_amount_sompi": 9}

    assert failed(report(amount_sompi=amount, policy=limits)) == violations


@pytest.mark.parametrize(
    ("metadata", "given_reason"),
    [
        ({"reason": "rent"}, True),
        ({"reason": "\u5bb6"}, True),
        ({}, False),
        ({"Reason": "x"}, False),
        *(
            ({"reason": blank}, False)
            for blank in (" \n", "\0", "\u200b", "\ufe0f", "\u2800\u3164")
        ),
    ],
)
def test_reasons(metadata: dict[str, str], given_reason: bool) -> None:
    """Where a reason is required, one that is missing or blank violates the policy."""
    required = report(metadata=metadata, policy={"require_reason": True})

    assert failed(required) == ([] if given_reason else [Check.REASON_GIVEN])
    assert failed(report(metadata=metadata)) == []


@pytest.mark.parametrize(
    ("volume", "reserved", "amount", "passes"),
    [
        (80, 0, 50, False),
        (50, 0, 50, True),
        (50, 1, 50, False),
        (0, 50, 50, True),
        (0, 51, 50, False),
        (0, 0, 100, True),
        (0, 0, 101, False),
        (2**64 - 1, 2**64 - 1, 1, False),
    ],
)
def test_daily_volume(volume: int, reserved: int, amount: int, passes: bool) -> None:
    """The volume of today, the reserved amount and the payment together stay within the limit."""
    found = report(
        volume=volume,
        reserved=reserved,
        amount_sompi=amount,
        policy={"max_daily_volume_sompi": 100},
    )

    assert failed(found) == ([] if passes else [Check.DAILY_VOLUME])
    assert failed(report(volume=volume, reserved=reserved, amount_sompi=amount)) == []


@pytest.mark.slow
@given(st.text(), st.dictionaries(st.text(), st.text()), st.integers(0, 2**64 - 1))
def test_hostile_payments(destination: str, metadata: dict[str, str], amount: int) -> None:
    """Whatever a payment says, it gets a report of every check."""
    event = payment(destination_address=destination, metadata=metadata, amount_sompi=amount)
    config = group(2, 3, allowed_destinations=(destination, address(1)), require_reason=True)

    found = evaluate(config, event, volume_sompi=0, reserved_sompi=0)

    assert len(msgspec.json.decode(msgspec.json.encode(found))["findings"]) == len(Check)

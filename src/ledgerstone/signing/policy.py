"""The policy of a group: which payments it signs.

Checks happen in one order, and all of them are reported, also after one that failed: first what no
policy allows (nothing to pay, no address, another network), then the group's own rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from unicodedata import category

import msgspec

from ledgerstone.errors import AddressInvalid
from ledgerstone.signing.kaspa import Address, format_kas, parse_address
from ledgerstone.signing.values import GroupConfig, SigningEvent

REASON_KEY = "reason"
"""The entry of an event's metadata that says why it is to be paid."""

BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that show nothing: the fillers of Hangul, and Braille without a dot."""


class Check(Enum):
    """The checks, in their order."""

    AMOUNT_NOT_ZERO = "amount_not_zero"
    DESTINATION_VALID = "destination_valid"
    DESTINATION_ALLOWED = "destination_allowed"
    MINIMUM_AMOUNT = "minimum_amount"
    MAXIMUM_AMOUNT = "maximum_amount"
    REASON_GIVEN = "reason_given"
    DAILY_VOLUME = "daily_volume"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check; `detail` is for people."""

    check: Check
    passed: bool
    detail: str


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks, in their order."""

    findings: tuple[Finding, ...]

    @property
    def violations(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    @property
    def reason(self) -> str:
        """Every violation in one line; empty if there is none."""
        return "; ".join(f"{found.check.value}: {found.detail}" for found in self.violations)


def evaluate(
    config: GroupConfig, event: SigningEvent, *, volume_sompi: int, reserved_sompi: int
) -> PolicyReport:
    """Apply the group's policy to a payment.

    - `volume_sompi` is what was paid today, by our clock.
    - `reserved_sompi` is what other approved requests will pay.
    """
    policy, amount = config.policy, event.amount_sompi
    findings = [
        Finding(check=Check.AMOUNT_NOT_ZERO, passed=amount > 0, detail=f"{format_kas(amount)} KAS"),
        *_destination(config, event.destination_address),
        _at_least(policy.min_amount_sompi, amount),
        _at_most(policy.max_amount_sompi, amount),
        _reason(event, required=policy.require_reason),
        _volume(policy.max_daily_volume_sompi, amount, volume_sompi, reserved_sompi),
    ]
    return PolicyReport(findings=tuple(findings))


def _destination(config: GroupConfig, text: str) -> Iterable[Finding]:
    try:
        destination = parse_address(text)
        if destination.network.value != config.network_id:
            raise AddressInvalid(f"{text} is an address of {destination.network.name.lower()}")
    except AddressInvalid as error:
        yield Finding(check=Check.DESTINATION_VALID, passed=False, detail=error.message)
        yield Finding(check=Check.DESTINATION_ALLOWED, passed=False, detail="not a valid address")
        return
    yield Finding(check=Check.DESTINATION_VALID, passed=True, detail=text)
    allowed = config.policy.allowed_destinations
    if not allowed:
        yield Finding(check=Check.DESTINATION_ALLOWED, passed=True, detail="every address is")
        return
    listed = destination in _parsed(allowed)
    detail = f"{text} is {'' if listed else 'not '}in the list"
    yield Finding(check=Check.DESTINATION_ALLOWED, passed=listed, detail=detail)


def _parsed(allowed: Iterable[str]) -> set[Address]:
    """The allowed addresses; an entry that does not parse allows nothing."""
    found = set()
    for text in allowed:
        try:
            found.add(parse_address(text))
        except AddressInvalid:
            continue
    return found


def _at_least(minimum: int | None, amount: int) -> Finding:
    if minimum is None:
        return Finding(check=Check.MINIMUM_AMOUNT, passed=True, detail="no minimum")
    detail = f"{format_kas(amount)} KAS, at least {format_kas(minimum)}"
    return Finding(check=Check.MINIMUM_AMOUNT, passed=amount >= minimum, detail=detail)


def _at_most(maximum: int | None, amount: int) -> Finding:
    if maximum is None:
        return Finding(check=Check.MAXIMUM_AMOUNT, passed=True, detail="no maximum")
    detail = f"{format_kas(amount)} KAS, at most {format_kas(maximum)}"
    return Finding(check=Check.MAXIMUM_AMOUNT, passed=amount <= maximum, detail=detail)


def _reason(event: SigningEvent, *, required: bool) -> Finding:
    reason = any(map(_is_seen, event.metadata.get(REASON_KEY, "")))
    detail = "given" if reason else f"the event's metadata has no {REASON_KEY!r}"
    return Finding(check=Check.REASON_GIVEN, passed=reason or not required, detail=detail)


def _is_seen(char: str) -> bool:
    """Whether people see the character: a letter, number, mark of punctuation or symbol."""
    return category(char)[0] in "LNPS" and char not in BLANKS


def _volume(limit: int | None, amount: int, volume: int, reserved: int) -> Finding:
    if limit is None:
        return Finding(check=Check.DAILY_VOLUME, passed=True, detail="no limit")
    detail = (
        f"{format_kas(volume)} KAS paid today, {format_kas(reserved)} reserved,"
        f" {format_kas(amount)} asked for, at most {format_kas(limit)}"
    )
    # Exact integers: this sum may be beyond 64 bits, and is compared as it is.
    passed = volume + reserved + amount <= limit
    return Finding(check=Check.DAILY_VOLUME, passed=passed, detail=detail)

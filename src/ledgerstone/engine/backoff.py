"""How long to wait before the next attempt: pure, bounded, with jitter."""

from __future__ import annotations

from enum import Enum
from random import random

import msgspec

from ledgerstone.errors import BadInput

EXPONENT_MAX = 62
WAIT_SECONDS_MAX = 10 * 366 * 86_400
"""No wait is longer, whatever a back-off says."""
MULTIPLIER_MAX = 1000.0


class BackoffPolicy(Enum):
    """none: at once; fixed: always the same; exp: multiplied after each failure."""

    NONE = "none"
    FIXED = "fixed"
    EXP = "exp"


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds to wait after the nth failure, capped and with jitter.

    The defaults wait about 15 s, 90 s, 9 min and 54 min: five attempts span about an hour.
    """

    policy: BackoffPolicy = BackoffPolicy.EXP
    seconds: float = 15.0
    """The wait after the first failure; with the policy `fixed` after each failure."""
    multiplier: float = 6.0
    """The policy `exp` multiplies the wait by this number after each further failure."""
    seconds_max: float = 3600.0
    """No wait is longer than this."""
    jitter: float = 0.2
    """The random part of each wait: 0.2 shortens a wait by up to a fifth."""

    def after(self, failures: int, *, chance: float | None = None) -> float:
        """The wait after so many failures; `chance` (0 to 1) stands in for the dice."""
        if self.policy is BackoffPolicy.NONE:
            return 0.0
        wait = self.seconds
        if self.policy is BackoffPolicy.EXP:
            exponent = min(max(failures, 1) - 1, EXPONENT_MAX)
            try:
                wait = self.seconds * self.multiplier**exponent
            except OverflowError:
                wait = self.seconds_max
        dice = random() if chance is None else chance  # noqa: S311 - spreads load, no secret
        wait = min(wait, self.seconds_max) * (1 - self.jitter * dice)
        # Also of one that nobody has checked: no negative wait, none without end, and not NaN.
        return min(wait, WAIT_SECONDS_MAX) if wait > 0 else 0.0

    def check(self) -> None:
        """BadInput if it is none that could be waited for."""
        policy: object = self.policy
        if not isinstance(policy, BackoffPolicy):
            choices = ", ".join(f"BackoffPolicy.{each.name}" for each in BackoffPolicy)
            message = f"the policy of a back-off is not {policy!r}"
            raise BadInput(message, hint=f"use one of {choices}")
        for name, most in (
            ("seconds", WAIT_SECONDS_MAX),
            ("seconds_max", WAIT_SECONDS_MAX),
            ("multiplier", MULTIPLIER_MAX),
            ("jitter", 1.0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= most:
                message = f"{name} of a back-off is a number from 0 to {most}, not {value!r}"
                raise BadInput(message)


def meant(job: str, given: Backoff | BackoffPolicy | str | None) -> Backoff:
    """The back-off that is meant; what is none is left for the check of the job's kind."""
    if not isinstance(given, BackoffPolicy | str):
        return given if given is not None else Backoff()
    try:
        return Backoff(policy=BackoffPolicy(given))
    except ValueError as error:
        names = ", ".join(policy.value for policy in BackoffPolicy)
        message = f"the back-off of {job} is one of {names}, not {given!r}"
        raise BadInput(message, hint="or give a Backoff, with its seconds") from error

"""How long to wait before the next attempt: pure, bounded, with jitter."""

from __future__ import annotations

from enum import Enum
from random import random

import msgspec

EXPONENT_MAX = 62


class BackoffPolicy(Enum):
    """none: at once; fixed: always the same; exp: multiplied after each failure."""

    NONE = "none"
    FIXED = "fixed"
    EXP = "exp"


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to wait after the nth failure: capped, and spread so that not all return at once."""

    policy: BackoffPolicy = BackoffPolicy.EXP
    seconds: float = 1.0
    multiplier: float = 2.0
    seconds_max: float = 300.0
    jitter: float = 0.2
    """The part of the wait that is random: 0.2 takes up to a fifth off it."""

    def after(self, failures: int, *, chance: float | None = None) -> float:
        """The wait after so many failures; `chance` (0 to 1) stands in for the dice."""
        if self.policy is BackoffPolicy.NONE:
            return 0.0
        wait = self.seconds
        if self.policy is BackoffPolicy.EXP:
            exponent = min(max(failures, 1) - 1, EXPONENT_MAX)
            wait = self.seconds * self.multiplier**exponent
        dice = random() if chance is None else chance  # noqa: S311 - spreads load, no secret
        return min(wait, self.seconds_max) * (1 - self.jitter * dice)

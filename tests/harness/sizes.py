"""The size of a test: small in `make test`, full in `make torture`. The code is the same."""

from __future__ import annotations

import os

VARIABLE = "TESTS_SIZE"
FULL = "full"


def sized(small: int, *, full: int) -> int:
    """How many: small unless the environment asks for the full size."""
    return full if os.environ.get(VARIABLE) == FULL else small

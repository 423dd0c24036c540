"""Handlers for tests that run in a process of their own."""

from __future__ import annotations

import os
import signal

from ledgerstone.engine.source import Claim


def pid_or_fail(claim: Claim) -> int:
    """The process it ran in; odd numbers are refused."""
    if int(claim.body) % 2:
        message = "odd numbers are refused"
        raise ValueError(message)
    return os.getpid()


def unkeepable(claim: Claim) -> object:
    """A result that no JSON can hold, for the number 0."""
    return object() if int(claim.body) == 0 else None


def die_on_zero(claim: Claim) -> None:
    """Dies of the number 0."""
    if int(claim.body) == 0:
        os.kill(os.getpid(), signal.SIGKILL)

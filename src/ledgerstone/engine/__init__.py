"""Claim, run, settle: the one pump that moves all work, and the loops that keep it going."""

from __future__ import annotations

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import (
    Ask,
    Cancel,
    Claim,
    Failure,
    Handler,
    Outcome,
    Snooze,
    Source,
    Verdict,
    Where,
)

__all__ = [
    "Ask",
    "Backoff",
    "BackoffPolicy",
    "Cancel",
    "Claim",
    "Failure",
    "Handler",
    "Outcome",
    "Snooze",
    "Source",
    "Verdict",
    "Where",
]

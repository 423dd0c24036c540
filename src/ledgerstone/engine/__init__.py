"""Claim, run, settle: the one pump that moves all work, and the loops that keep it going."""

from __future__ import annotations

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import (
    Ask,
    Cancel,
    Claim,
    ExecutorKind,
    Failure,
    Handler,
    Outcome,
    OutcomeKind,
    Snooze,
    Source,
)

__all__ = [
    "Ask",
    "Backoff",
    "BackoffPolicy",
    "Cancel",
    "Claim",
    "ExecutorKind",
    "Failure",
    "Handler",
    "Outcome",
    "OutcomeKind",
    "Snooze",
    "Source",
]

"""Claim, run, settle: pumps, executors, heartbeats and duties of a worker."""

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

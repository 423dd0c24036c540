"""Limits, explanations and retention of jobs, on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.limits import LimitContract


class TestLimits(LimitContract):
    """How many, why not, how long."""

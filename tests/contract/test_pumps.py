"""The pump contract on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.pumps import PumpContract, RunningContract


class TestPump(PumpContract):
    """Step by step."""


class TestRunning(RunningContract):
    """In threads."""

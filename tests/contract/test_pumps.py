"""The pump contract on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.pumps import PumpContract
from ledgerstone.testing.contract.running import RunningContract


class TestPump(PumpContract):
    """Step by step."""


class TestRunning(RunningContract):
    """In threads."""

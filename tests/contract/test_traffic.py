"""The crash contract of messages, on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.traffic import TrafficContract


class TestTraffic(TrafficContract):
    """All of it."""

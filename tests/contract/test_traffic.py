"""The crash contract of messages, on every database."""

from __future__ import annotations

import pytest

from tests.contract.messaging.traffic import TrafficContract


@pytest.mark.slow
class TestTraffic(TrafficContract):
    """All of it."""

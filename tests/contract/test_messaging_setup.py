"""The contract of setting up the shared tables, on every database."""

from __future__ import annotations

from tests.contract.messaging.setup import SetupContract
from tests.contract.messaging.zones import ZoneContract


class TestSetup(SetupContract):
    """What is missing is made, what is there is kept."""


class TestZones(ZoneContract):
    """Moments are local time where that is set."""

"""Every test of the project sees the shipped fixtures."""

from __future__ import annotations

pytest_plugins = ["ledgerstone.testing.fixtures"]

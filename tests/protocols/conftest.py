"""A protocol of letters that wait for keys, on a ledger."""

from __future__ import annotations

import pytest

from ledgerstone import Ledger
from ledgerstone.protocols import Running
from tests.protocols.letters import letters


@pytest.fixture
def running(ledger: Ledger) -> Running:
    """The protocol on a fresh database."""
    return ledger.protocol(letters())

"""The contract of the ground floor, on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.batches import BatchContract
from ledgerstone.testing.contract.leases import LeaseContract
from ledgerstone.testing.contract.pages import PageContract
from ledgerstone.testing.contract.transactions import TransactionContract


class TestTransactions(TransactionContract):
    """All or nothing."""


class TestLeases(LeaseContract):
    """One holder at a time."""


class TestPages(PageContract):
    """Every row once."""


class TestBatches(BatchContract):
    """Many rows in one statement."""

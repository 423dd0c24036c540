"""The inbox contract on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.inbox import InboxContract, ReceiptContract


class TestInbox(InboxContract):
    """All of it."""


class TestReceipts(ReceiptContract):
    """All of it."""

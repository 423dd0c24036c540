"""The inbox contract on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.inbox import InboxContract, ReceiptContract
from ledgerstone.testing.contract.inbox_ended import InboxEndedContract


class TestInbox(InboxContract):
    """All of it."""


class TestInboxEnded(InboxEndedContract):
    """All of it."""


class TestReceipts(ReceiptContract):
    """All of it."""

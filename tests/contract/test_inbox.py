"""The inbox contract on every database."""

from __future__ import annotations

from tests.contract.messaging.crashes import CrashContract
from tests.contract.messaging.inbox import InboxContract, ReceiptContract
from tests.contract.messaging.inbox_ended import InboxEndedContract


class TestInbox(InboxContract):
    """All of it."""


class TestInboxEnded(InboxEndedContract):
    """All of it."""


class TestReceipts(ReceiptContract):
    """All of it."""


class TestCrashes(CrashContract):
    """All of it."""

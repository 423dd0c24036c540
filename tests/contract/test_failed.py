"""The contract of failed messages on every database."""

from __future__ import annotations

from tests.contract.messaging.failed import FailedContract, FailedSinceContract
from tests.contract.messaging.failed_symfony import FailedBesideSymfonyContract


class TestFailed(FailedContract):
    """All of it."""


class TestFailedSince(FailedSinceContract):
    """All of it."""


class TestFailedBesideSymfony(FailedBesideSymfonyContract):
    """All of it."""

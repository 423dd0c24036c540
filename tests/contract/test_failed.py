"""The contract of failed messages on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.failed import FailedContract, FailedSinceContract
from ledgerstone.testing.contract.failed_symfony import FailedBesideSymfonyContract


class TestFailed(FailedContract):
    """All of it."""


class TestFailedSince(FailedSinceContract):
    """All of it."""


class TestFailedBesideSymfony(FailedBesideSymfonyContract):
    """All of it."""

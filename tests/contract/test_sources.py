"""The source contract, for every source."""

from __future__ import annotations

import pytest

from ledgerstone.testing.contract.sources import SourceContract, Subject
from ledgerstone.testing.subjects import ChoreSubject


class TestChores(SourceContract):
    """Chores keep it."""

    @pytest.fixture
    def subject(self) -> Subject:
        """Chores."""
        return ChoreSubject()

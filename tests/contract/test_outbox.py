"""The contract of the outbox, on every database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.contract.lanes import (
    CommitOrderContract,
    HeadsContract,
    PausingContract,
)
from ledgerstone.testing.contract.outbox import (
    CleanupContract,
    JoinedPublishingContract,
    PublishingContract,
)
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from ledgerstone.testing.shelf import emptied


@pytest.fixture(scope="module", params=KINDS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A database for all clauses: a fresh one for each of them would cost more than they do."""
    for home in new_home(request, request.param, tmp_path_factory.mktemp("outbox")):
        with Ledger(home.url, settings=Settings.load(url=home.url, environ={})) as ledger:
            ledger.migrate()
        yield home


@pytest.fixture
def home(shared: Home) -> Home:
    """The same database, emptied."""
    return emptied(shared)


class TestPublishing(PublishingContract):
    """What is accepted."""


class TestCommitOrder(CommitOrderContract):
    """In the order of the commits."""


class TestHeads(HeadsContract):
    """What waits first."""


class TestPausing(PausingContract):
    """What people do."""


class TestCleanup(CleanupContract):
    """What is removed."""


class TestJoinedPublishing(JoinedPublishingContract):
    """In the user's own transaction."""

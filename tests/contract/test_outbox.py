"""The contract of the outbox, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.contract.messaging.lanes import (
    CommitOrderContract,
    HeadsContract,
    PausingContract,
)
from tests.contract.messaging.long_lists import LongListContract
from tests.contract.messaging.outbox import (
    JoinedPublishingContract,
    PublishingContract,
)
from tests.contract.messaging.outbox_cleanup import CleanupContract
from tests.contract.messaging.outbox_refused import RefusedPublishingContract
from tests.contract.messaging.places import PlacesContract


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database, ready for messages."""
    yield from new_home(request, request.param, tmp_path, migrated=True)


class TestPublishing(PublishingContract):
    """What is accepted."""


class TestCommitOrder(CommitOrderContract):
    """In the order of the commits."""


class TestHeads(HeadsContract):
    """What waits first."""


class TestPausing(PausingContract):
    """What people do."""


class TestLongLists(LongListContract):
    """Lists over long tables."""


class TestCleanup(CleanupContract):
    """What is removed."""


class TestJoinedPublishing(JoinedPublishingContract):
    """In the user's own transaction."""


class TestRefusedPublishing(RefusedPublishingContract):
    """Publishing that raises."""


class TestPlaces(PlacesContract):
    """Several calls of one transaction."""

"""The contract of the relays, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.contract.messaging.competing import CompetingRelayContract, HeldRowsContract
from tests.contract.messaging.foreign_rows import ForeignRowsContract
from tests.contract.messaging.relay_leases import RelayLeaseContract
from tests.contract.messaging.relay_missing import MissingTargetContract
from tests.contract.messaging.relay_paces import RelayPaceContract
from tests.contract.messaging.relay_rounds import RelayRoundContract
from tests.contract.messaging.relays import OrderedRelayContract


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database, ready for messages."""
    yield from new_home(request, request.param, tmp_path, migrated=True)


class TestOrdered(OrderedRelayContract):
    """In order."""


class TestRounds(RelayRoundContract):
    """What is claimed."""


class TestLeases(RelayLeaseContract):
    """One relay at a time."""


class TestPaces(RelayPaceContract):
    """Beside what takes its time."""


class TestMissingTargets(MissingTargetContract):
    """While a queue is not there."""


class TestForeignRows(ForeignRowsContract):
    """Not through the ledger."""


class TestCompeting(CompetingRelayContract):
    """In any order."""


@pytest.mark.parametrize("home", KINDS[1:], indirect=True)
class TestHeldRows(HeldRowsContract):
    """Where there is more than one writer."""

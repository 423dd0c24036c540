"""The contract of the relays, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.testing.contract.competing import CompetingRelayContract, HeldRowsContract
from ledgerstone.testing.contract.foreign_rows import ForeignRowsContract
from ledgerstone.testing.contract.relay_leases import RelayLeaseContract
from ledgerstone.testing.contract.relay_missing import MissingTargetContract
from ledgerstone.testing.contract.relay_paces import RelayPaceContract
from ledgerstone.testing.contract.relay_rounds import RelayRoundContract
from ledgerstone.testing.contract.relays import OrderedRelayContract
from ledgerstone.testing.fixtures import KINDS, Home, new_home


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

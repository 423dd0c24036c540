"""The contract of the relays, on every database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.contract.competing import CompetingRelayContract, HeldRowsContract
from ledgerstone.testing.contract.foreign_rows import ForeignRowsContract
from ledgerstone.testing.contract.relay_leases import RelayLeaseContract
from ledgerstone.testing.contract.relays import OrderedRelayContract
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from ledgerstone.testing.shelf import emptied


@pytest.fixture(scope="module", params=KINDS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A database for all clauses: a fresh one for each of them would cost more than they do."""
    for home in new_home(request, request.param, tmp_path_factory.mktemp("relays")):
        with Ledger(home.url, settings=Settings.load(url=home.url, environ={})) as ledger:
            ledger.migrate()
        yield home


@pytest.fixture
def home(shared: Home) -> Home:
    """The same database, emptied."""
    return emptied(shared)


class TestOrdered(OrderedRelayContract):
    """In order."""


class TestLeases(RelayLeaseContract):
    """One relay at a time."""


class TestForeignRows(ForeignRowsContract):
    """Not through the ledger."""


class TestCompeting(CompetingRelayContract):
    """In any order."""


@pytest.mark.parametrize("shared", KINDS[1:], indirect=True)
class TestHeldRows(HeldRowsContract):
    """Where there is more than one writer."""

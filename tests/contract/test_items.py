"""Leased items: every clause over every declared table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone import Ledger
from ledgerstone.items import Items
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contract.source_locks import LockedContract
from ledgerstone.testing.contract.sources import (
    ClaimingContract,
    DeathsContract,
    FailingContract,
    FencedContract,
    RescueContract,
)
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.contract import item_subjects
from tests.contract.item_subjects import ItemSubject
from tests.contract.item_tables import tables
from tests.contract.items import CountedContract, ItemContract, MoreContract


@pytest.fixture(scope="module", params=KINDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A database for all clauses, with the example tables."""
    for made in new_home(request, request.param, tmp_path_factory.mktemp("items")):
        with Ledger(made.url, settings=Settings.load(url=made.url, environ={})) as ledger:
            ledger.migrate()
            tables.create_all(ledger.database.engine)
        yield made


@pytest.fixture
def ledger(home: Home, clock: ManualClock) -> Iterator[Ledger]:
    """A ledger on it; each subject removes what the clause before has left."""
    settings = Settings.load(url=home.url, environ={})
    with Ledger(home.url, settings=settings, clock=clock) as opened:
        yield opened


class Declared:
    """The declaration is the subject's."""

    @pytest.fixture
    def items(self, subject: ItemSubject) -> Items:
        """The table."""
        return subject.items


class TestAnchors(
    Declared,
    ItemContract,
    CountedContract,
    ClaimingContract,
    LockedContract,
    FencedContract,
    RescueContract,
    FailingContract,
    DeathsContract,
):
    """Failures are counted, and an item stays when it is done."""

    @pytest.fixture
    def subject(self) -> ItemSubject:
        """The table of anchors."""
        return item_subjects.anchors()


class TestTransactionReferences(
    Declared, ItemContract, ClaimingContract, LockedContract, FencedContract, RescueContract
):
    """A key of four columns, no state, no attempts, idle when it is done."""

    @pytest.fixture
    def subject(self) -> ItemSubject:
        """The table of references."""
        return item_subjects.tx_refs()


class TestMarkers(
    Declared,
    ItemContract,
    MoreContract,
    CountedContract,
    ClaimingContract,
    LockedContract,
    FencedContract,
    RescueContract,
):
    """No state, deleted when it is done, unless work arrived meanwhile."""

    @pytest.fixture
    def subject(self) -> ItemSubject:
        """The table of markers."""
        return item_subjects.markers()


class TestIncoming(
    Declared,
    ItemContract,
    CountedContract,
    ClaimingContract,
    LockedContract,
    FencedContract,
    RescueContract,
    FailingContract,
    DeathsContract,
):
    """A state and attempts, deleted when it is done, parked when it is given up."""

    @pytest.fixture
    def subject(self) -> ItemSubject:
        """The table of what came in."""
        return item_subjects.incoming()

"""Leased items: every clause over every declared table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone import Ledger
from ledgerstone.items import Items
from ledgerstone.jobs.items import JOBS
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.relay.lanes import LANES
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source import (
    ClaimingContract,
    DeathsContract,
    FailingContract,
    FencedContract,
    RescueContract,
)
from ledgerstone.testing.contracts.source_locks import LockedContract
from ledgerstone.testing.contracts.source_subject import Subject
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.contract.engine import item_subjects
from tests.contract.engine.item_subjects import ItemSubject
from tests.contract.engine.item_tables import tables
from tests.contract.engine.items import CountedContract, ItemContract, MoreContract
from tests.contract.engine.subjects import LANE_ATTEMPTS_MAX, JobSubject, LaneSubject
from tests.contract.messaging.destination import Shop


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


class TestJobs(ItemContract):
    """Jobs keep it; what every source keeps they keep in `test_sources`."""

    @pytest.fixture
    def items(self) -> Items:
        """The declaration."""
        return JOBS

    @pytest.fixture
    def subject(self, ledger: Ledger) -> JobSubject:
        """The jobs of a queue."""
        return JobSubject(ledger)


class TestLanes(ItemContract):
    """So do lanes, whose messages are removed in the same transaction."""

    @pytest.fixture
    def shop(self, home: Home, clock: ManualClock) -> Iterator[Shop]:
        """Where messages go: a lane that was refused too often is parked."""
        with Shop(home.url, clock, on_failure="park", max_attempts=LANE_ATTEMPTS_MAX) as opened:
            yield opened

    @pytest.fixture
    def ledger(self, shop: Shop) -> Ledger:
        """The ledger of the shop."""
        return shop.ledger

    @pytest.fixture
    def items(self) -> Items:
        """The declaration."""
        return LANES

    @pytest.fixture
    def subject(self, shop: Shop) -> LaneSubject:
        """The lanes."""
        return LaneSubject(shop)

    def remove(self, tx: Transaction, subject: Subject, items: Items) -> None:
        """The lane alone: its message still waits."""
        tx.execute(items.table.delete())

    def statements_max(self, ledger: Ledger) -> int:
        """One more, for the messages."""
        return super().statements_max(ledger) + 1

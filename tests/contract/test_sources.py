"""The source contract, for every source: each runs every class that its shape allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source import (
    ClaimingContract,
    DeathsContract,
    FailingContract,
    FencedContract,
    RescueContract,
    SourceContract,
)
from ledgerstone.testing.contracts.source_locks import LockedContract
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests import chores
from tests.chores.subject import ChoreSubject
from tests.contract.engine.subjects import LANE_ATTEMPTS_MAX, JobSubject, LaneSubject
from tests.contract.messaging.destination import Shop


@pytest.fixture(scope="module", params=KINDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A database for all clauses: a fresh one for each of them would cost more than they do."""
    for made in new_home(request, request.param, tmp_path_factory.mktemp("sources")):
        with Ledger(made.url, settings=Settings.load(url=made.url, environ={})) as ledger:
            ledger.migrate()
            chores.install(ledger.database)
        yield made


@pytest.fixture
def ledger(home: Home, clock: ManualClock) -> Iterator[Ledger]:
    """A ledger on it; each subject removes what the clause before has left."""
    settings = Settings.load(url=home.url, environ={})
    with Ledger(home.url, settings=settings, clock=clock) as opened:
        yield opened


class TestChores(SourceContract):
    """Chores keep it."""

    @pytest.fixture
    def subject(self) -> ChoreSubject:
        """Chores."""
        return ChoreSubject()


class TestJobs(SourceContract):
    """Jobs keep it."""

    @pytest.fixture
    def subject(self, ledger: Ledger) -> JobSubject:
        """The jobs of a queue."""
        return JobSubject(ledger)


class TestLanes(
    ClaimingContract,
    LockedContract,
    FencedContract,
    RescueContract,
    FailingContract,
    DeathsContract,
):
    """So does the relay to the consumers of this ledger, whose items are lanes."""

    @pytest.fixture
    def shop(self, home: Home, clock: ManualClock) -> Iterator[Shop]:
        """Where handlers run: a lane whose relays died too often is given up."""
        with Shop(
            home.url,
            clock,
            destination=LOCAL,
            on_failure="park",
            max_attempts=LANE_ATTEMPTS_MAX,
        ) as opened:
            yield opened

    @pytest.fixture
    def ledger(self, shop: Shop) -> Ledger:
        """The ledger of the shop."""
        return shop.ledger

    @pytest.fixture
    def subject(self, shop: Shop) -> LaneSubject:
        """The lanes."""
        return LaneSubject(shop)


class TestBatches(
    ClaimingContract, LockedContract, FencedContract, RescueContract, FailingContract
):
    """So does the ordered relay to elsewhere, which runs no handler and is killed by no message."""

    @pytest.fixture
    def shop(self, home: Home, clock: ManualClock) -> Iterator[Shop]:
        """Many lanes in one call."""
        with Shop(home.url, clock, on_failure="park", max_attempts=LANE_ATTEMPTS_MAX) as opened:
            yield opened

    @pytest.fixture
    def ledger(self, shop: Shop) -> Ledger:
        """The ledger of the shop."""
        return shop.ledger

    @pytest.fixture
    def subject(self, shop: Shop) -> LaneSubject:
        """The lanes."""
        return LaneSubject(shop)

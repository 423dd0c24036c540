"""The effect contract, for every source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests import chores
from tests.chores.execution import ChoreWork
from tests.chores.subject import clear_chores
from tests.contract.engine.effects import EffectContract
from tests.contract.engine.executors import TRIES_MAX, DeliveryWork, JobWork, RelayWork
from tests.contract.engine.subjects import clear_jobs, clear_messages
from tests.contract.messaging.destination import Shop


@pytest.fixture(scope="module", params=KINDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A database for all clauses: a fresh one for each of them would cost more than they do."""
    for made in new_home(request, request.param, tmp_path_factory.mktemp("effects")):
        with Ledger(made.url, settings=Settings.load(url=made.url, environ={})) as ledger:
            ledger.migrate()
            chores.install(ledger.database)
        yield made


@pytest.fixture
def shop(request: pytest.FixtureRequest, home: Home, clock: ManualClock) -> Iterator[Shop]:
    """A ledger without items, with the destination that the class names."""
    options: dict[str, Any] = getattr(request.cls, "destination", {})
    with Shop(home.url, clock, on_failure="park", max_attempts=TRIES_MAX, **options) as opened:
        for clear in (clear_chores, clear_jobs, clear_messages):
            opened.ledger.run(clear)
        yield opened


class TestChores(EffectContract):
    """Chores."""

    @pytest.fixture
    def work(self, shop: Shop, clock: ManualClock) -> ChoreWork:
        """Chores that workers do."""
        return ChoreWork(shop.ledger, clock)


class TestJobs(EffectContract):
    """Jobs."""

    @pytest.fixture
    def work(self, shop: Shop, clock: ManualClock) -> JobWork:
        """Jobs that workers do."""
        return JobWork(shop.ledger, clock)


class TestOrderedRelay(EffectContract):
    """Messages that leave in order."""

    @pytest.fixture
    def work(self, shop: Shop, clock: ManualClock) -> RelayWork:
        """Messages that relays carry."""
        return RelayWork(shop, clock)


class TestLocalRelay(TestOrderedRelay):
    """Messages for consumers of the same ledger."""

    destination: ClassVar = {"destination": LOCAL}


class TestCompetingRelay(TestOrderedRelay):
    """Messages that leave in any order."""

    destination: ClassVar = {"mode": "competing"}


class TestDeliveries(EffectContract):
    """Messages that a broker delivers."""

    @pytest.fixture
    def work(self, shop: Shop, clock: ManualClock) -> DeliveryWork:
        """Messages that receivers hand to a consumer."""
        return DeliveryWork(shop, clock)

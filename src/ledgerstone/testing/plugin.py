"""Fixtures for tests of your own jobs; pytest finds them once Ledgerstone is installed.

    ledgerstone_ledger_url    a fresh SQLite file for each test
    ledgerstone_clock         a clock that stands still until the test moves it
    ledgerstone_ledger        a ledger on that URL, by that clock if the test asks for it, too

Each can be replaced by a fixture of the same name in a `conftest.py`. There are no hooks, and no
other names are taken: `ledgerstone.testing.fixtures`, the fixtures of the contracts, can be loaded
beside it. A fixture imports its parts when it is first used, so that a run of tests that uses
none of them is not slowed down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ledgerstone.ledger import Ledger
    from ledgerstone.testing.clock import ManualClock


@pytest.fixture
def ledgerstone_ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the ledger of this test is kept: a SQLite file that no other test has."""
    # Not in the test's own `tmp_path`: what is in there is the test's business.
    return f"sqlite:///{tmp_path_factory.mktemp('ledgerstone')}/ledger.db"


@pytest.fixture
def ledgerstone_clock() -> ManualClock:
    """The clock of this test's ledger."""
    from ledgerstone.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def ledgerstone_ledger(
    request: pytest.FixtureRequest, ledgerstone_ledger_url: str
) -> Iterator[Ledger]:
    """A ledger of this test's own; the environment's settings do not reach it."""
    from ledgerstone.ledger import Ledger
    from ledgerstone.settings import Settings

    asked = "ledgerstone_clock" in request.fixturenames
    clock = request.getfixturevalue("ledgerstone_clock") if asked else None
    settings = Settings.load(url=ledgerstone_ledger_url, environ={})
    with Ledger(ledgerstone_ledger_url, settings=settings, clock=clock) as ledger:
        ledger.migrate()
        yield ledger

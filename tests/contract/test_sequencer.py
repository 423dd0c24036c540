"""Positions after the commit, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import new_home
from tests.contract.items.sequencer import BlindContract, SequencerContract
from tests.contract.items.sequencer_ranges import MergedContract, RangesContract
from tests.harness.drivers import connect


class TestSequencer(SequencerContract):
    """Each committed row once, without a gap."""


class TestRanges(RangesContract):
    """What is scanned again, and when."""


class TestMerged(MergedContract):
    """Ranges that become one."""


@pytest.mark.mysql
class TestBlind(BlindContract):
    """A MySQL that does not tell who is writing."""

    @pytest.fixture
    def ledger(
        self, request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
    ) -> Iterator[Ledger]:
        """As a user without the privilege PROCESS."""
        for home in new_home(request, "mysql", tmp_path, migrated=True):
            parts = urlsplit(home.url)
            name = parts.path[1:]
            with closing(connect(home.url)) as root:
                root.cursor().execute(f"CREATE USER {name}@'%'")
                root.cursor().execute(f"GRANT ALL ON {name}.* TO {name}@'%'")
            url = f"mysql://{name}@{parts.hostname}:{parts.port}/{name}"
            settings = Settings.load(url=url, environ={})
            with Ledger(url, settings=settings, clock=clock) as opened:
                yield opened

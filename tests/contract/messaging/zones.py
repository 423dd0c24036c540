"""The contract of a time zone that is set: the database converts as the calendar does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import BigInteger, bindparam, select

from ledgerstone.errors import SettingsError
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.symfony.time_zone import kept, moment_in
from ledgerstone.settings import MessagingSettings

ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Tokyo"]
WEEKS = 60


class ZoneContract:
    """Moments in the tables that are shared. Fixture: `ledger`."""

    @pytest.mark.parametrize("zone", ZONES)
    def test_converted_by_the_database(self, ledger: Ledger, zone: str) -> None:
        """Every moment of more than a year is kept as local time, and read back as it was."""
        outbox = MessagingRegistry(MessagingSettings(time_zone=zone)).shared.outbox
        begin = datetime.now(UTC).replace(microsecond=0) - timedelta(days=100)
        moments = [begin + timedelta(weeks=week) for week in range(WEEKS)]
        local = select(kept(outbox, bindparam("ms", type_=BigInteger())))

        with ledger.reading() as tx:
            found = [
                tx.connection.execute(local, {"ms": round(at.timestamp() * 1000)}).scalar_one()
                for at in moments
            ]

        told = [f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}" for at in moments]
        assert [str(each) for each in found] == told
        assert [moment_in(outbox, each) for each in found] == moments

    def test_a_zone_that_is_none(self) -> None:
        """What is no time zone is refused when the ledger is opened."""
        for wrong in ("Europe/Nowhere", "../etc/passwd", "x\0"):
            with pytest.raises(SettingsError, match="time_zone"):
                MessagingRegistry(MessagingSettings(time_zone=wrong))

"""The delivery contract: a partition is handled in its order, whatever consumers come and go."""

from __future__ import annotations

from typing import Protocol

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, select

from ledgerstone.ledger import Ledger
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING
from ledgerstone.testing.waiting import until
from tests.harness.sizes import sized

PARTITIONS = ("ann", "bob")
BACKLOGS = [
    pytest.param(80, 0.01, id="slow-handlers"),
    pytest.param(sized(250, full=3000), 0.0, id="large-backlog", marks=pytest.mark.torture),
]
"""Messages of each partition, and the seconds that a handler takes."""

own = MetaData(naming_convention=NAMING)
arrival = Table(
    "arrival",
    own,
    Column("id", Integer, primary_key=True),
    Column("lane", String(20), nullable=False),
    Column("number", Integer, nullable=False),
    **MYSQL_TABLE,
)
"""The user's table: what was handled, in the order of the handling."""


class Consumption(Protocol):
    """A queue that has one active consumer at a time, and consumers that are started and stopped.

    - `publish` adds so many messages of each partition, numbered from 0, in turns.
    - `start` starts a consumer. It keeps the order of a partition, takes so many seconds for each
      message, and writes a row into `arrival` for it.
    - `stop` stops a consumer as a deployment does, and comes back when it is gone.
    """

    ledger: Ledger

    def publish(self, count: int) -> None: ...

    def start(self, name: str, *, handler_seconds: float) -> None: ...

    def stop(self, name: str) -> None: ...


class DeliveryContract:
    """Order over restarts. Fixture: `consumption`."""

    @pytest.mark.parametrize(("count", "handler_seconds"), BACKLOGS)
    def test_a_restart(self, consumption: Consumption, count: int, handler_seconds: float) -> None:
        """One consumer is stopped and started again: each partition is handled in its order."""
        consumption.publish(count)

        for number in range(4):
            consumption.start(f"c{number}", handler_seconds=handler_seconds)
            _handled(consumption, (number + 1) * len(PARTITIONS) * count // 4)
            consumption.stop(f"c{number}")

        assert _in_order(consumption) == {lane: list(range(count)) for lane in PARTITIONS}

    @pytest.mark.parametrize(("count", "handler_seconds"), BACKLOGS)
    def test_a_rolling_restart(
        self, consumption: Consumption, count: int, handler_seconds: float
    ) -> None:
        """The active one of two is stopped: the next continues each partition where it stood."""
        consumption.publish(count)
        consumption.start("c0", handler_seconds=handler_seconds)

        for number in range(4):
            consumption.start(f"c{number + 1}", handler_seconds=handler_seconds)
            _handled(consumption, (number + 1) * len(PARTITIONS) * count // 5)
            consumption.stop(f"c{number}")
        _handled(consumption, len(PARTITIONS) * count)
        consumption.stop("c4")

        assert _in_order(consumption) == {lane: list(range(count)) for lane in PARTITIONS}


def _handled(consumption: Consumption, count: int) -> None:
    """Wait until so many were handled."""
    until(lambda: len(_rows(consumption)) >= count, what=f"message {count}")


def _in_order(consumption: Consumption) -> dict[str, list[int]]:
    """The numbers of each partition in the order in which they were handled."""
    rows = _rows(consumption)
    return {lane: [number for of, number in rows if of == lane] for lane in PARTITIONS}


def _rows(consumption: Consumption) -> list[tuple[str, int]]:
    with consumption.ledger.reading() as tx:
        query = select(arrival.c.lane, arrival.c.number).order_by(arrival.c.id)
        return [(lane, number) for lane, number in tx.connection.execute(query)]

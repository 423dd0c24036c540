"""A table of events whose rows get positions, and programs that give them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence as Rows
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert

from ledgerstone import Ledger
from ledgerstone.engine.duties import Duties
from ledgerstone.items.positions import Positions
from ledgerstone.items.sequence import Sequence, log_table, progress_table
from ledgerstone.items.sequencer import Sequencer
from ledgerstone.ledger import Transaction
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING, serial_type
from tests.harness.drivers import connect

tables = MetaData(naming_convention=NAMING)
event = Table(
    "shop_event",
    tables,
    Column("number", serial_type(), primary_key=True, autoincrement=True),
    Column("stream", String(60), nullable=False),
    Column("version", Integer, nullable=False),
    sqlite_autoincrement=True,
    **MYSQL_TABLE,
)
"""What happened, with gaps in its numbers and late commits."""
stream = Table(
    "shop_stream",
    tables,
    Column("name", String(60), primary_key=True),
    Column("version", Integer, nullable=False),
    **MYSQL_TABLE,
)
"""Whoever raises the version of a stream holds its row until the commit."""
event_log = log_table("shop_event_log", tables)
event_progress = progress_table("shop_event_progress", tables)
EVENTS = Sequence(
    name="events",
    number=event.c.number,
    position=event_log.c.position,
    numbered=event_log.c.number,
    progress=event_progress,
)
EVERY_SECONDS = 0.05
positions = Positions(EVENTS, [event.c.stream, event.c.version])
sequencer = Sequencer(EVENTS)


def happen(tx: Transaction, name: str, version: int = 1) -> None:
    """An event."""
    tx.connection.execute(insert(event).values(stream=name, version=version))


def order(ledger: Ledger) -> list[str]:
    """The streams of all events that have a position, in this order."""
    with ledger.reading() as tx:
        return [str(row.values[0]) for row in positions.after(tx, 0, limit=10_000)]


def problems(url: str) -> list[str]:
    """What is wrong with the log, by the bare driver: it shares no code with what it checks."""
    found = []
    given = _rows(url, "SELECT position, number FROM shop_event_log ORDER BY position")
    rows = dict(_rows(url, "SELECT number, stream FROM shop_event"))
    versions = dict(_rows(url, "SELECT number, version FROM shop_event"))
    if [position for position, _ in given] != list(range(1, len(given) + 1)):
        found.append("the positions have gaps")
    numbers = [number for _, number in given]
    if len(set(numbers)) != len(numbers):
        found.append("a row has two positions")
    if set(numbers) != set(rows):
        found.append(f"{len(set(rows) ^ set(numbers))} rows have no position, or are not there")
    seen: dict[str, int] = {}
    for number in numbers:
        name, version = rows.get(number, ""), versions.get(number, 0)
        # Rows of one transaction have one version: of their order nothing is promised.
        if version < seen.get(name, 0):
            found.append(f"version {version} of {name} is behind {seen[name]}")
        seen[name] = version
    return found


def prefix_kept(before: Rows[Any], after: Rows[Any]) -> bool:
    """Whether what was given stays given."""
    return list(after[: len(before)]) == list(before)


def given(url: str) -> list[Any]:
    """Every position with its number."""
    return _rows(url, "SELECT position, number FROM shop_event_log ORDER BY position")


def _rows(url: str, query: str) -> list[Any]:
    connection = connect(url)
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()


def run(url: str, every_seconds: float = EVERY_SECONDS) -> None:
    """A sequencer as a duty, until its standard input ends."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    with Ledger(url) as ledger:
        duties = Duties(ledger.database, [sequencer.duty(every_seconds=every_seconds)])
        while not over.wait(every_seconds / 2):
            duties.tick()

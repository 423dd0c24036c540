"""What the database says of the promises, read with the bare driver and statements of its own.

It shares no code with what it checks: its table of moves is written out below, from the documents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.harness.drivers import connect

JOBS = ("charge", "mail", "ship", "stamp")
ONCE = ("charge", "mail", "stamp", "book")
"""Effects that are one commit with what caused them."""
MOVES = {
    (None, "queued"),
    ("queued", "running"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "queued"),
    ("failed", "queued"),
}
PROBLEMS_MAX = 20


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: counts of orders, and what is wrong."""

    orders: int
    lost: int
    double: int
    out_of_order: int
    problems: list[str]

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.double or self.out_of_order or self.problems)


def check(url: str, folder: Path) -> Verdict:
    """Judge everything, once there is nothing left to do."""
    with Reader(url) as reader:
        orders = {order: (name, number) for order, name, number in reader.orders()}
        effects = Counter(reader.effects())
        books = [order for what, order in reader.effects() if what == "book"]
        problems = [*_noted(folder, orders), *reader.unfinished(), *_replayed(reader)]
        strange = [
            f"{what} of an order that there is not" for what, o in effects if o not in orders
        ]
    lost = [f"{what} {o}" for o in orders for what in (*ONCE, "ship") if not effects[what, o]]
    double = [f"{what} {o}" for what in ONCE for o in orders if effects[what, o] > 1]
    late = list(_out_of_order(orders, books))
    told = [*problems, *strange]
    for name, found in (("lost", lost), ("twice", double), ("out of order", late)):
        told += [f"{name}: {each}" for each in found[:PROBLEMS_MAX]]
    return Verdict(
        orders=len(orders),
        lost=len(lost),
        double=len(double),
        out_of_order=len(late),
        problems=told[: 3 * PROBLEMS_MAX],
    )


class Reader:
    """The rows of the application and of the ledger."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._cursor = self._connection.cursor()
        if url.startswith("postgresql"):
            self._cursor.execute("SET search_path TO public, ledgerstone")
            self._connection.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query answers, now."""
        self._connection.rollback()
        self._cursor.execute(query)
        return [tuple(row) for row in self._cursor.fetchall()]

    def orders(self) -> list[tuple[Any, ...]]:
        """Id, customer, and the order's place among those of its customer."""
        return self.rows("SELECT id, customer, number FROM shop_order")

    def effects(self) -> list[tuple[Any, ...]]:
        """What was done and for which order, in this order."""
        return self.rows("SELECT what, order_id FROM shop_effect ORDER BY place")

    def done(self) -> int:
        """How much was done so far, for waits."""
        return int(self.rows("SELECT COUNT(*) FROM shop_effect")[0][0])

    def unfinished(self) -> list[str]:
        """Work that is not done, and work that was given up."""
        found = []
        jobs = dict(self.rows("SELECT status, COUNT(*) FROM job GROUP BY status"))
        orders = self.rows("SELECT COUNT(*) FROM shop_order")[0][0]
        if jobs != ({"succeeded": orders * len(JOBS)} if orders else {}):
            found.append(f"{orders} orders, and their jobs stand at {jobs}")
        failed = self.rows("SELECT COUNT(*) FROM messenger_messages")[0][0]
        left = self.rows("SELECT COUNT(*) FROM messenger_outbox WHERE delivered_at IS NULL")[0][0]
        if failed or left:
            found.append(f"{failed} messages have failed, {left} were not delivered")
        return found

    def events(self) -> list[tuple[Any, ...]]:
        """Every event of every job, in the order of its moments: ids are made by many processes."""
        return self.rows("SELECT job_id, prev_status, next_status FROM job_event ORDER BY ts, id")

    def jobs(self) -> list[tuple[Any, ...]]:
        """Id, type, and how often it was begun, at most."""
        return self.rows("SELECT id, type, status FROM job")


def _noted(folder: Path, orders: Collection[str]) -> Iterable[str]:
    """What the producers were told, against what there is."""
    for notes in folder.glob("notes-*"):
        for line in notes.read_text().splitlines():
            said, order = line.split()
            if said == "kept" and order not in orders:
                yield f"accepted and not there: {order}"
            elif said != "kept":
                yield f"{said}: {order}"


def _replayed(reader: Reader) -> Iterable[str]:
    """Each history leads from nothing to where its job stands, by moves that there are."""
    at: defaultdict[str, str | None] = defaultdict(lambda: None)
    ends: Counter[str] = Counter()
    for job, before, after in reader.events():
        job = str(job)  # noqa: PLW2901 - one type on every database
        if before == after:
            continue
        if before != at[job] or (before, after) not in MOVES:
            yield f"job {job} was {at[job]} and is on record from {before} to {after}"
        at[job] = after
        ends[job] += after == "succeeded"
    for job, what, status in reader.jobs():
        if at[str(job)] != status or ends[str(job)] != (status == "succeeded"):
            yield f"{what} {job} is {status}; its history ends {at[str(job)]}"


def _out_of_order(orders: dict[str, tuple[str, int]], books: list[str]) -> Iterable[str]:
    reached: Counter[str] = Counter()
    for order in books:
        if order not in orders:
            continue
        name, number = orders[order]
        if number < reached[name]:
            yield f"order {number} of {name} after {reached[name]}"
        reached[name] = max(reached[name], number)

"""The application of the torture: orders that are placed, charged, shipped, mailed and booked.

    LEDGERSTONE_URL=URL python -m tests.torture.shop place FOLDER --count 500 --seed 1

Its tables and statements are its own. An order, its jobs and its message are one transaction.
Everything done for an order leaves a row in `shop_effect`, and nothing in that table keeps a second
one out: the database itself says what was done, how often, and in which order.

A producer notes in a file which orders it was told are kept, and each order that is there although
the producer was told that it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from ledgerstone import Backoff, BackoffPolicy
from ledgerstone.engine.executors.processes import die_with_parent
from ledgerstone.errors import CommitUnknown, LedgerstoneError
from ledgerstone.ids import new_id
from ledgerstone.jobs import AsyncJob, Job
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging.message import Message
from tests.harness.drivers import connect

PLACED = "order.placed"
CUSTOMERS = 12
ORDERS_MAX = 3
"""Orders of one transaction."""
ATTEMPTS_MAX = 1000
FAILED_PART, SLOW_PART = 0.05, 0.02
TABLES = (
    "CREATE TABLE shop_customer (name VARCHAR(40) PRIMARY KEY, orders INTEGER NOT NULL)",
    "CREATE TABLE shop_order (id VARCHAR(40) PRIMARY KEY, customer VARCHAR(40), number INTEGER)",
    "CREATE TABLE shop_effect (place {serial}, what VARCHAR(20), order_id VARCHAR(40))",
)
SERIALS = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGSERIAL PRIMARY KEY",
    "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY",
}
CLOCK = "clock"
"""The file that says by how many milliseconds every clock is wrong."""


class SteppedClock:
    """The database's clock until a step was made; from then on this machine's, so much wrong."""

    def __init__(self, folder: Path) -> None:
        self._steps = folder / CLOCK

    def now_ms(self) -> int | None:
        try:
            return int(time.time() * 1000) + int(self._steps.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def monotonic(self) -> float:
        return time.monotonic()


def install(url: str) -> None:
    """Make the tables, with all customers."""
    connection = connect(url)
    cursor = connection.cursor()
    for words in TABLES:
        cursor.execute(words.format(serial=SERIALS[url.partition(":")[0]]))
    for number in range(CUSTOMERS):
        cursor.execute(f"INSERT INTO shop_customer VALUES ('customer-{number}', 0)")  # noqa: S608
    connection.commit()
    connection.close()


def place(ledger: Ledger, notes: Path, *, count: int, seed: int) -> None:
    """Place so many orders, each kept exactly once, and note what was said of them."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
    with notes.open("a", buffering=1) as said:
        placed = 0
        while placed < count:
            orders = [new_id() for _ in range(min(dice.randint(1, ORDERS_MAX), count - placed))]
            # In the order of their names: producers wait for each other, never in a circle.
            names = sorted(f"customer-{dice.randrange(CUSTOMERS)}" for _ in orders)
            _place_surely(ledger, list(zip(orders, names, strict=True)), said)
            placed += len(orders)


def _place_surely(ledger: Ledger, orders: list[tuple[str, str]], said: Any) -> None:
    denied = False
    while True:
        try:
            if denied and _kept(ledger, orders[0][0]):
                said.write(f"kept-though-denied {orders[0][0]}\n")
                break
            with ledger.transaction() as tx:
                for order, customer in orders:
                    _place_one(tx, order, customer)
        except CommitUnknown:
            if _kept_at_last(ledger, orders[0][0]):
                break
            denied = True
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            denied = True
            _pause(0.05)
        else:
            break
    for order, _ in orders:
        said.write(f"kept {order}\n")


def _place_one(tx: Transaction, order: str, customer: str) -> None:
    run = tx.connection.exec_driver_sql
    run(f"UPDATE shop_customer SET orders = orders + 1 WHERE name = '{customer}'")  # noqa: S608
    number = run(f"SELECT orders FROM shop_customer WHERE name = '{customer}'").scalar_one()  # noqa: S608
    run(f"INSERT INTO shop_order VALUES ('{order}', '{customer}', {number})")  # noqa: S608
    for what in ("charge", "mail", "ship"):
        tx.jobs.enqueue(what, {"order": order}, key=f"{what}-{order}")
    tx.outbox.publish(PLACED, {"order": order}, partition=customer)


def _kept(ledger: Ledger, order: str) -> bool:
    with ledger.reading() as tx:
        words = f"SELECT COUNT(*) FROM shop_order WHERE id = '{order}'"  # noqa: S608
        return bool(tx.connection.exec_driver_sql(words).scalar_one())


def _kept_at_last(ledger: Ledger, order: str) -> bool:
    """Whether it is kept, once the database answers again."""
    while True:
        try:
            # What is still at work on that commit is over when it lets go of the customer.
            with ledger.transaction() as tx:
                tx.connection.exec_driver_sql("UPDATE shop_customer SET orders = orders + 0")
            return _kept(ledger, order)
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            _pause(0.05)


def work(ledger: Ledger) -> None:
    """Do what there is to do until a signal."""
    dice = random.Random()  # noqa: S311 - no secret
    again = Backoff(policy=BackoffPolicy.FIXED, seconds=0.2)

    def perhaps(attempt: int) -> None:
        """A handler that is slow, or fails at its first attempts."""
        if dice.random() < SLOW_PART:
            _pause(1)
        if attempt <= 2 and dice.random() < FAILED_PART:
            message = "no luck"
            raise RuntimeError(message)

    @ledger.job("charge", max_attempts=ATTEMPTS_MAX, backoff=again)
    def charge(job: Job, order: str) -> None:
        perhaps(job.attempt)
        with job.transaction() as tx:
            _leave(tx, "charge", order)
            tx.jobs.enqueue("stamp", {"order": order}, key=f"stamp-{order}")

    @ledger.job("mail", max_attempts=ATTEMPTS_MAX, backoff=again)
    async def mail(job: AsyncJob, order: str) -> None:
        await asyncio.sleep(0)
        async with job.transaction() as tx:
            await tx.run(lambda inside: _leave(inside, "mail", order))

    @ledger.job("ship", max_attempts=ATTEMPTS_MAX, backoff=again)
    def ship(job: Job, order: str) -> str:
        perhaps(job.attempt)
        ledger.run(lambda tx: _leave(tx, "ship", order))
        job.progress(0.5)
        return order

    @ledger.job("stamp", max_attempts=ATTEMPTS_MAX, backoff=again)
    def stamp(job: Job, order: str) -> None:
        session = ledger.database.engine.connect()
        try:
            with session.begin():
                tx = ledger.join(session)
                _leave(tx, "stamp", order)
                job.complete(tx)
        finally:
            session.close()

    @ledger.consumer(PLACED, name="bookkeeper", ordered=True)
    def book(tx: Transaction, message: Message) -> None:
        if dice.random() < SLOW_PART:
            _pause(0.2)
        _leave(tx, "book", message.body_as(dict[str, str])["order"])

    worker = ledger.worker()
    worker.run(started=lambda: _say({"ready": worker.id}))


def _leave(tx: Any, what: str, order: str) -> None:
    words = f"INSERT INTO shop_effect (what, order_id) VALUES ('{what}', '{order}')"  # noqa: S608
    tx.connection.exec_driver_sql(words)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def main() -> None:
    """Do one of these."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["place", "work"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    # A run of tests that is killed leaves no process behind.
    die_with_parent()
    with Ledger(clock=SteppedClock(arguments.folder)) as ledger:
        if arguments.what == "work":
            work(ledger)
            return
        notes = arguments.folder / f"notes-{os.getpid()}"
        place(ledger, notes, count=arguments.count, seed=arguments.seed)
        _say({"report": {"placed": arguments.count}})


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

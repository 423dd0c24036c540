"""Traffic for crash tests and benchmarks: processes that publish, carry and consume messages.

    LEDGERSTONE_URL=URL python -m tests.harness.traffic publish --count 2500 --seed 1

A shop has accounts. A publisher raises the version of an account and publishes it in the same
transaction, which it then commits or not; a consumer writes down the versions that it is told of,
in the order in which it is. So the database itself says what was committed, what took effect, how
often, and in which order.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

import msgspec
from sqlalchemy import Column, Integer, MetaData, String, Table, bindparam, select, update

from ledgerstone.engine.executors.processes import die_with_parent
from ledgerstone.errors import LedgerstoneError
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging.message import Message
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING, serial_type

EVENT = "account.changed"
CONSUMER = "bookkeeper"
ROLLED_BACK_PART = 0.2
MESSAGES_MAX = 10
"""Messages of one transaction."""

tables = MetaData(naming_convention=NAMING)
account = Table(
    "account",
    tables,
    Column("name", String(60), primary_key=True),
    Column("version", Integer, nullable=False),
    **MYSQL_TABLE,
)
change = Table(
    "account_change",
    tables,
    Column("ticket", String(36), primary_key=True),
    Column("name", String(60), nullable=False),
    Column("version", Integer, nullable=False),
    **MYSQL_TABLE,
)
"""What was committed."""
effect = Table(
    "account_effect",
    tables,
    # Nothing in it keeps a second one out.
    Column("number", serial_type(), primary_key=True, autoincrement=True),
    Column("ticket", String(36), nullable=False),
    Column("name", String(60), nullable=False),
    Column("version", Integer, nullable=False),
    **MYSQL_TABLE,
)
"""What took effect."""

_changed = account.c.name == bindparam("changed")
_raise = update(account).where(_changed).values(version=account.c.version + 1)
_version = select(account.c.version).where(_changed)
_record = change.insert()
_effect = effect.insert()


class Taken(Exception):
    """The transaction is taken back on purpose."""


def install(ledger: Ledger, accounts: int) -> None:
    """Make the shop's tables, with so many accounts."""
    with ledger.database.engine.begin() as connection:
        tables.create_all(connection)
        rows = [{"name": name_of(i), "version": 0} for i in range(accounts)]
        connection.execute(account.insert(), rows)


def name_of(number: int) -> str:
    """The name of an account."""
    return f"account-{number}"


def publish(ledger: Ledger, *, count: int, accounts: int, seed: int) -> None:
    """Publish until so many messages are committed; some transactions are taken back."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
    committed = 0
    while committed < count:
        wanted = min(dice.randint(1, MESSAGES_MAX), count - committed)
        # In the order of their names: publishers wait for each other, never in a circle.
        names = sorted(name_of(dice.randrange(accounts)) for _ in range(wanted))
        taken_back = dice.random() < ROLLED_BACK_PART
        try:
            ledger.run(lambda tx, names=names, back=taken_back: _change(tx, names, back))  # type: ignore[misc]
        except Taken:
            continue
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            continue
        committed += wanted


def _change(tx: Transaction, names: list[str], taken_back: bool) -> None:
    rows = []
    for name in names:
        tx.connection.execute(_raise, {"changed": name})
        version = tx.connection.execute(_version, {"changed": name}).scalar_one()
        row = {"ticket": new_id(), "name": name, "version": version}
        tx.outbox.publish(EVENT, row, partition=name)
        rows.append(row)
    tx.connection.execute(_record, rows)
    if taken_back:
        raise Taken


def note(tx: Transaction, message: Message) -> None:
    """The consumer: write down what it is told."""
    tx.connection.execute(_effect, message.body_as(dict[str, Any]))


def carry(ledger: Ledger, destinations: list[str]) -> None:
    """Carry messages until a signal."""
    ledger.consumer(EVENT, name=CONSUMER, ordered=True)(note)
    worker = ledger.worker(*[ledger.relay_source(name) for name in destinations])
    worker.run(started=lambda: _say({"ready": worker.id}))


def consume(ledger: Ledger, subscription: str) -> None:
    """Consume messages until a signal."""
    ledger.consumer(EVENT, name=CONSUMER, ordered=True)(note)
    worker = ledger.worker(ledger.deliveries(subscription))
    worker.run(started=lambda: _say({"ready": subscription}))


def main() -> None:
    """Do one of these."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["publish", "carry", "consume"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--accounts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    # A run of tests that is killed leaves no process behind.
    die_with_parent()
    with Ledger() as ledger:
        match arguments.what:
            case "publish":
                publish(
                    ledger,
                    count=arguments.count,
                    accounts=arguments.accounts,
                    seed=arguments.seed,
                )
                _say({"report": {"committed": arguments.count}})
            case "carry":
                carry(ledger, arguments.names)
            case _:
                consume(ledger, arguments.names[0])


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

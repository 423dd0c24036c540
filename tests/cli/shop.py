"""An application that publishes and consumes, and what tests of messaging arrange with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from ledgerstone.engine.source import Failure
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger
from ledgerstone.messaging import Message
from ledgerstone.messaging.failed import failed
from ledgerstone.settings import Settings
from tests.cli.program import Program

SHOP = """
from pathlib import Path
from ledgerstone import Ledger

ledger = Ledger()

@ledger.consumer("order.*", name="mailer")
def mail(tx, message):
    if message.name == "order.broken" and not Path("mended").exists():
        raise ValueError("no such order")
    with Path("handled").open("a") as handled:
        handled.write(f"{message.name} {message.id}\\n")
"""
QUIET = Failure("ValueError", "no [such] order")


def open_shop(program: Program, settings: str = "") -> Program:
    """The command, called where an application lies, with these settings."""
    (program.folder / "shop.py").write_text(SHOP)
    (program.folder / "ledgerstone.toml").write_text(settings)
    return program


@contextmanager
def ledger_in(program: Program) -> Iterator[Ledger]:
    """A ledger on the embedded database of the folder, with the settings that lie there."""
    file = program.folder / "ledgerstone.toml"
    settings = Settings.load(
        file if file.exists() else None,
        {},
        url=f"sqlite:///{program.folder}/.ledgerstone/ledgerstone.db",
    )
    with Ledger(settings=settings) as ledger:
        yield ledger


def handled(program: Program) -> list[str]:
    """The names of the messages that the application has handled."""
    file = program.folder / "handled"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.partition(" ")[0] for line in lines]


def published(ledger: Ledger, *names: str, partition: str = "") -> list[str]:
    """Messages of these names; their ids."""
    with ledger.transaction() as tx:
        return [tx.outbox.publish(name, {"n": 1}, partition=partition).id for name in names]


def delivered(ledger: Ledger, *, days_ago: float) -> None:
    """As if everything in the outbox had been delivered then."""
    outbox = ledger.registry.shared.outbox
    then = datetime.now(UTC).replace(tzinfo=None, microsecond=0) - timedelta(days=days_ago)
    with ledger.transaction() as tx:
        tx.execute(update(outbox).values(created_at=then, available_at=then, delivered_at=then))


def failed_ones(
    ledger: Ledger,
    *names: str,
    consumer: str | None = "mailer",
    failure: Failure = QUIET,
    origin: str = "local",
) -> list[int]:
    """Messages that failed; their ids in the failed table."""
    with ledger.transaction() as tx:
        for name in names:
            message = Message(
                id=new_id(),
                name=name,
                raw=b'{"order":7}',
                headers={"tenant": "seven"},
                partition="order-7",
                created_at=datetime.now(UTC),
            )
            failed.put(
                tx,
                ledger.registry,
                message,
                consumer=consumer,
                failure=failure,
                attempts=4,
                origin=origin,
            )
    with ledger.reading() as tx:
        found = [row.id for row in tx.failed.find(limit=len(names)).rows]
    return found[::-1]

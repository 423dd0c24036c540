"""Reminders: words that become a message when they are due."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from sqlalchemy import BigInteger, Column, Index, String, Table, func, select

from ledgerstone import Transaction
from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call, command
from ledgerstone.console.groups import group
from ledgerstone.engine.source import Claim, Handler
from ledgerstone.ids import new_id
from ledgerstone.items import Idle, Items, ItemSource
from ledgerstone.room import Check, CheckStatus, Opened, Room
from ledgerstone.store.schema.columns import id_type, metadata
from ledgerstone.store.sql.batch import AppendEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

reminder = Table(
    "reminder",
    metadata(),
    Column("id", id_type(), primary_key=True),
    Column("words", String(200), nullable=False),
    Column("due_ms", BigInteger),  # NULL: it is over.
    Column("lease_until_ms", BigInteger),  # NULL: no worker has it.
    Column("token", BigInteger, nullable=False),  # Tells one claim from the next.
    Column("worker", String(100)),
    Index("idx_reminder_due", "due_ms", "id"),
    Index("idx_reminder_held", "lease_until_ms"),
)
row_of = reminder.c
_add = AppendEach(
    "reminders.add",
    reminder,
    incoming=(row_of.id, row_of.words, row_of.due_ms),
    values=lambda row: {"due_ms": now_ms() + row.due_ms, "token": 0},
)
_items = Items(
    name="reminders",
    table=reminder,
    key=(row_of.id,),
    due=row_of.due_ms,
    order=(row_of.due_ms, row_of.id),
    token=row_of.token,
    lease=row_of.lease_until_ms,
    worker=row_of.worker,
    done=Idle(),
    body=row_of.words,
)
_waiting = Statement("reminders.waiting", select(func.count(row_of.due_ms)))


class ReminderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The section `[reminders]`."""

    message: Annotated[str, msgspec.Meta(description="The name of the message.")] = "reminder.due"


class Reminders(msgspec.Struct):
    """What can be asked in a transaction: `tx.room(REMINDERS)`."""

    tx: Transaction
    settings: ReminderSettings

    def remind(self, words: str, *, seconds: float = 0) -> None:
        _add.run(self.tx, [(new_id(), words, round(seconds * 1000))])
        self.tx.wake("reminders")

    def waiting(self) -> int:
        return int(_waiting.rows(self.tx)[0][0])


def _source(opened: Opened[ReminderSettings]) -> ItemSource:
    def publish(tx: Transaction, claim: Claim) -> None:
        tx.outbox.publish(opened.state.message, {"words": claim.body})

    return ItemSource(_items, Handler(publish, atomic=True))


def _checks(opened: Opened[ReminderSettings]) -> Iterator[Check]:
    with opened.database.reading() as tx:
        yield Check("reminders", CheckStatus.OK, f"{Reminders(tx, opened.state).waiting()} wait")


def _count(call: Call) -> None:
    """Say how many reminders wait."""
    with ledger_of(call) as ledger, ledger.reading() as tx:
        output.show({"waiting": (n := tx.room(REMINDERS).waiting())}, f"{n} wait", json=call.json)


app = group("Reminders.")
app.command("count")(command(_count))
REMINDERS = Room(
    name="reminders",
    open=lambda settings: settings.section("reminders", ReminderSettings),
    calls=Reminders,
    tables=("reminder",),
    migrations="reminders.migrations",
    settings=ReminderSettings,
    sources=lambda opened: [_source(opened)],
    status={"reminders": lambda at, tx: tx and {"waiting": Reminders(tx, at.state).waiting()}},
    doctor={"reminders": _checks},
    cli={"reminders": "reminders:app"},
)

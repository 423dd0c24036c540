"""Reminders: words that become a message when they are due."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from sqlalchemy import BigInteger, Column, String, Table, bindparam, column, func, select, update

from ledgerstone import Transaction
from ledgerstone.cli import output
from ledgerstone.cli.application import ledger_of
from ledgerstone.cli.call import Call, command
from ledgerstone.cli.groups import group
from ledgerstone.engine.source import Ask, Claim, Handler, Outcome, Verdict
from ledgerstone.ids import new_id
from ledgerstone.room import Check, Opened, Room
from ledgerstone.room import Verdict as Health
from ledgerstone.store.batch import AppendEach, ClaimEach, LockEach, UpdateEach
from ledgerstone.store.expressions import now_ms
from ledgerstone.store.schema import id_type, metadata
from ledgerstone.store.statement import Statement
from ledgerstone.store.transaction import Transaction as StoreTransaction

ENDS = {Verdict.DONE, Verdict.DEAD, Verdict.CANCELED}
reminder = Table(
    "reminder",
    metadata(),
    Column("id", id_type(), primary_key=True),
    Column("words", String(200), nullable=False),
    Column("due_ms", BigInteger),  # Of a claimed one: until when it is claimed. NULL: it is over.
    Column("token", BigInteger, nullable=False),  # Raised by each claim, so it counts attempts too.
)
row_of = reminder.c
lease_ms = bindparam("lease_ms", type_=BigInteger())
_add = AppendEach(
    "reminders.add",
    reminder,
    incoming=(row_of.id, row_of.words, row_of.due_ms),
    values=lambda row: {"due_ms": now_ms() + row.due_ms, "token": 0},
)
_claim = ClaimEach(
    "reminders.claim",
    reminder,
    key=row_of.id,
    due=row_of.due_ms <= now_ms(),
    order_by=(row_of.id,),
    set_={"due_ms": now_ms() + lease_ms, "token": row_of.token + 1},
    returning=(row_of.id, row_of.token, row_of.token, row_of.words),
)
_hold = LockEach("reminders.hold", reminder, key=row_of.id)
_put_off = UpdateEach(
    "reminders.put_off",
    key=row_of.id,
    incoming=(row_of.id, row_of.token, column("delay_ms", BigInteger())),
    build=lambda row: (
        update(reminder)
        .where(row_of.id == row.id, row_of.token == row.token)
        .values(due_ms=now_ms() + row.delay_ms)
    ),
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


class ReminderSource(msgspec.Struct):
    """A claim that is not extended is due again: there is nothing to rescue."""

    settings: ReminderSettings
    name: str = "reminders"
    channel: str = "reminders"

    def handler(self, claim: Claim) -> Handler:
        return Handler(self._publish, atomic=True)

    def claim(self, tx: StoreTransaction, ask: Ask) -> Sequence[Claim]:
        rows = _claim.run(tx, limit=ask.limit, lease_ms=round(ask.lease_seconds * 1000))
        return [Claim(*row) for row in rows]

    def hold(self, tx: StoreTransaction, claims: Sequence[Claim]) -> Sequence[Claim]:
        return [claims[i] for i in _hold.run(tx, [claim.key for claim in claims])]

    def settle(self, tx: StoreTransaction, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        delays = [None if o.verdict in ENDS else 1000 * (o.delay_seconds or 60) for o in outcomes]
        rows = [(o.claim.key, o.claim.token, ms) for o, ms in zip(outcomes, delays, strict=True)]
        return [outcomes[i] for i in _put_off.run(tx, rows)]

    def extend(
        self, tx: StoreTransaction, claims: Sequence[Claim], lease_seconds: float
    ) -> Sequence[Claim]:
        rows = [(claim.key, claim.token, 1000 * lease_seconds) for claim in claims]
        return [claims[i] for i in _put_off.run(tx, rows)]

    def rescue(self, tx: StoreTransaction, *, limit: int, crashes_max: int) -> int:
        return 0

    def _publish(self, tx: Transaction, claim: Claim) -> None:
        tx.outbox.publish(self.settings.message, {"words": claim.body})


def _checks(opened: Opened[ReminderSettings]) -> Iterator[Check]:
    with opened.database.reading() as tx:
        yield Check("reminders", Health.OK, f"{Reminders(tx, opened.state).waiting()} wait")


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
    sources=lambda opened: [ReminderSource(opened.state)],
    status={"reminders": lambda at, tx: tx and {"waiting": Reminders(tx, at.state).waiting()}},
    doctor={"reminders": _checks},
    cli={"reminders": "reminders:app"},
)

"""The public API as a type checker sees it: what an editor completes, and what it refuses.

`make check` runs mypy over this file. `assert_type` fails there if a call gives another type, above
all `Any`; each `type: ignore` is reported there as unused if mypy accepts the misuse beside it. The
functions are never called.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from sqlite3 import Connection as SqliteConnection
from typing import assert_type

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ledgerstone import AsyncTransaction, Ledger, Transaction
from ledgerstone.blobs.async_calls import AsyncBlobs
from ledgerstone.blobs.blobs import Blobs
from ledgerstone.blobs.store import BlobStore
from ledgerstone.engine.source import Claim, Handler, Outcome
from ledgerstone.items import (
    Begun,
    Failures,
    History,
    Idle,
    Items,
    ItemSource,
    More,
    State,
    ToState,
)
from ledgerstone.items.keys import Keys
from ledgerstone.items.positions import Positions, Tail
from ledgerstone.items.sequence import Sequence
from ledgerstone.jobs import AsyncJob, Enqueued, Job, JobRow, Jobs, Schedules, Status
from ledgerstone.jobs.async_calls import AsyncJobs, AsyncSchedules
from ledgerstone.jobs.schedules.rows import Schedule
from ledgerstone.messaging import Failed, Inbox, Message, Outbox
from ledgerstone.messaging.async_calls import AsyncFailed, AsyncInbox, AsyncOutbox
from ledgerstone.protocols import Protocols
from ledgerstone.protocols.async_calls import AsyncProtocols
from ledgerstone.room import Check, Opened, Room, Rooms
from ledgerstone.signing.signing import Signing

DYNAMIC = {
    "Transaction.cursor.return": "each driver has a cursor of its own",
    "Transaction.own_cursor.return": "each driver has a cursor of its own",
    "Transaction.execute.return": "the type that SQLAlchemy gives to rows",
    "Job.ended.value": "called by the engine",
    "Job.ended.return": "called by the engine",
    "Job.remember.answer": "called by the engine",
    "Job.remember.return": "called by the engine",
    "AsyncJob.ended.value": "called by the engine",
    "AsyncJob.ended.return": "called by the engine",
    "AsyncJob.step.call": "the overloads are typed",
    "AsyncJob.step.arguments": "the overloads are typed",
    "AsyncJob.step.named": "the overloads are typed",
    "AsyncJob.step.return": "the overloads are typed",
    "Room.calls": "gets the transaction of the façade, which stands above",
    "Room.status": "gets the transaction of the façade, which stands above",
    "Room.waiting": "gets the transaction of the façade, which stands above",
    "Room.__init__.calls": "as above",
    "Room.__init__.status": "as above",
    "Room.__init__.waiting": "as above",
}
"""Where a public signature has `Any`, and why."""
PUBLIC = (
    *(Ledger, Transaction, AsyncTransaction, Jobs, Schedules, Job, AsyncJob),
    *(Outbox, Inbox, Failed, Blobs, BlobStore, Protocols, Signing),
    *(Message, JobRow, Schedule, Room, Rooms, Opened, Check, Handler, Claim, Outcome, ItemSource),
    *(Items, State, Begun, Failures, ToState, Idle, More, History, Keys, Sequence, Positions, Tail),
)
OF_ANY_TYPE = re.compile(r"\b(Column|ColumnElement|Database|StoreDuties)\[Any\]|\bRoom\[\w+, \w+\]")
"""Columns of any type, databases of any transaction, rooms of any calls or state."""


def of_a_transaction(ledger: Ledger) -> None:
    """A transaction of ours completes with the rooms, and a row has names."""
    with ledger.transaction() as tx:
        assert_type(tx, Transaction)
        assert_type(tx.jobs, Jobs)
        assert_type(tx.schedules, Schedules)
        assert_type(tx.outbox, Outbox)
        assert_type(tx.inbox, Inbox)
        assert_type(tx.failed, Failed)
        assert_type(tx.blobs, Blobs)
        assert_type(tx.protocols, Protocols)
        assert_type(tx.connection, Connection)
        assert_type(tx.jobs.enqueue("mail.send", {"to": "ann"}, key="7"), Enqueued)
        row = tx.jobs.get("0")
        assert_type(row, JobRow)
        assert_type(row.status, Status)
        assert_type(row.payload, dict[str, object])
        assert_type(row.result, object)
        tx.jobs.enqueue(7)  # type: ignore[arg-type]
        tx.jobs.enqueue("mail.send", ["ann"])  # type: ignore[arg-type]
        tx.jobs.enqueue("mail.send", kye="7")  # type: ignore[call-arg]
        tx.jobs.get(7)  # type: ignore[arg-type]
        row[0]  # type: ignore[index]
        tx.job  # type: ignore[attr-defined]  # noqa: B018


def of_a_joined_one(
    ledger: Ledger, connection: Connection, session: Session, driver: SqliteConnection
) -> None:
    """What a synchronous caller joins is a transaction."""
    assert_type(ledger.join(connection), Transaction)
    assert_type(ledger.join(session), Transaction)
    assert_type(ledger.join(driver), Transaction)
    ledger.join("sqlite:///shop.db")  # type: ignore[call-overload]


async def of_an_event_loop(ledger: Ledger, session: AsyncSession) -> None:
    """What an asynchronous caller joins has the same calls, awaited."""
    tx = ledger.join(session)
    assert_type(tx, AsyncTransaction)
    assert_type(tx.jobs, AsyncJobs)
    assert_type(tx.schedules, AsyncSchedules)
    assert_type(tx.outbox, AsyncOutbox)
    assert_type(tx.inbox, AsyncInbox)
    assert_type(tx.failed, AsyncFailed)
    assert_type(tx.blobs, AsyncBlobs)
    assert_type(tx.protocols, AsyncProtocols)
    assert_type(await tx.jobs.enqueue("mail.send", {"to": "ann"}), Enqueued)
    assert_type(await tx.jobs.get("0"), JobRow)
    assert_type(await tx.run(lambda tx: tx.jobs.get("0").status), Status)
    await tx.jobs.enqueue(7)  # type: ignore[arg-type]
    await tx.jobs.enqueue("mail.send", kye="7")  # type: ignore[call-arg]
    tx.jobs.get("0").status  # type: ignore[attr-defined]  # noqa: B018


def of_a_job(job: Job, order: int) -> None:
    """The transaction that ends a job has the rooms, too."""
    with job.transaction() as tx:
        assert_type(tx, Transaction)
        assert_type(tx.outbox, Outbox)
    assert_type(job.attempt, int)
    assert_type(job.step("pay", paid, order), str)
    job.step("pay", paid, "seven")  # type: ignore[arg-type]


async def of_an_async_job(job: AsyncJob) -> None:
    """The same from an async handler."""
    async with job.transaction() as tx:
        assert_type(tx, AsyncTransaction)
        assert_type(await tx.jobs.enqueue("mail.send"), Enqueued)
    await job.progress("half")  # type: ignore[arg-type]


def of_decorators(ledger: Ledger) -> None:
    """A decorated function keeps its own type."""

    @ledger.job("mail.send", max_attempts=3)
    def send(job: Job, to: str) -> int:
        return job.attempt + len(to)

    @ledger.consumer("order.*")
    def reserve(tx: Transaction, message: Message) -> None:
        assert_type(tx.jobs, Jobs)
        assert_type(message, Message)
        assert_type(message.body, object)
        assert_type(message.body_as(dict[str, int]), dict[str, int])

    def typed(job: Job) -> None:
        assert_type(send(job, "ann"), int)
        send(job, 7)  # type: ignore[arg-type]

    ledger.job("mail.send", max_attempts="3")  # type: ignore[arg-type]
    ledger.consumer(reserve)  # type: ignore[arg-type]
    typed  # noqa: B018


def of_a_run(ledger: Ledger) -> None:
    """`run` answers what the function answers."""
    assert_type(ledger.run(lambda tx: tx.jobs.get("0")), JobRow)


def paid(order: int) -> str:
    """A step of a job."""
    return f"paid {order}"


def dynamic(of: type) -> Iterator[str]:
    """The fields, and the parameters and results of public methods, annotated with `Any`."""
    fields = inspect.get_annotations(of)
    for name, annotation in fields.items():
        if not name.startswith("_") and is_dynamic(annotation):
            yield f"{of.__name__}.{name}"
    for name, member in inspect.getmembers(of):
        call = member.fget if isinstance(member, property) else member
        hidden = name in fields or (name.startswith("_") and name != "__init__")
        if hidden or not inspect.isfunction(call):
            continue
        signature = inspect.signature(call)
        found = {name: each.annotation for name, each in signature.parameters.items()}
        found["return"] = signature.return_annotation
        for where, annotation in found.items():
            if is_dynamic(annotation):
                yield f"{of.__name__}.{name}.{where}"


def is_dynamic(annotation: object) -> bool:
    """Whether `Any` stands in an annotation where a caller or a type checker meets it."""
    # The first two of a coroutine are what is sent into it: nothing a caller sees.
    words = str(annotation).replace("Coroutine[Any, Any, ", "")
    return bool(re.search(r"\bAny\b", OF_ANY_TYPE.sub("", words)))


@pytest.mark.parametrize("of", PUBLIC, ids=lambda of: of.__name__)
def test_the_public_calls_have_no_any(of: type) -> None:
    """No parameter and no result of a public call is `Any`, but those in the table."""
    assert [each for each in dynamic(of) if each not in DYNAMIC] == []


def test_the_table_holds_nothing_stale() -> None:
    """Each entry of the table is there."""
    found = {each for of in PUBLIC for each in dynamic(of)}

    assert DYNAMIC.keys() - found == set()

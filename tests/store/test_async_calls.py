"""The calls of an event loop are those of a transaction, with their parameters and answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TypeVar, assert_type

import pytest

from ledgerstone import AsyncTransaction, Ledger, Transaction
from ledgerstone.blobs import Blobs
from ledgerstone.blobs.async_calls import AsyncBlobs
from ledgerstone.errors import NotFound
from ledgerstone.jobs import Jobs
from ledgerstone.jobs.accepting import Enqueued
from ledgerstone.jobs.async_calls import AsyncJobs, AsyncSchedules
from ledgerstone.jobs.read.jobs import JobRow
from ledgerstone.jobs.schedules.schedules import Schedules
from ledgerstone.messaging import Failed, Inbox, Outbox
from ledgerstone.messaging.async_calls import AsyncFailed, AsyncInbox, AsyncOutbox
from ledgerstone.protocols import Protocols
from ledgerstone.protocols.async_calls import AsyncProtocols
from ledgerstone.store.async_calls import awaited
from ledgerstone.store.sql.pages import Page

T = TypeVar("T")
NOT_AWAITED = ("Iterator", "Values")
"""Answers that ask the database again themselves: they are for `tx.run`."""


@pytest.mark.parametrize(
    ("calls", "room"),
    [
        (AsyncJobs, Jobs),
        (AsyncSchedules, Schedules),
        (AsyncOutbox, Outbox),
        (AsyncInbox, Inbox),
        (AsyncFailed, Failed),
        (AsyncBlobs, Blobs),
        (AsyncProtocols, Protocols),
    ],
)
def test_none_is_missing(calls: type, room: type) -> None:
    """Each public method can be awaited, under its own name."""
    methods = {
        name: method
        for name, method in inspect.getmembers(room, inspect.isfunction)
        if not name.startswith("_") and not method.__annotations__["return"].startswith(NOT_AWAITED)
    }
    found = {name: each for name, each in vars(calls).items() if isinstance(each, awaited)}

    assert set(found) == set(methods)
    assert {name: each.__doc__ for name, each in found.items()} == {
        name: method.__doc__ for name, method in methods.items()
    }


def test_they_are_typed(tmp_path: object) -> None:
    """An editor knows what is asked and what is answered; a type checker reads this test."""

    async def asked(tx: AsyncTransaction) -> tuple[JobRow, int]:
        enqueued = assert_type(await tx.jobs.enqueue("mail.send", {"order": 7}), Enqueued)
        found = assert_type(await tx.jobs.get(enqueued.id), JobRow)
        page = assert_type(await tx.jobs.find(type="mail.send", limit=5), Page[JobRow])
        with pytest.raises(NotFound):
            await tx.failed.retry(1, by="ops")
        return found, len(page.rows)

    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        tx = AsyncTransaction(lambda work: asyncio.to_thread(ledger.run, work))
        found, count = asyncio.run(asked(tx))

    assert found.payload == {"order": 7}
    assert count == 1


def test_help_is_theirs() -> None:
    """The signature and the words of a call are those of the method."""
    call: Callable[..., object] = AsyncTransaction(_never).jobs.cancel

    assert inspect.getdoc(call) == inspect.getdoc(Jobs.cancel)
    assert "reason" in inspect.signature(call).parameters


async def _never(work: Callable[[Transaction], T], /) -> T:
    raise AssertionError(work)

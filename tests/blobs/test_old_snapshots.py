"""A caller's transaction that began to read before others wrote: REPEATABLE READ, MySQL's default.

It does what is promised, or says StoreBusy; then the caller begins it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, text

from ledgerstone import Ledger, errors
from ledgerstone.testing.fixtures import Home
from tests.contract.blobs.contents import cut
from tests.contract.blobs.slices import DATA, ID, SIZE, begun, stored

PIECES = cut(DATA, SIZE)
Work = Callable[[Any], object]


@pytest.fixture
def ledger(server_home: Home) -> Iterator[Ledger]:
    """A ledger on a server: a file has one writer."""
    with Ledger(server_home.url) as opened:
        yield opened


@pytest.fixture
def theirs(ledger: Ledger) -> Iterator[Connection]:
    """A caller's connection, at REPEATABLE READ."""
    with ledger.database.engine.connect() as connection:
        yield connection.execution_options(isolation_level="REPEATABLE READ")


def meanwhile(ledger: Ledger, theirs: Connection, others: Work, work: Work) -> None:
    """Work of a transaction that began to read before others wrote; anew if it is told so."""
    theirs.execute(text("SELECT 1 FROM blobs"))
    theirs.execute(text("SELECT 1 FROM blob_owners"))
    ledger.run(others)
    try:
        work(ledger.join(theirs))
        theirs.commit()
    except errors.StoreBusy:
        theirs.rollback()
        ledger.run(work)


@pytest.fixture(autouse=True)
def in_place(ledger: Ledger, theirs: Connection) -> None:
    """Their session finds the tables without a schema."""
    own = ledger.database.namespace.own
    if own and ledger.database.dialect.name == "postgresql":
        theirs.execute(text(f"SET search_path TO {own}"))
        theirs.commit()


def test_complete(ledger: Ledger, theirs: Connection) -> None:
    """Slices that came meanwhile are not taken for missing ones: the file is completed."""
    begun(ledger)
    ledger.run(lambda tx: tx.blobs.put_slices(ID, PIECES[1:5]))

    def work(tx: Any) -> None:
        tx.blobs.put_slice(ID, *PIECES[0])
        assert tx.blobs.complete(ID)

    meanwhile(ledger, theirs, lambda tx: tx.blobs.put_slices(ID, PIECES[5:]), work)

    assert b"".join(ledger.blobs.read(ID)) == DATA


def test_a_slice_that_came(ledger: Ledger, theirs: Connection) -> None:
    """A slice that another one stored meanwhile is repeated, which changes nothing."""
    begun(ledger)

    meanwhile(
        ledger,
        theirs,
        lambda tx: tx.blobs.put_slices(ID, PIECES[:5]),
        lambda tx: tx.blobs.put_slices(ID, PIECES[3:]),
    )

    assert ledger.blobs.complete(ID).completed
    assert b"".join(ledger.blobs.read(ID)) == DATA


def test_a_slice_that_went(ledger: Ledger, theirs: Connection) -> None:
    """A slice that was removed meanwhile, with the others of a wrong content, is stored."""
    begun(ledger)
    wrong = [*PIECES[:10], (10, b"x" * 500)]
    ledger.run(lambda tx: tx.blobs.put_slices(ID, wrong))

    meanwhile(
        ledger,
        theirs,
        lambda tx: tx.blobs.complete(ID),
        lambda tx: tx.blobs.put_slices(ID, PIECES[:5]),
    )
    found = ledger.blobs.get(ID)

    assert found is not None
    assert found.slices == 5


def test_begin(ledger: Ledger, theirs: Connection) -> None:
    """An upload that another one began meanwhile is found."""
    told = []

    def others(tx: Any) -> None:
        tx.blobs.begin(ID, total_size=len(DATA), slice_size=SIZE)
        tx.blobs.put_slice(ID, *PIECES[0])

    def work(tx: Any) -> None:
        told.append(tx.blobs.begin(ID, total_size=len(DATA)))

    meanwhile(ledger, theirs, others, work)

    assert (told[-1].slice_size, told[-1].slices) == (SIZE, 1)


def test_another_owner(ledger: Ledger, theirs: Connection) -> None:
    """A file that got another owner meanwhile does not go with the first one."""
    stored(ledger, owner="a")

    meanwhile(
        ledger, theirs, lambda tx: tx.blobs.own(ID, "b"), lambda tx: tx.blobs.remove_owner("a")
    )

    assert ledger.run(lambda tx: tx.blobs.owners(ID)) == ["b"]
    assert b"".join(ledger.blobs.read(ID)) == DATA


def test_an_owner_that_went(ledger: Ledger, theirs: Connection) -> None:
    """An owner that another one removed meanwhile is gone, and removing it ends."""
    stored(ledger, owner="a")

    meanwhile(
        ledger,
        theirs,
        lambda tx: tx.blobs.remove_owner("a"),
        lambda tx: tx.blobs.remove_owner("a"),
    )

    assert ledger.blobs.get(ID) is None

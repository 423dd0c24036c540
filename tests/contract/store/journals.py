"""The journal contract: what changes rows tells another table of exactly those rows."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    cast,
    column,
    select,
    update,
)

from ledgerstone import errors
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING, id_type, text_type
from ledgerstone.store.sql.batch import ROWS_MAX, AppendEach, ClaimEach, Journal, UpdateEach

tables = MetaData(naming_convention=NAMING)
parcel = Table(
    "parcel",
    tables,
    Column("id", id_type(), primary_key=True),
    Column("state", String(10), nullable=False),
    Column("scanned", BigInteger, nullable=False),
    **MYSQL_TABLE,
)
Index("idx_parcel_state", parcel.c.state, parcel.c.id)
scan = Table(
    "scan",
    tables,
    Column("id", id_type(), primary_key=True),
    Column("parcel_id", id_type(), nullable=False),
    Column("words", text_type()),
    Column("place", String(10), nullable=False),
    Column("scanned", BigInteger, nullable=False),
    **MYSQL_TABLE,
)
Told = list[tuple[str, str | None, str, int]]


def _scanned(parcel_id: Any) -> Any:
    return select(parcel.c.scanned).where(parcel.c.id == parcel_id).scalar_subquery()


_append = AppendEach(
    "scans.append",
    scan,
    incoming=(scan.c.id, scan.c.parcel_id, scan.c.words),
    values=lambda row: {
        "place": bindparam("place", type_=scan.c.place.type),
        "scanned": _scanned(row.parcel_id),
    },
)
_journal = Journal(
    append=_append,
    carried=(column("words", text_type()),),
    told=lambda row, _: (new_id(), row[0], row[-1]),
    columns=lambda row: (row.id, row.words),
    copied={"scanned": parcel.c.scanned},
)
accept = AppendEach(
    "parcels.accept",
    parcel,
    incoming=(parcel.c.id, parcel.c.state),
    values=lambda _: {"scanned": 1},
    journal=_journal,
)
move = UpdateEach(
    "parcels.move",
    key=parcel.c.id,
    incoming=(parcel.c.id,),
    build=lambda row: (
        update(parcel)
        .where(parcel.c.id == row.id, parcel.c.state == "new")
        .values(state="moved", scanned=parcel.c.scanned + 1)
    ),
    journal=_journal,
)
take = ClaimEach(
    "parcels.take",
    parcel,
    key=parcel.c.id,
    due=parcel.c.state == "new",
    order_by=(parcel.c.id,),
    set_={"state": "taken", "scanned": parcel.c.scanned + 1},
    returning=(parcel.c.id, parcel.c.state, parcel.c.scanned),
    journal=Journal(
        append=_append,
        told=lambda row, _: (new_id(), str(row[0]), f"{row[1]} {row[2]}"),
        columns=lambda row: (row.id, row.state + " " + cast(row.scanned, Text)),
        copied={"scanned": parcel.c.scanned},
        usual={"state": "taken", "scanned": 2},
    ),
)


class JournalContract:
    """What holds for AppendEach, UpdateEach and ClaimEach with a journal. Fixture: `ledger`."""

    @pytest.fixture(autouse=True)
    def parcels(self, ledger: Ledger) -> None:
        """Parcels, and what was scanned of them."""
        tables.create_all(ledger.database.engine)

    @pytest.mark.parametrize("count", [1, 2, ROWS_MAX + 1])
    def test_what_is_added(self, ledger: Ledger, count: int) -> None:
        """One line for each, with its own words and what its row holds, whatever their number."""
        ids = sorted(new_id() for _ in range(count))

        rows = [(one, "new", f"n{i}") for i, one in enumerate(ids)]
        ledger.run(lambda tx: accept.run(tx, rows, place="door"))

        assert _told(ledger) == [(one, f"n{i}", "door", 1) for i, one in enumerate(ids)]
        assert _states(ledger) == dict.fromkeys(ids, "new")

    def test_words_that_are_none(self, ledger: Ledger) -> None:
        """Nothing said is kept as nothing, of one, of some and of all."""
        ids = sorted(new_id() for _ in range(5))
        words = ["", None, None, None, "'\"\\{}"]

        for part in (slice(0, 1), slice(1, 2), slice(2, 5)):
            rows = [(one, "new", said) for one, said in zip(ids[part], words[part], strict=True)]
            ledger.run(lambda tx: accept.run(tx, rows, place="door"))  # noqa: B023 - run at once

        assert _told(ledger) == [(one, w, "door", 1) for one, w in zip(ids, words, strict=True)]

    def test_what_is_changed(self, ledger: Ledger) -> None:
        """Of what no row matched nothing is told."""
        ids = sorted(new_id() for _ in range(4))
        ledger.run(lambda tx: accept.run(tx, [(one, "new", None) for one in ids], place="door"))
        ledger.run(lambda tx: move.run(tx, [(ids[1], "early")], place="belt"))

        rows = [(one, f"n{i}") for i, one in enumerate([ids[0], ids[1], new_id(), ids[3]])]
        refused = ledger.run(lambda tx: move.run(tx, rows, place="truck"))

        assert refused == [1, 2]
        assert [line for line in _told(ledger) if line[3] > 1] == [
            (ids[0], "n0", "truck", 2),
            (ids[1], "early", "belt", 2),
            (ids[3], "n3", "truck", 2),
        ]

    @pytest.mark.parametrize(
        "words", [["same"] * 3, ["same", "same", "other"], ["same", None, "same"]]
    )
    def test_words_that_are_alike(self, ledger: Ledger, words: list[str | None]) -> None:
        """Each keeps its own words, also where all or some say the same."""
        ids = sorted(new_id() for _ in words)

        added = [(one, "new", said) for one, said in zip(ids, words, strict=True)]
        ledger.run(lambda tx: accept.run(tx, added, place="door"))
        ledger.run(lambda tx: move.run(tx, [(row[0], row[2]) for row in added], place="belt"))

        assert _told(ledger) == [
            (one, said, place, number)
            for one, said in zip(ids, words, strict=True)
            for number, place in ((1, "door"), (2, "belt"))
        ]

    def test_what_is_taken(self, ledger: Ledger) -> None:
        """It is told of as it is then, also of one that is not as most are."""
        ids = sorted(new_id() for _ in range(4))
        ledger.run(lambda tx: accept.run(tx, [(one, "new", None) for one in ids], place="door"))
        ledger.run(lambda tx: move.run(tx, [(ids[1], None)], place="belt"))
        with ledger.transaction() as tx:
            tx.connection.execute(update(parcel).values(state="new"))

        taken = ledger.run(lambda tx: take.run(tx, limit=3, place="hand"))

        assert [str(row[0]) for row in taken] == ids[:3]
        assert [line for line in _told(ledger) if line[2] == "hand"] == [
            (ids[0], "taken 2", "hand", 2),
            (ids[1], "taken 3", "hand", 3),
            (ids[2], "taken 2", "hand", 2),
        ]

    def test_neither_without_the_other(self, ledger: Ledger) -> None:
        """What cannot be told of is not there either."""
        one = new_id()

        with pytest.raises(errors.StoreError):
            ledger.run(lambda tx: accept.run(tx, [(one, "new", None)], place=None))

        assert _states(ledger) == {}
        assert _told(ledger) == []


def _told(ledger: Ledger) -> Told:
    with ledger.reading() as tx:
        rows = tx.connection.execute(select(scan).order_by(scan.c.parcel_id, scan.c.scanned))
        return [(str(row[1]), row[2], row[3], row[4]) for row in rows]


def _states(ledger: Ledger) -> dict[str, str]:
    with ledger.reading() as tx:
        rows = tx.connection.execute(select(parcel.c.id, parcel.c.state))
        return {str(row[0]): row[1] for row in rows}

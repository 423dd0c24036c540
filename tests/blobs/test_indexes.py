"""What is asked of files is answered from an index, however many there are, on every database."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import insert

from ledgerstone import Ledger
from ledgerstone.blobs import blobs as calls
from ledgerstone.blobs import content, expiry, slots
from ledgerstone.blobs.tables import blobs, owners, slices
from ledgerstone.store.sql.statement import Statement
from ledgerstone.testing.fixtures import Home
from tests.contract.blobs.contents import content as content_of
from tests.contract.blobs.contents import cut, hash_of
from tests.harness.reads import rows_read
from tests.store.test_indexes import analyze, plan

ROWS = 3000
ID = hash_of(b"0")
SLOW = {
    "sqlite": r"SCAN (?!.*USING)|TEMP B-TREE",
    "postgres": r"Seq Scan",
    "mysql": r"filesort",
}


@pytest.fixture
def many(ledger: Ledger, home: Home) -> None:
    """Many files, of which few expire, with slices and owners."""
    ids = [hash_of(str(number).encode()) for number in range(ROWS)]
    with ledger.transaction() as tx:
        tx.execute(
            insert(blobs),
            [
                {
                    "file_id": file_id,
                    "total_size": 1,
                    "completed": number % 100 > 0,
                    "created_at_ms": number,
                    "expires_at_ms": None if number % 100 else number,
                }
                for number, file_id in enumerate(ids)
            ],
        )
        for table, row in ((slices, {"slice_no": 0, "offset": 0, "data": b"x"}), (owners, {})):
            owned = {"owner": "a"} if table is owners else row
            tx.execute(insert(table), [owned | {"file_id": each} for each in ids])
        more = [{"file_id": ID, "slice_no": n, "offset": n, "data": b"x"} for n in range(1, ROWS)]
        tx.execute(insert(slices), more)
    for table in (blobs, slices, owners):
        analyze(home, ledger, table.name)


@pytest.mark.usefixtures("many")
def test_how_much_is_read(ledger: Ledger, home: Home) -> None:
    """Of many rows a call reads those that it answers, and about as many as it has to skip."""
    cases: list[tuple[Statement, dict[str, Any], int]] = [
        (expiry._overdue, {"limit_": 10}, 10),
        (expiry._some, {"file_id_": ID, "limit_": 10}, 10),
        (content._at, {"file_id_": ID, "position": 1500}, 1),
        (slots._taken, {"file_id_": ID, "slot": 1500, "last": 1510}, 11),
        (slots._data, {"file_id_": ID, "slot": 1500}, 1),
        (calls._owners, {"file_id_": ID}, 1),
        (calls._owner_left, {"file_id_": ID}, 1),
        (calls._list._first, {"limit": 10}, 10),
    ]

    with ledger.transaction() as tx:
        for statement, values, answered in cases:
            statement.rows(tx, **values)
            read = rows_read(home.kind, tx, lambda: statement.rows(tx, **values))  # noqa: B023

            assert read <= 3 * answered + 10, f"{statement.name} reads {read}"


def test_a_piece_of_a_new_file(ledger: Ledger, home: Home) -> None:
    """Of a file that is most of its table, and was not analyzed yet, a piece is a row."""
    data = content_of(1000)
    file_id = hash_of(data)
    ledger.run(lambda tx: tx.blobs.begin(file_id, total_size=len(data), slice_size=1))
    ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(data, 1)))
    values = {"file_id_": file_id, "position": 600}

    with ledger.transaction() as tx:
        content._at.rows(tx, **values)
        read = rows_read(home.kind, tx, lambda: content._at.rows(tx, **values))

    assert read < 10


@pytest.mark.usefixtures("many")
def test_files_come_from_indexes(ledger: Ledger, home: Home) -> None:
    """Expired uploads, a slice at a position, taken slots, owners and pages read few rows."""
    cases: list[tuple[Statement, str, dict[str, Any]]] = [
        (expiry._overdue, "idx_blobs_expires_at_ms", {"limit_": 10}),
        (content._at, "idx_blob_slices_offset", {"file_id_": ID, "position": 1500}),
        (slots._taken, "", {"file_id_": ID, "slot": 1500, "last": 1510}),
        (calls._owners, "idx_blob_owners_file_id", {"file_id_": ID}),
        (calls._list._first, "idx_blobs_created", {"limit": 10}),
    ]

    with ledger.transaction() as tx:
        for statement, index, values in cases:
            told = plan(home, tx, statement, **values)

            assert index in told, f"{statement.name}: {told}"
            assert not re.search(SLOW[home.kind], told), f"{statement.name}: {told}"

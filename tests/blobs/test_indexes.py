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
from tests.contract.blobs.contents import hash_of
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

"""Migrates rows that the original left in a form of its own: in the default family, as operands.

Rows of the default family are moved into the families that their keys belong into.

- Each step is one transaction over a bounded number of rows: a row is in one family or the other.
- A row that its family has already, with the same value, is only removed from the default family.
- A row that its family has with another value stays where it is, and is reported: nothing is
  overwritten. Volumes are added up instead, since both parts were spent.
- Keys with no known prefix, such as `cfg:app`, stay.

Volumes that the original merged are operands until its merge operator adds them up. RocksDB appends
them here, and the original does not know a value of several numbers: their sum is written instead.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from ledgerstone.errors import LockTimeout, StoreBusy
from ledgerstone.failpoints import hit
from ledgerstone.signing.families import family_of
from ledgerstone.signing.keys import Family, VolumeKey
from ledgerstone.signing.rocksdb import Database, Row, Transaction
from ledgerstone.signing.volume import NUMBER_BYTES, added, volume_of, volume_value

STEP_ROWS = 500
STEP_BYTES_MAX = 8 * 1024 * 1024
STEP_TRIES_MAX = 5
CONFLICTS_SHOWN_MAX = 20


class MigrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration.

    `conflicts` counts the rows that stayed, because their family holds another value under the
    same key; `conflict_keys` are the first of their keys.
    """

    moved: int
    conflicts: int
    conflict_keys: list[bytes]


def migrate(database: Database) -> MigrationReport:
    """Move everything that is not where it belongs; after a crash, or twice, the rest."""
    moved, conflicts = 0, 0
    conflict_keys: list[bytes] = []
    after: bytes | None = None
    while True:
        rows = _next_rows(database, after)
        if not rows:
            return MigrationReport(moved=moved, conflicts=conflicts, conflict_keys=conflict_keys)
        left = _step(database, [row.key for row in rows if family_of(row.key) is not None])
        hit("signing.migrating")
        moved += sum(family_of(row.key) is not None for row in rows) - len(left)
        conflicts += len(left)
        conflict_keys += left[: CONFLICTS_SHOWN_MAX - len(conflict_keys)]
        after = rows[-1].key


def _next_rows(database: Database, after: bytes | None) -> list[Row]:
    start = b"" if after is None else after + b"\0"
    rows: list[Row] = []
    size = 0
    with database.scan(Family.DEFAULT, start=start) as scan:
        for row in islice(scan, STEP_ROWS):
            rows.append(row)
            size += len(row.value)
            if size >= STEP_BYTES_MAX:
                break
    return rows


def _step(database: Database, keys: list[bytes]) -> list[bytes]:
    """Move the keys in one transaction; those that stayed because of a conflict."""
    if not keys:
        return []
    for number in range(STEP_TRIES_MAX):
        try:
            with database.transaction() as tx:
                left = [key for key in keys if not _moved(tx, key)]
                tx.commit()
        except StoreBusy as error:
            if number == STEP_TRIES_MAX - 1 or isinstance(error, LockTimeout):
                raise
        else:
            return left
    return []


def _moved(tx: Transaction, key: bytes) -> bool:
    family = family_of(key)
    assert family is not None
    value = tx.get_for_update(Family.DEFAULT, key)
    if value is None:
        return True
    found = tx.get_for_update(family, key)
    if family is Family.VOLUME:
        total = added(volume_of(found, key), volume_of(value, key))
        tx.put(family, key, volume_value(total))
    elif found is None:
        tx.put(family, key, value)
    elif found != value:
        return False
    tx.delete(Family.DEFAULT, key)
    return True


def add_up_volumes(database: Database) -> int:
    """Write the sum of each volume that is several operands; how many there were.

    A value that is damaged stays as it is: reading it reports the damage.
    """
    found = [
        (family, row.key)
        for family in (Family.DEFAULT, Family.VOLUME)
        for row in database.scan_prefix(family, VolumeKey.prefix)
        if _is_several(row.value)
    ]
    for number in range(0, len(found), STEP_ROWS):
        with database.transaction() as tx:
            for family, key in found[number : number + STEP_ROWS]:
                value = tx.get_for_update(family, key)
                tx.put(family, key, volume_value(volume_of(value, key)))
            tx.commit()
    return len(found)


def _is_several(value: bytes) -> bool:
    return len(value) > NUMBER_BYTES and len(value) % NUMBER_BYTES == 0

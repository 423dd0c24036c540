"""Files at a glance, for `status` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import BigInteger, and_, bindparam, case, func, select

from ledgerstone.blobs.tables import blobs
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

COUNTED_MAX = 10_000
_newest = (
    select(blobs.c.completed, blobs.c.bytes_stored, blobs.c.expires_at_ms, blobs.c.disk_name)
    .order_by(blobs.c.created_at_ms.desc(), blobs.c.file_id.desc())
    .limit(bindparam("limit_", type_=BigInteger()))
    .subquery("newest")
)
_on_disk = and_(_newest.c.completed, _newest.c.disk_name.is_not(None))
_count = Statement(
    "blobs.count",
    select(
        func.coalesce(func.sum(case((_newest.c.completed, 1), else_=0)), 0),
        func.count(),
        func.coalesce(func.sum(_newest.c.bytes_stored), 0),
        func.coalesce(func.sum(case((_newest.c.expires_at_ms <= now_ms(), 1), else_=0)), 0),
        func.coalesce(func.sum(case((_on_disk, 1), else_=0)), 0),
    ).select_from(_newest),
)


class BlobFacts(msgspec.Struct, frozen=True):
    """Files at a glance, of the newest COUNTED_MAX; `expired` waits for its removal."""

    completed: int
    uploading: int
    expired: int
    bytes: int
    on_disk: int
    counted_max: int


def facts_of(tx: Transaction) -> BlobFacts:
    """Files at a glance, each number counted up to a most."""
    row = _count.one(tx, limit_=COUNTED_MAX)
    assert row is not None
    completed, all_, size, expired, on_disk = map(int, row)
    uploading = all_ - completed - expired
    return BlobFacts(completed, uploading, expired, size, on_disk, COUNTED_MAX)

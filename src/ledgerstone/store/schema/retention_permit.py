"""The permit of retention, without which a trigger refuses the deletion of history.

The permit is a row that the deleting transaction inserts and deletes; no other transaction sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, insert

from ledgerstone.ids import new_id
from ledgerstone.store.schema.columns import id_type
from ledgerstone.store.schema.tables import history_permit
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_id = bindparam("id_", type_=id_type())
_permit = Statement("store.permit", insert(history_permit).values(id=_id))
_withdraw = Statement(
    "store.withdraw_permit", delete(history_permit).where(history_permit.c.id == _id)
)


@contextmanager
def permitted(tx: Transaction) -> Iterator[None]:
    """Permit the transaction to delete history in this block."""
    permit = new_id()
    _permit.run(tx, id_=permit)
    yield
    _withdraw.run(tx, id_=permit)

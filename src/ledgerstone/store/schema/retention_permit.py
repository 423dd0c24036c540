"""The permit of retention: the database refuses to remove history but with one.

It is a row that the removing transaction adds and takes away again, and that no other ever sees.
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
    """In this block the transaction may remove history."""
    permit = new_id()
    _permit.run(tx, id_=permit)
    yield
    _withdraw.run(tx, id_=permit)

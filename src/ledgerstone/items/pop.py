"""Read and delete a claimed item in the transaction of its handler.

For a table whose done items are deleted: the handler's writes and the deletion of the item commit
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, select

from ledgerstone.errors import LeaseLost
from ledgerstone.items.claim import ItemClaim
from ledgerstone.items.declaration import Delete, Items
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class Pop:
    """Reads and deletes items of a table; `columns` are returned to the handler."""

    def __init__(self, items: Items, columns: Sequence[Any]) -> None:
        assert isinstance(items.done, Delete), "items of this table stay when they are done"
        own = [
            column == bindparam(f"key_{i}", type_=column.type) for i, column in enumerate(items.key)
        ]
        held = (items.token == bindparam("token_", type_=items.token.type), items.held)
        self._look = Statement(
            f"{items.name}.look", select(*columns).where(*own, *held).with_for_update()
        )
        self._remove = Statement(f"{items.name}.pop", delete(items.table).where(*own))

    def run(self, tx: Transaction, claim: ItemClaim) -> Row:
        """Delete the item of a claim and return its `columns`; LeaseLost if the claim was lost."""
        key = {f"key_{i}": part for i, part in enumerate(claim.parts)}
        row = self._look.one(tx, token_=claim.token, **key)
        if row is None:
            raise LeaseLost(f"the lease of {claim.title} ran out")
        self._remove.run(tx, **key)
        return row

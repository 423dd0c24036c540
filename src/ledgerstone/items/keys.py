"""Idempotency keys: an item is accepted once for each key, also after the item was deleted.

    same key, same content     the existing item
    same key, other content    a conflict
    a free key                 taken for the new item, in the transaction that accepts it

Keys are stored in a table of their own, so that a key outlives its item. `Keys` takes the free keys
and returns the holders of the others; the room compares the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Column, bindparam, select

from ledgerstone.errors import StoreBusy
from ledgerstone.store.sql.batch import Incoming, InsertEach
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class KeyRequest(NamedTuple):
    """A key to be taken for an item with this content; `scope` are the values of `Keys.scope`."""

    item: str
    scope: tuple[str, ...]
    key: str
    content_hash: str


class KeyHolder(NamedTuple):
    """The item that holds a key, and the hash of its content."""

    item: str
    content_hash: str


class Keys:
    """The table of keys of one kind of item.

    - `scope` and `key` are its primary key, `item` and `content` its other columns.
    - `values` makes further values of a key that is taken.
    - `looks_up` makes values that are read from other tables; see `InsertEach`.
    """

    def __init__(
        self,
        name: str,
        *,
        scope: Sequence[Column[Any]] = (),
        key: Column[Any],
        item: Column[Any],
        content: Column[Any],
        values: Callable[[Incoming], Mapping[str, object]],
        looks_up: Callable[[Incoming], Mapping[str, object]] | None = None,
    ) -> None:
        self._take = InsertEach(
            f"{name}.take_key",
            key.table,
            incoming=(item, *scope, key, content),
            values=values,
            looks_up=looks_up,
            key=item,
        )
        self._scope = tuple(scope)
        named = [each == bindparam(f"of_{each.name}", type_=each.type) for each in (*scope, key)]
        self._key_name = f"of_{key.name}"
        self._holder = Statement(f"{name}.by_key", select(item, content).where(*named))

    def take(self, tx: Transaction, wanted: Sequence[KeyRequest]) -> dict[int, KeyHolder]:
        """Take the free keys; returns the holders of the others, by position in `wanted`.

        Keys are inserted in key order, so that two calls with the same keys in another order cannot
        deadlock.
        """
        order = sorted(range(len(wanted)), key=lambda i: (wanted[i].scope, wanted[i].key))
        rows = [(w.item, *w.scope, w.key, w.content_hash) for w in (wanted[i] for i in order)]
        left_out = self._take.run(tx, rows) if rows else ()
        return {order[n]: self.holder(tx, wanted[order[n]]) for n in left_out}

    def holder(self, tx: Transaction, wanted: KeyRequest) -> KeyHolder:
        """The holder of the key; StoreBusy if the snapshot of this transaction does not show it."""
        named = {f"of_{c.name}": value for c, value in zip(self._scope, wanted.scope, strict=True)}
        found = self._holder.one(tx, **named, **{self._key_name: wanted.key})
        if found is None:
            # A transaction that committed after the snapshot of this one has taken it.
            words = f"the key {wanted.key!r} was taken by another transaction at the same time"
            raise StoreBusy(words, hint="run the transaction again")
        return KeyHolder(str(found[0]), found[1])

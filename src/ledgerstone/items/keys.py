"""Idempotency keys: an item is accepted once for each key, whatever happens to it afterwards.

    same key, same content     the item there is
    same key, other content    a conflict
    a key that is free         it is taken for the new item, in the transaction that accepts it

The keys have a table of their own, so that a key outlives its item. Which case it is, a room says:
`Keys` takes those that are free and answers who has the others.
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


class Wanted(NamedTuple):
    """A key that is to be taken for an item with this content; its scope is as the table has it."""

    item: str
    scope: tuple[str, ...]
    key: str
    content_hash: str


class Holder(NamedTuple):
    """The item that has a key, and its content."""

    item: str
    content_hash: str


class Keys:
    """The keys of one kind of item.

    - `scope` and `key` are the primary key of the table, `item` and `content` what it keeps.
    - `values` are further values of a key that is taken.
    - `looks_up` answers values that are read from other tables, see `InsertEach`.
    """

    def __init__(
        self,
        name: str,
        *,
        scope: Sequence[Column[Any]] = (),
        key: Column[Any],
        item: Column[Any],
        content: Column[Any],
        values: Callable[[Incoming], Mapping[str, Any]],
        looks_up: Callable[[Incoming], Mapping[str, Any]] | None = None,
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

    def take(self, tx: Transaction, wanted: Sequence[Wanted]) -> dict[int, Holder]:
        """Take those that are free; who has the others, by their position.

        They are taken in the order of the keys, so that two calls that want the same ones in
        another order do not wait for each other in a circle.
        """
        order = sorted(range(len(wanted)), key=lambda i: (wanted[i].scope, wanted[i].key))
        rows = [(w.item, *w.scope, w.key, w.content_hash) for w in (wanted[i] for i in order)]
        left_out = self._take.run(tx, rows) if rows else ()
        return {order[n]: self.holder(tx, wanted[order[n]]) for n in left_out}

    def holder(self, tx: Transaction, wanted: Wanted) -> Holder:
        """Who has the key."""
        named = {f"of_{c.name}": value for c, value in zip(self._scope, wanted.scope, strict=True)}
        found = self._holder.one(tx, **named, **{self._key_name: wanted.key})
        if found is None:
            # Taken by a transaction that this one, begun earlier, is not allowed to see.
            words = f"the key {wanted.key!r} was taken by another transaction at the same time"
            raise StoreBusy(words, hint="run the transaction again")
        return Holder(str(found[0]), found[1])

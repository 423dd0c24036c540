"""Rescue: items whose lease ran out become due again, or die.

    expired, not locked ──▶ its worker is alive and lists the claim: not rescued
                        └─▶ token up ──▶ due at once, crashes up
                                     ├─▶ due at once, crashes as before: the attempt had not begun
                                     └─▶ dead: crashes_max reached

The token is raised first: a worker that is still alive cannot settle its claim any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, bindparam, column, null, select, update
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.engine.source import mark_of
from ledgerstone.engine.worker_rows import LastHeartbeat, last_words
from ledgerstone.items.declaration import Items
from ledgerstone.items.key import key_words
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.locked_rows import ChangeEach
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class ExpiredItem(NamedTuple):
    """An item whose lease ran out; `token` is the raised one, `more` are the room's columns."""

    key: Row
    token: int
    attempt: int
    crashes: int
    attempts_max: int | None
    worker: str | None
    waited: bool
    """Whether the last heartbeat shows that the attempt had not begun."""
    word: LastHeartbeat | None
    """The last heartbeat of its worker."""
    more: Row

    @property
    def is_last(self) -> bool:
        """Whether this was the last attempt."""
        return self.attempts_max is not None and self.attempt >= self.attempts_max

    def is_over(self, crashes_max: int) -> bool:
        """Whether this crash is the last one that the item may have."""
        return not self.waited and self.crashes + 1 >= crashes_max

    @property
    def reason(self) -> str:
        return f"the lease of {self.worker} ran out"


class Rescue:
    """Finds items whose lease ran out and raises their tokens.

    - `where` selects the items of one source; `more` are further columns to read.
    - `order` is by default the end of the lease; a table without an index on it names another.
    """

    def __init__(
        self,
        items: Items,
        *,
        where: ColumnElement[bool] | None = None,
        more: Sequence[Any] = (),
        order: Sequence[Any] | None = None,
    ) -> None:
        self._width = len(items.key)
        self._last_counts = items.attempts_max is not None
        state = items.state
        held = items.lease.is_not(None) if state is None else state.stands(state.held)
        expired = held & (items.lease <= now_ms())
        self._find = Statement(
            f"{items.name}.expired",
            select(
                *items.key,
                items.token,
                items.next_token,
                items.attempt.column if items.attempt is not None else null(),
                items.crashes if items.crashes is not None else null(),
                items.attempts_max if isinstance(items.attempts_max, ColumnElement) else null(),
                items.worker if items.worker is not None else null(),
                *more,
            )
            .where(expired if where is None else expired & where)
            .order_by(*([items.lease] if order is None else order))
            .limit(bindparam("limit", type_=BigInteger()))
            .with_for_update(skip_locked=True),
        )
        self._raise = ChangeEach(
            f"{items.name}.take_back",
            items.table,
            key=items.key,
            fence=(items.token,),
            guard=items.is_held_by,
            carries=(column("next_token", BigInteger()),),
            change=lambda row: update(items.table).values({items.token.name: row.next_token}),
            looks=(null(),),
        )

    def run(self, tx: Transaction, *, limit: int, **common: Any) -> list[ExpiredItem]:
        """At most `limit` items, still held: the caller settles them in this transaction."""
        width = self._width
        rows = self._find.rows(tx, limit=limit, **common)
        words = last_words(tx, [row[width + 5] for row in rows])
        raised, expired = [], []
        for row in rows:
            key = tuple(row[:width])
            token, next_token, attempt, crashes, attempts_max, worker, *more = row[width:]
            word = words.get(worker)
            mark = mark_of(key_words(key), token)
            if word is not None and word.keeps(mark):
                continue
            is_last = attempts_max is not None and attempt >= attempts_max
            crashes = crashes or 0
            waited = word is not None and word.waited(mark, crashes=crashes, last=is_last)
            raised.append((*key, token, next_token))
            expired.append(
                ExpiredItem(
                    *(key, next_token, attempt or 0, crashes, attempts_max, worker, waited, word),
                    tuple(more),
                )
            )
        self._raise.run(tx, raised)
        return expired

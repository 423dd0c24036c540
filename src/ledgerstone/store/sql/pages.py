"""Keyset pages: each page of a list begins after the last row of the page before.

Every page costs the same, and new rows do not shift a page. The cursor is opaque and has a checksum
over the list, its filters and the database: an altered cursor, or one of another list, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec
from sqlalchemy import BigInteger, Select, and_, bindparam, or_, select, union_all

from ledgerstone.errors import BadInput
from ledgerstone.store.sql.expressions import beyond
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import ColumnElement

    from ledgerstone.store.transaction import Transaction

LIMIT_MAX = 1000
STEP_ROWS = 1000
STEPS_MAX = 10
"""The most steps of `sifted`."""
CURSOR_CHARS_MAX = 2048
KEYS_KEPT = 1024
_CHECK_BYTES = 12

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some rows, and the cursors of the next and the previous page; None at an end of the list."""

    rows: list[T]
    next: str | None
    previous: str | None = None


class Keyset(Generic[T]):
    """A list in a fixed order.

    - The columns of `order` are selected by `query`, and unique together.
    - `split` are conditions of which exactly one holds for each row; an index has the rows of each
      in this order, and a page is selected from one page of each.
    - `crowded`: many rows have the same first value, so the index look-up uses all columns.
    - `make` makes an element of a page from a row.
    - Filters are parameters of `query`, given at each read; a cursor belongs to its filters.
    """

    def __init__(
        self,
        name: str,
        query: Select[Any],
        *,
        order: Sequence[ColumnElement[Any]],
        descending: bool = False,
        split: Sequence[ColumnElement[bool]] = (),
        crowded: bool = False,
        make: Callable[[Row], T],
    ) -> None:
        self.name = name
        self._make = make
        self._made: Callable[[list[Row]], Iterable[T]] = partial(map, make)
        selected = list(query.selected_columns)
        names = [column.key for column in selected]
        self._positions = [names.index(column.key) for column in order]

        def page(kind: str, rows: Select[Any], *, descending: bool) -> Statement:
            expression = _page(rows, order=order, descending=descending, split=split)
            return Statement(f"{name}.{kind}_page", expression, amend=_prepared_once)

        def behind(*, descending: bool) -> Select[Any]:
            return query.where(
                beyond(order, _after(order), descending=descending)
                if crowded
                else _behind(order, descending=descending)
            )

        self._first = page("first", query, descending=descending)
        self._next = page("next", behind(descending=descending), descending=descending)
        before = behind(descending=not descending)
        self._previous = page("previous", before, descending=not descending)

    @classmethod
    def of(cls, name: str, query: Select[Any], *, fields: Callable[..., T], **options: Any) -> Self:
        """A list whose rows are made by a class that takes the columns, one by one."""
        made = cls(name, query, make=lambda row: fields(*row), **options)
        made._made = partial(starmap, fields)
        return made

    def read(
        self, tx: Transaction, *, limit: int, cursor: str | None = None, **filters: Any
    ) -> Page[T]:
        """One page."""
        _check_limit(limit)
        key = self._key(tx, filters)
        rows, more = self._rows(tx, limit, cursor, key, filters)
        return Page(
            list(self._made(rows)),
            self._behind(rows[-1], key) if more else None,
            self._behind(rows[0], key) if rows and cursor is not None else None,
        )

    def read_back(self, tx: Transaction, *, limit: int, cursor: str, **filters: Any) -> Page[T]:
        """The page that ends before the cursor, in the same order."""
        _check_limit(limit)
        key = self._key(tx, filters)
        after = self._cursor(cursor, key)
        rows = self._previous.rows(tx, limit=limit + 1, **filters, **after)
        more, rows = len(rows) > limit, rows[:limit][::-1]
        return Page(
            list(self._made(rows)),
            self._behind(rows[-1], key) if rows else None,
            self._behind(rows[0], key) if more else None,
        )

    def sifted(
        self,
        tx: Transaction,
        fits: Callable[[T], bool],
        *,
        limit: int,
        cursor: str | None = None,
        **filters: Any,
    ) -> Page[T]:
        """A page of the rows for which `fits` holds, found by a bounded scan.

        It may have fewer rows than `limit`, even none, and still a next page.
        """
        _check_limit(limit)
        key = self._key(tx, filters)
        found: list[T] = []
        for _ in range(STEPS_MAX):
            rows, more = self._rows(tx, STEP_ROWS, cursor, key, filters)
            for row in rows:
                made = self._make(row)
                if not fits(made):
                    continue
                found.append(made)
                if len(found) == limit:
                    more = more or row is not rows[-1]
                    return Page(found, self._behind(row, key) if more else None)
            if not more:
                return Page(found, None)
            cursor = self._behind(rows[-1], key)
        return Page(found, cursor)

    def _rows(
        self, tx: Transaction, limit: int, cursor: str | None, key: bytes, filters: dict[str, Any]
    ) -> tuple[list[Row], bool]:
        """At most `limit` rows, and whether there are more."""
        if cursor is None:
            rows = self._first.rows(tx, limit=limit + 1, **filters)
        else:
            after = self._cursor(cursor, key)
            rows = self._next.rows(tx, limit=limit + 1, **filters, **after)
        return rows[:limit], len(rows) > limit

    def _cursor(self, cursor: str, key: bytes) -> dict[str, Any]:
        after = {f"after_{i}": value for i, value in enumerate(_opened(cursor, key))}
        if len(after) != len(self._positions):
            raise _foreign()
        return after

    def _behind(self, row: Row, key: bytes) -> str:
        return _sealed([row[i] for i in self._positions], key)

    def _key(self, tx: Transaction, filters: dict[str, Any]) -> bytes:
        return _key_of(self.name, tx.database.identity_in(tx), tuple(filters.items()))


@lru_cache(maxsize=KEYS_KEPT)
def _key_of(name: str, identity: str, filters: tuple[tuple[str, Any], ...]) -> bytes:
    """The key of the checksum, from the list, its filters and the database."""
    named = msgspec.json.encode([name, dict(filters)], order="deterministic")
    return hashlib.sha256(identity.encode() + named).digest()


def _check_limit(limit: Any) -> None:
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise BadInput(f"a page has 1 to {LIMIT_MAX} rows, not {limit!r}")


def _page(
    query: Select[Any],
    *,
    order: Sequence[ColumnElement[Any]],
    descending: bool,
    split: Sequence[ColumnElement[bool]],
) -> Select[Any]:
    """The first rows in this order, selected from all rows or from the first rows of each part."""

    def first(rows: Select[Any], columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
        ordered = rows.order_by(*[c.desc() if descending else c.asc() for c in columns])
        return ordered.limit(bindparam("limit", type_=BigInteger()))

    if not split:
        return first(query, order)
    parts = [first(query.where(each), order).subquery(f"part_{i}") for i, each in enumerate(split)]
    every = union_all(*(select(part) for part in parts)).subquery("every_part")
    return first(select(every), [every.c[str(column.key)] for column in order])


def _prepared_once(text: str) -> str:
    """SQLite plans a statement with a bare parameter in LIMIT anew each time that it is bound."""
    return text.replace("LIMIT ? OFFSET ?", "LIMIT ? + 0 OFFSET ?")


def _behind(order: Sequence[ColumnElement[Any]], *, descending: bool) -> ColumnElement[bool]:
    """Rows after the cursor, in a form for which every database uses an index.

    For (a, b): a <= :a AND (a < :a OR (a = :a AND b < :b)).
    """
    after = _after(order)
    steps = []
    for i, column in enumerate(order):
        farther = column < after[i] if descending else column > after[i]
        same = [order[j] == after[j] for j in range(i)]
        steps.append(and_(*same, farther))
    lead = order[0] <= after[0] if descending else order[0] >= after[0]
    return and_(lead, or_(*steps))


def _after(order: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    return [bindparam(f"after_{i}", type_=column.type) for i, column in enumerate(order)]


def _sealed(values: Sequence[Any], key: bytes) -> str:
    body = msgspec.json.encode([str(v) if not isinstance(v, int | str) else v for v in values])
    return _spelled(_check(body, key) + body)


def _check(body: bytes, key: bytes) -> bytes:
    """The signature of a cursor, by this database's key; BLAKE2 takes a fraction of HMAC's time."""
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES, key=key).digest()


def _spelled(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _opened(cursor: Any, key: bytes) -> list[Any]:
    # A caller may pass any object.
    if not isinstance(cursor, str) or len(cursor) > CURSOR_CHARS_MAX:
        raise _foreign()
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except (binascii.Error, ValueError):
        raise _foreign() from None
    # The decoder ignores foreign characters and surplus bits.
    if _spelled(raw) != cursor:
        raise _foreign()
    check, body = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
    if not hmac.compare_digest(check, _check(body, key)):
        raise _foreign()
    values: list[Any] = msgspec.json.decode(body)
    return values


def _foreign() -> BadInput:
    return BadInput("the cursor does not belong to this list", hint="begin again without a cursor")

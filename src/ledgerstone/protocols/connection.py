"""What a handler is given: the framework's connection, for SQL that cannot end the transaction.

A handler writes SQL with `:name` for each parameter, the same text for all databases. Only
statements that read or change rows are sent: a commit, a rollback, and DDL, which commits on MySQL,
are refused before they reach the database. Nothing on the way to the driver's connection is handed
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, column, select, table, text
from sqlalchemy.sql.selectable import TableClause

from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.protocols.results import Reason
from ledgerstone.protocols.tables import OURS
from ledgerstone.protocols.values import Values
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.rows import InsertRows, PutRow
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction

STATEMENTS_MAX = 2000
"""Texts that are kept compiled."""
WORDS_NAMED = 4
SHOWN_CHARS_MAX = 80
_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`"
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_NO_CODE = re.compile(f"{_QUOTED}|{_COMMENT.pattern}", re.DOTALL)
"""In one pass: a quote in a comment begins no text, and two hyphens in a text begin no comment."""
_READS = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_CHANGES = re.compile(r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)
_TARGETS = re.compile(
    rf"\b(?:INTO|UPDATE|FROM)\s+[\"`\[]?(?:{'|'.join(OURS)})\b[\"`\]]?", re.IGNORECASE
)
_OWN = "a projector writes the tables of its protocol's schema.sql"
_HINT = "the framework owns the transaction: a handler sends SELECT, INSERT, UPDATE and DELETE"


class Reading:
    """Rows of the protocol's tables, as the transaction sees them; nothing can be changed."""

    def __init__(self, tx: Transaction, protocol: str, now_ms: int) -> None:
        self._tx = tx
        self.protocol = protocol
        self.now_ms = now_ms

    @property
    def values(self) -> Values:
        """Flags and counters of the protocol."""
        return Values(self._tx, self.protocol)

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        """What the query answers."""
        return _reading(sql).rows(self._tx, **parameters)

    def one(self, sql: str, **parameters: Any) -> Row | None:
        """The first row that the query answers, if there is one."""
        rows = self.rows(sql, **parameters)
        return rows[0] if rows else None

    def exists(self, sql: str, **parameters: Any) -> bool:
        """Whether the query answers a row."""
        return bool(self.rows(sql, **parameters))

    def page(
        self,
        of: str,
        columns: Sequence[str],
        *,
        order: Sequence[str],
        limit: int,
        cursor: str | None = None,
        back: bool = False,
        ascending: bool = False,
        where: Mapping[str, Any] | None = None,
    ) -> Page[Row]:
        """One page of a table, the newest rows first.

        - `order` is a time and what tells rows of one time apart, and is among the columns.
        - `where` are values that columns have: an index that begins with them and goes on with the
          order makes each page as cheap as the first.
        - `cursor` is one of the page before; `back` reads the page in front of it.
        """
        values = dict(where or {})
        list_ = _listing(of, tuple(columns), tuple(order), tuple(values), ascending)
        filters = {f"{name}_": value for name, value in values.items()}
        if not back:
            return list_.read(self._tx, limit=limit, cursor=cursor, **filters)
        if cursor is None:
            raise BadInput("a page before another one begins at a cursor")
        return list_.read_back(self._tx, limit=limit, cursor=cursor, **filters)


class Projecting(Reading):
    """The same for a projector, which changes rows of the protocol's tables."""

    def __init__(self, tx: Transaction, protocol: str, now_ms: int) -> None:
        super().__init__(tx, protocol, now_ms)
        self.unblocked: dict[Reason, None] = {}

    def execute(self, sql: str, **parameters: Any) -> int:
        """Send an INSERT, UPDATE or DELETE; how many rows it changed."""
        return _changing(sql).run(self._tx, **parameters)

    def insert(self, into: str, **values: Any) -> bool:
        """Add a row; False if a unique value of it is taken: then nothing is changed."""
        return bool(_inserting(into, tuple(values)).run(self._tx, [_given(values)]))

    def put(self, into: str, key: Sequence[str], **values: Any) -> None:
        """Add a row, or give the one that has this key these values."""
        _putting(into, tuple(key), tuple(values)).run(self._tx, **_given(values))

    def unblock(self, kind: str, key: str) -> None:
        """What waits for this key is looked at again, after the commit."""
        reason = Reason(kind, key)
        reason.check()
        self.unblocked[reason] = None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_": value for name, value in values.items()}


@lru_cache(maxsize=STATEMENTS_MAX)
def _reading(sql: str) -> Statement:
    bare = _bare(sql)
    if _READS.match(bare) is None or _WRITES.search(bare):
        raise NotAllowedNow(f"this is no query: {_shown(sql)}", hint="a query begins with SELECT")
    return _statement(sql, writes=False)


@lru_cache(maxsize=STATEMENTS_MAX)
def _changing(sql: str) -> Statement:
    bare = _bare(sql)
    if _CHANGES.match(bare) is None:
        raise NotAllowedNow(f"a handler cannot send this: {_shown(sql)}", hint=_HINT)
    if _WRITES.search(bare) and _TARGETS.search(_named(sql)):
        raise NotAllowedNow(f"this table is not the protocol's: {_shown(sql)}", hint=_OWN)
    return _statement(sql, writes=True)


@lru_cache(maxsize=STATEMENTS_MAX)
def _inserting(into: str, names: tuple[str, ...]) -> InsertRows:
    return InsertRows(f"protocols.insert {into}", _table(into, names), columns=names)


@lru_cache(maxsize=STATEMENTS_MAX)
def _putting(into: str, key: tuple[str, ...], names: tuple[str, ...]) -> PutRow:
    return PutRow(f"protocols.put {into}", _table(into, names), key=key, columns=names)


@lru_cache(maxsize=STATEMENTS_MAX)
def _listing(
    of: str,
    columns: tuple[str, ...],
    order: tuple[str, ...],
    filtered: tuple[str, ...],
    ascending: bool,
) -> Keyset[Row]:
    listed = table(of, *[column(each) for each in dict.fromkeys((*columns, *filtered))])
    query = select(*[listed.c[each] for each in columns]).where(
        *[listed.c[each] == bindparam(f"{each}_") for each in filtered]
    )
    return Keyset(
        f"protocols.page {of} {' '.join(order)}",
        query,
        order=[listed.c[each] for each in order],
        descending=not ascending,
        make=tuple,
    )


def _table(name: str, names: Sequence[str]) -> TableClause:
    if name.lower() in OURS:
        raise NotAllowedNow(f"{name} is not a table of the protocol", hint=_OWN)
    if not names:
        raise BadInput(f"a row of {name} has values")
    return table(name, *[column(each) for each in names])


def _statement(sql: str, *, writes: bool) -> Statement:
    name = " ".join(_COMMENT.sub(" ", sql).split()[:WORDS_NAMED])
    return Statement(f"protocols.sql {name}", text(sql), writes=writes)


def _bare(sql: str) -> str:
    """The text without quotes and comments; more than one statement is refused.

    MySQL carries out what stands in `/*! … */`: no comment, so it is refused.
    """
    if "/*!" in sql or "/*M!" in sql:
        raise NotAllowedNow(f"a comment that is carried out: {_shown(sql)}", hint=_HINT)
    bare = _NO_CODE.sub(lambda found: " " if found[0][0] in "-/" else "''", sql)
    if ";" in bare.rstrip().removesuffix(";"):
        raise NotAllowedNow(f"one statement at a time: {_shown(sql)}", hint=_HINT)
    return bare


def _named(sql: str) -> str:
    """The text without literals and comments, with the names that are quoted."""
    return _NO_CODE.sub(lambda found: found[0] if found[0][0] in '"`' else " ", sql)


def _shown(sql: str) -> str:
    words = " ".join(sql.split())
    return words if len(words) <= SHOWN_CHARS_MAX else f"{words[: SHOWN_CHARS_MAX - 1]}…"

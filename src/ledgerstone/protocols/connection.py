"""What a handler is given: the framework's connection, for SQL that cannot end the transaction.

A handler writes SQL with `:name` for each parameter, the same text for all databases. Only what
reads or changes rows is sent (`sql`): a commit, a rollback, and DDL, which commits on MySQL, are
refused before they reach the database. Nothing on the way to the driver's connection is handed out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, column, select, table, text
from sqlalchemy.sql.selectable import TableClause

from ledgerstone.errors import BadInput
from ledgerstone.protocols.results import Reason
from ledgerstone.protocols.row_values import sent
from ledgerstone.protocols.sql import COMMENT, check_change, check_query, check_table
from ledgerstone.protocols.values import KeptValues, Values
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.rows import InsertRows, UpsertRow
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction

if TYPE_CHECKING:
    from ledgerstone.protocols.protocol import Protocol

STATEMENTS_MAX = 2000
"""Texts that are kept compiled."""
WORDS_NAMED = 4


class Reading:
    """Rows of the protocol's tables, as the transaction sees them; nothing can be changed."""

    def __init__(self, tx: Transaction, protocol: str, now_ms: int) -> None:
        self._tx = tx
        self.protocol = protocol
        self.now_ms = now_ms

    @property
    def values(self) -> KeptValues:
        """Flags and counters of the protocol."""
        return KeptValues(self._tx, self.protocol)

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

    def __init__(self, tx: Transaction, protocol: Protocol, now_ms: int) -> None:
        super().__init__(tx, protocol.name, now_ms)
        self._tables = protocol.tables
        self._checks = protocol.checks
        self.unblocked: dict[Reason, None] = {}

    @property
    def values(self) -> Values:
        """Flags and counters of the protocol, to be changed with its tables."""
        return Values(self._tx, self.protocol)

    def execute(self, sql: str, **parameters: Any) -> int:
        """Send an INSERT, UPDATE or DELETE; how many rows it changed."""
        return _changing(sql, self._tables).run(self._tx, **parameters)

    def insert(self, into: str, **values: Any) -> bool:
        """Add a row; False if a unique value of it is taken: then nothing is changed.

        BadInput if a value has not the declared type of its column.
        """
        check_table(into, self._tables)
        given = sent(into, self._checks[into.lower()], values)
        return bool(_inserting(into, tuple(values)).run(self._tx, [given]))

    def put(self, into: str, key: Sequence[str], **values: Any) -> None:
        """Add a row, or give the one that has this key these values."""
        check_table(into, self._tables)
        given = sent(into, self._checks[into.lower()], values)
        _putting(into, tuple(key), tuple(values)).run(self._tx, **given)

    def unblock(self, kind: str, key: str) -> None:
        """What waits for this key is looked at again, after the commit."""
        reason = Reason(kind, key)
        reason.check()
        self.unblocked[reason] = None


@lru_cache(maxsize=STATEMENTS_MAX)
def _reading(sql: str) -> Statement:
    check_query(sql)
    return _statement(sql, writes=False)


@lru_cache(maxsize=STATEMENTS_MAX)
def _changing(sql: str, tables: frozenset[str]) -> Statement:
    check_change(sql, tables)
    return _statement(sql, writes=True)


@lru_cache(maxsize=STATEMENTS_MAX)
def _inserting(into: str, names: tuple[str, ...]) -> InsertRows:
    return InsertRows(f"protocols.insert {into}", _table(into, names), columns=names)


@lru_cache(maxsize=STATEMENTS_MAX)
def _putting(into: str, key: tuple[str, ...], names: tuple[str, ...]) -> UpsertRow:
    return UpsertRow(f"protocols.put {into}", _table(into, names), key=key, columns=names)


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
    if not names:
        raise BadInput(f"a row of {name} has values")
    return table(name, *[column(each) for each in names])


def _statement(sql: str, *, writes: bool) -> Statement:
    name = " ".join(COMMENT.sub(" ", sql).split()[:WORDS_NAMED])
    return Statement(f"protocols.sql {name}", text(sql), writes=writes)

"""Statements over many rows at once, written once and carried out natively by each dialect.

The rows of a batch travel together: as arrays on PostgreSQL, as one JSON document elsewhere, which
the database reads while Python does other things. A statement names the columns that travel, which
hold text and whole numbers, and refers to them through `Incoming`:

    settle = UpdateEach(
        "orders.settle",
        key=order.c.id,
        incoming=(order.c.id, order.c.token, order.c.status),
        build=lambda row: (
            update(order)
            .where(order.c.id == row.id, order.c.token == row.token)
            .values(status=row.status)
        ),
    )
    refused = settle.run(tx, [("0192…", 3, "done"), …])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import BigInteger, Column, Text, bindparam, column, literal, null
from sqlalchemy.sql.elements import (
    ClauseElement,
    ColumnClause,
    ColumnElement,
    UnaryExpression,
)
from sqlalchemy.sql.operators import desc_op

from ledgerstone.store.connections.faults import refused
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from sqlalchemy import Select, Table, Update

    from ledgerstone.store.transaction import Transaction

ROWS_MAX = 1000
"""Rows in one statement; a longer batch is carried out in several."""
CHARS_MAX = 1_048_576
"""Characters of unlimited text in one statement of more than one row: as JSON, and quoted, they are
several times as many bytes, and MySQL takes 16 MiB in one packet."""
MOST: ColumnClause[int] = column("most", BigInteger())
"""How many rows of its group a travelling row asks for."""


class Incoming:
    """The columns of the travelling rows, by name."""

    def __init__(self, columns: Mapping[str, ColumnElement[Any]]) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        # `Any`: each column has its own type, known only to the statement that names it.
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(name) from None


class SingleRow:
    """The columns of a single row, as parameters of a statement."""

    def __init__(self, columns: Sequence[ColumnClause[Any]]) -> None:
        self._names = [f"one_{column.name}" for column in columns]
        self.incoming = Incoming(
            {
                column.name: bindparam(name, type_=column.type)
                for name, column in zip(self._names, columns, strict=True)
            }
        )

    def values(self, row: Row) -> dict[str, Any]:
        """What the statement is given for this row."""
        return dict(zip(self._names, row, strict=True))


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What is told, in another table, of each row that a statement changes.

    Where a database can, by that statement itself, elsewhere by a second one: so it is said twice.
    - `carried` are columns that travel for it, behind those of the statement.
    - `told` makes the row that `append` takes: of the row that travelled, or was taken, and of the
      parameters of the call.
    - `columns` are the same, as expressions over the key and what is carried, or over what a claim
      returns; without the new id, which is the first, if the journal does not count its rows.
    - `copied` are columns of the journal and of the changed row: they hold the same. A second
      statement has to look that up, in the `values` of `append`.
    - `usual` are values that most rows have, by column: what is told of these is worked out once.
    """

    append: AppendEach
    carried: tuple[ColumnClause[Any], ...] = ()
    told: Callable[[Row, Mapping[str, Any]], Row]
    columns: Callable[[Incoming], Sequence[ColumnElement[Any]]]
    copied: Mapping[str, ColumnClause[Any]] = {}
    usual: Mapping[str, Any] = {}

    @property
    def has_id(self) -> bool:
        """Whether a row of the journal is given its id, and not counted by the database."""
        first = self.append.incoming[0]
        return isinstance(first, Column) and first.primary_key

    def run(self, tx: Transaction, rows: Sequence[Row], common: Mapping[str, Any]) -> None:
        self.append.run(tx, [self.told(row, common) for row in rows], **common)


class UpdateEach:
    """Change many rows, each found by the values that travel for it; a locked row is waited for.

    - All of a batch happen in the caller's transaction, in the order of their keys.
    - `run` answers the positions of the rows that no row of the table matched, in order.
    - `apply` is for rows that are known to match, or where it does not matter: nothing is answered.
    - The key stays as it is.
    - With a `journal` it is told of each row that matched.
    """

    def __init__(
        self,
        name: str,
        *,
        key: ColumnClause[Any],
        incoming: Sequence[ColumnClause[Any]],
        build: Callable[[Incoming], Update],
        journal: Journal | None = None,
    ) -> None:
        self.name = name
        self.key = key
        self.incoming = incoming
        self.carried = carried_columns(incoming, journal)
        self.build = build
        self.journal = journal
        self.key_position = [column.name for column in incoming].index(key.name)
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> list[int]:
        unmatched: list[int] = []
        for start, part in parts_of(rows, self.carried):
            unmatched.extend(start + i for i in self._run(tx, part, common))
        return unmatched

    def apply(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> None:
        """Change them all."""
        dialect = tx.database.dialect
        for _, part in parts_of(rows, self.carried):
            if self.journal is None or dialect.tells:
                dialect.apply_each(self, tx, part, common)
            else:
                width = len(self.incoming)
                dialect.apply_each(self, tx, [row[:width] for row in part], common)
                self.journal.run(tx, part, common)

    def in_order(self, rows: Sequence[Row]) -> list[int]:
        """The positions in the order of the keys, in which every batch takes its locks."""
        return sorted(range(len(rows)), key=lambda i: rows[i][self.key_position])

    def _run(self, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]) -> list[int]:
        dialect = tx.database.dialect
        keys = {row[self.key_position] for row in rows}
        if len(keys) < len(rows):
            # A row that is named twice is changed once and once more.
            return [i for i, row in enumerate(rows) if self._run(tx, [row], common)]
        if self.journal is None or dialect.tells:
            return dialect.update_each(self, tx, rows, common)
        width = len(self.incoming)
        unmatched = dialect.update_each(self, tx, [row[:width] for row in rows], common)
        gone = set(unmatched)
        matched = [row for i, row in enumerate(rows) if i not in gone]
        if matched:
            self.journal.run(tx, matched, common)
        return unmatched


class RowInsert:
    """What adds rows: the columns that travel, and what else is written with them."""

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        incoming: Sequence[ColumnClause[Any]],
        values: Callable[[Incoming], Mapping[str, Any]] | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.incoming = incoming
        self.alone = SingleRow(incoming)
        self.values = values
        self.statements: dict[str, Statement] = {}

    def assignments(self, row: Incoming) -> dict[str, Any]:
        """Column by column, what is inserted for a travelling row.

        What travels under a name that the table does not have is there for `values` to use.
        """
        names = [column.name for column in self.incoming if column.name in self.table.c]
        carried = {name: getattr(row, name) for name in names}
        extra = self.values(row) if self.values else {}
        written = {name: _written(self.table.c[name], value) for name, value in extra.items()}
        return carried | written


class AppendEach(RowInsert):
    """Add many rows of which none can be taken already.

    With a `journal` it is told of each of them.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        incoming: Sequence[ColumnClause[Any]],
        values: Callable[[Incoming], Mapping[str, Any]] | None = None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(name, table, incoming=incoming, values=values)
        self.journal = journal
        self.carried = carried_columns(incoming, journal)

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> None:
        for _, part in parts_of(rows, self.carried):
            self._run(tx, part, common)

    def _run(self, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]) -> None:
        dialect = tx.database.dialect
        if self.journal is None or dialect.tells:
            dialect.append_each(self, tx, rows, common)
            return
        width = len(self.incoming)
        dialect.append_each(self, tx, [row[:width] for row in rows], common)
        self.journal.run(tx, rows, common)


class AddEach(RowInsert):
    """Add many rows to a table that counts them, and answer their numbers in the same order."""

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> list[int]:
        numbers: list[int] = []
        for _, part in parts_of(rows, self.incoming):
            numbers += tx.database.dialect.add_each(self, tx, part, common)
        return numbers

    @property
    def number(self) -> ColumnElement[Any]:
        """The column that counts."""
        (column,) = self.table.primary_key.columns
        return column


class InsertEach(RowInsert):
    """Add many rows; a row whose unique value is taken is left out.

    - Answers the positions of the rows that were left out, in order.
    - Rows left out are counted as refused duplicates.
    - `locks`: a row that is there already can be locked by whoever found it so, also by several at
      once without waiting in a circle. Which were left out is then not always known: look at them.
    - `looks_up` answers values that are read from other tables; they come in the place of those
      that travel. A row that is written with another key then counts as left out. Where to read a
      row in the same statement is to lock it, or the gap in which it is missing, nothing is looked
      up: a unique constraint of the other table has to tell.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        incoming: Sequence[ColumnClause[Any]],
        values: Callable[[Incoming], Mapping[str, Any]] | None = None,
        key: ColumnClause[Any] | None = None,
        locks: bool = False,
        looks_up: Callable[[Incoming], Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(name, table, incoming=incoming, values=values)
        self.locks = locks
        self.looks_up = looks_up
        self.key = key if key is not None else incoming[0]
        self.key_position = [column.name for column in incoming].index(self.key.name)

    def looked_up(self, row: Incoming) -> dict[str, Any]:
        """As `assignments`, with what is read from other tables."""
        return self.assignments(row) | dict(self.looks_up(row) if self.looks_up else {})

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> list[int]:
        left_out: list[int] = []
        for start, part in parts_of(rows, self.incoming):
            found = tx.database.dialect.insert_each(self, tx, part, common)
            left_out.extend(start + i for i in found)
        if left_out:
            tx.database.measure.note(self.name, 0.0, refused=len(left_out))
        return left_out


class ClaimEach:
    """Take rows that are due, at most so many, each by one taker.

    - Rows locked by another taker are passed over, not waited for.
    - `returning` answers the values after `set_`; in the order of `order_by`, whose columns hold no
      NULL and are not changed by `set_`.
    - The parameter `limit` is given at each run.
    - With a `journal` it is told of each row that is taken.
    - An index has the columns of `due` and then those of `order_by`: MySQL locks every due row that
      it has to sort, so that a claimer beside this one would find nothing. Where `index` names it,
      MySQL does not believe that it knows better, as it does of a small table.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        key: ColumnClause[Any] | Sequence[ColumnClause[Any]],
        due: ColumnElement[bool],
        order_by: Sequence[Any],
        set_: Mapping[str, Any],
        returning: Sequence[Any],
        journal: Journal | None = None,
        index: str | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.index = index
        self.keys: Sequence[ColumnClause[Any]] = [key] if isinstance(key, ColumnClause) else key
        self.due = due
        self.order_by = order_by
        self.set_ = set_
        self.returning = returning
        self.journal = journal
        self.statements: dict[str, Statement] = {}
        ordering = [_plain(part) for part in order_by]
        there = list(map(id, returning))
        self.answered = [*returning, *[c for c in ordering if id(c) not in there]]
        """What a statement that answers in any order returns, so that `in_order` can sort it."""
        places = [list(map(id, self.answered)).index(id(c)) for c in ordering]
        self._places = [
            (i, part is not c) for i, part, c in zip(places, order_by, ordering, strict=True)
        ]
        self.places_set = [
            i
            for i, c in enumerate(returning)
            if isinstance(c, ColumnClause) and c.name in set_ and c.table is table
        ]
        """Where the answer holds what the statement sets."""

    def run(self, tx: Transaction, *, limit: int, **common: Any) -> list[Row]:
        dialect = tx.database.dialect
        taken = dialect.claim_each(self, tx, min(limit, ROWS_MAX), common)()
        if self.journal is not None and not dialect.tells:
            self.journal.run(tx, taken, common)
        return taken

    def later(self, tx: Transaction, *, limit: int, **common: Any) -> Callable[[], list[Row]]:
        """As `run`; what was taken is read when this is called. For one without a journal."""
        return tx.database.dialect.claim_each(self, tx, min(limit, ROWS_MAX), common)

    def after(self, column: Any) -> ColumnElement[Any]:
        """What a column holds once the row is taken; an expression over such is as it is."""
        if not isinstance(column, ColumnClause):
            return cast("ColumnElement[Any]", column)
        return _written(column, self.set_.get(column.name, column))

    def in_order(self, rows: list[Row]) -> list[Row]:
        """Rows of `answered` in the order of `order_by`, without what is there for that alone."""
        # The sort is stable: the column that counts least goes first.
        for place, descending in reversed(self._places):
            rows.sort(key=itemgetter(place), reverse=descending)
        width = len(self.returning)
        return rows if width == len(self.answered) else [row[:width] for row in rows]


class FirstEach:
    """The first rows of each of many groups, whatever their number.

    - A travelling row names a group; `build` selects what belongs to it, in order, from a table.
    - `index` has the group and then the order: it is used whatever the database believes to know of
      the table, so that what is behind the first rows costs nothing.
    - The parameter `each` is given at each run: how many of each group.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        index: str,
        incoming: Sequence[ColumnClause[Any]],
        build: Callable[[Incoming], Select[Any]],
    ) -> None:
        self.name = name
        self.table = table
        self.index = index
        self.incoming = incoming
        self.alone = SingleRow(incoming)
        self.build = build
        self.statements: dict[str, Statement] = {}

    def rows(
        self, tx: Transaction, rows: Sequence[Row], *, each: int, **common: Any
    ) -> list[list[Row]]:
        """For each travelling row, in order, the first rows of its group."""
        found: list[list[Row]] = []
        for _, part in parts_of(rows, self.incoming):
            found += tx.database.dialect.first_each(self, tx, part, each, common)
        return found


class LockFirst:
    """Lock the first rows of groups, group after group: so many of each, so many in all.

    - A travelling row names a group, and its last value, `most`, how many of it at most; `build`
      selects what belongs to it, in order, from a table.
    - `index` has the group and then the order: it is used whatever the database believes to know of
      the table, so that neither what is behind the first rows nor another group costs anything.
    - Rows that another transaction has locked are passed over, not waited for. Up to twice as many
      may be locked as are answered.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        index: str,
        incoming: Sequence[ColumnClause[Any]],
        build: Callable[[Incoming], Select[Any]],
    ) -> None:
        self.name = name
        self.table = table
        self.index = index
        self.incoming = (*incoming, MOST)
        self.alone = SingleRow(self.incoming)
        self.build = build
        self.statements: dict[str, Statement] = {}

    def rows(
        self, tx: Transaction, groups: Sequence[Row], *, limit: int, **common: Any
    ) -> list[Row]:
        """The rows, those of the first group first."""
        found: list[Row] = []
        for _, part in parts_of(groups, self.incoming):
            if len(found) < limit:
                found += tx.database.dialect.lock_first(self, tx, part, limit - len(found), common)
        return found


class WithRows:
    """A statement over rows that travel: it reads, locks or removes what they point at."""

    def __init__(
        self,
        name: str,
        *,
        incoming: Sequence[ColumnClause[Any]],
        build: Callable[[Incoming], ClauseElement],
    ) -> None:
        self.name = name
        self.incoming = incoming
        self.build = build
        self.statements: dict[str, Statement] = {}

    def rows(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> list[Row]:
        """Run it and read all that it answers."""
        answered: list[Row] = []
        for _, part in parts_of(rows, self.incoming):
            statement, sent = tx.database.dialect.with_rows(self, part)
            answered += statement.rows(tx, **sent, **common)
        return answered

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> int:
        """Run it and answer how many rows it changed."""
        changed = 0
        for _, part in parts_of(rows, self.incoming):
            statement, sent = tx.database.dialect.with_rows(self, part)
            changed += statement.run(tx, **sent, **common)
        return changed


def missed(
    rows: Sequence[Row],
    key_position: int,
    carry_out: Callable[[Sequence[Row]], Sequence[Row]],
    *,
    renames: bool = False,
) -> list[int]:
    """The positions of the rows whose key is not among those that carrying them out answers."""
    keys = [row[key_position] for row in rows]
    if len(set(keys)) < len(keys):
        # One by one, for a key that is answered would not say which of its rows took effect.
        return [i for i, row in enumerate(rows) if not carry_out([row])]
    done = carry_out(rows)
    if len(done) == len(rows) and not renames:
        return []
    found = {str(row[0]) for row in done}
    return [i for i, key in enumerate(keys) if str(key) not in found]


def carried_columns(
    incoming: Sequence[ColumnClause[Any]], journal: Journal | None
) -> tuple[ColumnClause[Any], ...]:
    """The columns that travel: those of an operation, then those for its journal."""
    return (*incoming, *(journal.carried if journal is not None else ()))


def document(rows: Sequence[Row]) -> str:
    """The rows as one JSON document."""
    try:
        return msgspec.json.encode(rows).decode()
    except (OverflowError, UnicodeError) as error:
        raise refused(error) from error


def parts_of(
    rows: Sequence[Row], columns: Sequence[ColumnClause[Any]]
) -> Iterator[tuple[int, Sequence[Row]]]:
    """What goes into one statement each, and where it begins."""
    if len(rows) == 1:
        yield 0, rows
        return
    long = [i for i, column in enumerate(columns) if isinstance(column.type, Text)]
    start = 0
    while start < len(rows):
        part = rows[start : start + ROWS_MAX]
        if long:
            part = part[: _fitting(part, long)]
        yield start, part
        start += len(part)


def _fitting(rows: Sequence[Row], long: Sequence[int]) -> int:
    """How many of the rows have little enough text together; at least one."""
    chars = 0
    for count, row in enumerate(rows):
        for i in long:
            chars += len(row[i] or "")
        if count and chars > CHARS_MAX:
            return count
    return len(rows)


def _written(column: ColumnClause[Any], value: Any) -> ColumnElement[Any]:
    if isinstance(value, ColumnElement):
        return value
    # A parameter without a value would be one that the caller has to give.
    return null() if value is None else literal(value, column.type)


def _plain(part: Any) -> ColumnElement[Any]:
    """The column of a part of an order, which may be descending."""
    descending = isinstance(part, UnaryExpression) and part.modifier is desc_op
    column: ColumnElement[Any] = part.element if descending else part
    return column

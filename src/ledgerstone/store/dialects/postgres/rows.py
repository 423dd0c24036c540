"""The rows of a batch on PostgreSQL (arrays), and journals as CTEs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    String,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.visitors import iterate

from ledgerstone.ids import new_id
from ledgerstone.store.sql.batch import (
    AppendEach,
    ClaimEach,
    Incoming,
    Journal,
    RowInsert,
    UpdateEach,
)
from ledgerstone.store.sql.locked_rows import ChangeEach
from ledgerstone.store.sql.statement import Statement

_NEUTRAL: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
POSITION = "position"
_PASSES = "passes"
_Columns = Mapping[str, ColumnElement[Any]]
_TOLD, _NUMBER_DIGITS = "told_id", 8


def travelling(columns: Sequence[Any]) -> Incoming:
    """The columns of the sent rows, and their position."""
    arrays = [cast(bindparam(f"in_{c.name}", type_=Text()), ARRAY(uncut(c.type))) for c in columns]
    alias = (
        func.unnest(*arrays)
        .table_valued(
            *[column(c.name, c.type) for c in columns], name="travelling", with_ordinality=POSITION
        )
        .render_derived()
    )
    return Incoming({name: alias.c[name] for name in (*[c.name for c in columns], POSITION)})


def alone_row(columns: Sequence[Any]) -> Incoming:
    """One row, each of its values a parameter."""
    values: dict[str, ColumnElement[Any]] = {
        c.name: bindparam(f"one_{c.name}", type_=uncut(c.type)) for c in columns
    }
    return Incoming(values | {POSITION: literal_column("1")})


def travelling_in_short(columns: Sequence[Any], *, whole: int = 1) -> Incoming:
    """As `travelling`, for the parameters of `in_short`."""
    row = travelling(columns)
    # `unnest` gives NULL for the missing elements of a shorter array.
    short = {c.name: func.coalesce(getattr(row, c.name), _for_all(c)) for c in columns[whole:]}
    names = [*(c.name for c in columns[:whole]), POSITION]
    return Incoming({name: getattr(row, name) for name in names} | short)


def new_ids(journal: Journal | None) -> dict[str, str]:
    """The prefix of the new ids of a journal; the random end is replaced by a number."""
    return {} if journal is None or not journal.has_id else {_TOLD: new_id()[:-_NUMBER_DIGITS]}


def update_statement(operation: UpdateEach) -> Statement:
    """The statement that updates rows and writes the journal; it returns positions."""
    row = travelling_in_short(operation.carried, whole=len(operation.incoming))
    changing = operation.build(row)
    position = getattr(row, POSITION)
    journal = operation.journal
    if journal is None:
        return Statement(operation.name, changing.returning(position))
    names = [operation.key.name, *(c.name for c in journal.carried)]
    told_of = [getattr(row, name).label(name) for name in names]
    changed = changing.returning(position, *told_of, *_copied(journal)).cte("changed")
    told = _telling(journal, dict(changed.c), changed.c[POSITION], changed, _alike(journal))
    main = select(changed.c[POSITION]).add_cte(told.cte("told"))
    return Statement(operation.name, main, writes=True)


def append_insert(operation: AppendEach, row: Incoming, *, alone: bool = False) -> Insert:
    """The INSERT of the sent rows and of their journal."""
    journal = operation.journal
    if journal is None:
        return insert_rows(operation, row)
    names = [*(c.name for c in operation.carried), POSITION]
    sent = select(*[getattr(row, name).label(name) for name in names]).cte("sent")
    row = Incoming(dict(sent.c))
    values = operation.assignments(row)
    copied = {_copy(name): values[c.name] for name, c in journal.copied.items()}
    usual = {} if alone else _alike(journal)
    told = _telling(journal, {**dict(sent.c), **copied}, sent.c[POSITION], sent, usual)
    # The INSERT is the main statement, so that the rows exist before other CTEs refer to them.
    return insert_rows(operation, row).add_cte(told.cte("told"))


def claim_statement(operation: ClaimEach, claiming: Update) -> Statement:
    """The statement that claims rows and writes the journal."""
    answered = operation.answered
    journal = operation.journal
    if journal is None:
        return Statement(operation.name, claiming.returning(*answered))
    labels = [c.label(f"c{i}") for i, c in enumerate(answered)]
    changed = claiming.returning(*labels, *_copied(journal)).cte("changed")
    after = {c.name: changed.c[f"c{i}"] for i, c in enumerate(operation.returning)}
    usual = {name: literal(value) for name, value in journal.usual.items()}
    told = _telling(journal, {**dict(changed.c), **after}, func.row_number().over(), changed, usual)
    main = select(*[changed.c[label.name] for label in labels])
    return Statement(operation.name, main.add_cte(told.cte("told")), writes=True)


def _copied(journal: Journal) -> list[ColumnElement[Any]]:
    return [c.label(_copy(name)) for name, c in journal.copied.items()]


def _copy(name: str) -> str:
    return f"copied_{name}"


def _telling(journal: Journal, row: _Columns, number: Any, origin: CTE, usual: _Columns) -> Insert:
    """The INSERT of the journal, one row for each row of `origin`; `usual` are frequent values."""
    values = _told(journal, row, number)
    if usual:
        same = _told(journal, {**row, **usual}, number)
        is_usual = and_(*[row[name] == value for name, value in usual.items()])
        for name, value in values.items():
            if not value.compare(same[name]) and not _is_of(origin, same[name]):
                # A scalar subquery is evaluated once.
                once = select(same[name]).scalar_subquery()
                values[name] = case((is_usual, once), else_=value)
    selected = select(*values.values()).select_from(origin)
    return insert(journal.append.table).from_select(list(values), selected)


def _told(journal: Journal, row: _Columns, number: Any) -> dict[str, Any]:
    append = journal.append
    said = list(journal.columns(Incoming(row)))
    if journal.has_id:
        new_id = bindparam(_TOLD, type_=Text()) + func.lpad(
            func.to_hex(number), _NUMBER_DIGITS, "0"
        )
        said.insert(0, new_id)
    pairs = zip(append.incoming, said, strict=True)
    values = append.assignments(Incoming({c.name: cast(value, c.type) for c, value in pairs}))
    return values | {name: row[_copy(name)] for name in journal.copied}


def _is_of(origin: CTE, value: ColumnElement[Any]) -> bool:
    return any(getattr(part, "table", None) is origin for part in iterate(value))


def _alike(journal: Journal) -> _Columns:
    """The values that `in_short` sends once; NULL (never equal) if the rows differ."""
    return {c.name: _for_all(c) for c in journal.carried}


def _for_all(c: Any) -> BindParameter[Any]:
    return bindparam(f"all_{c.name}", type_=uncut(c.type))


def insert_rows(operation: RowInsert, row: Incoming) -> Insert:
    """The INSERT of the sent rows."""
    return insert_values(operation.table, operation.assignments(row))


def insert_values(table: Table, values: Mapping[str, Any]) -> Insert:
    """The INSERT of these values, column by column."""
    return insert(table).from_select(list(values), select(*values.values()))


def uncut(kind: Any) -> Any:
    """The type without its length: a cast to VARCHAR(n) truncates, while the column refuses."""
    concrete = kind.dialect_impl(_NEUTRAL)
    return Text() if isinstance(concrete, String) and concrete.length else kind


def change_statement(operation: ChangeEach, *, waits: bool) -> Statement:
    """The statement that locks rows, changes those that pass the guard, and writes the journal.

    The rows are locked in the order in which they are sent. They are changed by key and not by
    ctid: the lock finds the new version of a row that another transaction has just changed, which a
    TID scan in the older snapshot would not see.
    """
    row = travelling_in_short(operation.carried, whole=len(operation.incoming))
    names = [c.name for c in operation.carried]
    looks = [c.label(f"stands_{i}") for i, c in enumerate(operation.looks)]
    held = (
        select(
            getattr(row, POSITION).label(POSITION),
            *[getattr(row, name).label(name) for name in names],
            operation.guard(row).label(_PASSES),
            *looks,
        )
        .where(*operation.matches(row))
        .with_for_update(of=operation.table, skip_locked=not waits)
        .cte("held")
    )
    sent = Incoming(dict(held.c))
    changing = operation.change(sent).where(*operation.matches(sent), held.c[_PASSES])
    journal = operation.journal
    told_of = [held.c[name].label(name) for name in names]
    copied = _copied(journal) if journal is not None else []
    changed = changing.returning(held.c[POSITION], *told_of, *copied).cte("changed")
    main = select(held.c[POSITION], held.c[_PASSES], *[held.c[look.name] for look in looks])
    if journal is None:
        return Statement(operation.name, main.add_cte(changed), writes=True)
    told = _telling(journal, dict(changed.c), changed.c[POSITION], changed, _alike(journal))
    return Statement(operation.name, main.add_cte(told.cte("told")), writes=True)

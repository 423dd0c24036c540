"""The statements of the chores' source, overheard, so that the bare driver can run the same ones.

The real source claims and settles two chores of a scratch database while its cursor is listened to.
Values that came from the claimed rows are recognised by marks that nothing else holds, so that the
driver can later put its own rows in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import msgspec

from bench.ledgers import opened
from ledgerstone.engine.source import Ask, Handler, Outcome, OutcomeKind
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.connections.joined import JoinedConnection, of_sqlalchemy
from ledgerstone.store.schema.namespace import Namespace
from tests.chores import Chores, ChoreSource, NewChore
from tests.chores.work import nothing

WORKER = "00000000-0000-7000-8000-000000000000"
ATTEMPT_MARK = 7101
TOKEN_MARK = 9_301_000_000_000_000
"""Above every moment: a claim raises the token at least to the moment in ms."""


class Travel(Enum):
    """How the rows of a batch reach the database."""

    NONE = "none"
    """No row travels: the parameters are the same each time."""
    ROWS = "rows"
    """`executemany`, a tuple of parameters for each row."""
    ARRAYS = "arrays"
    """A list for each column."""
    ARRAY_TEXTS = "array texts"
    """The text of an array for each column: `{1,2}`."""
    DOCUMENT = "document"
    """One JSON document among the parameters."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a travelling row: of a column of the claimed row, its position, or a constant."""

    column: int | None = None
    position: bool = False
    value: Any = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One statement, what is always given to it, and what of each claimed row is."""

    text: str
    travel: Travel
    parameters: Any = ()
    slots: tuple[Any, ...] = ()
    """The parameters by which rows travel: one for each array, or the one of the document."""
    parts: tuple[Part, ...] = ()


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch executes: `claim[0]` answers the claimed rows, each list is a transaction."""

    begin: str | None
    claim: tuple[Call, ...]
    settle: tuple[Call, ...]


def overheard(url: str, *, limit: int) -> Script:
    """The script of the source on the database of this URL, which is used up by it."""
    with opened(url) as ledger:
        with ledger.transaction() as tx:
            Chores(tx).enqueue_many([NewChore(body=None), NewChore(body=None)])
            tx.connection.exec_driver_sql(
                f"UPDATE chore SET attempt = {ATTEMPT_MARK}, token = {TOKEN_MARK}"  # noqa: S608
            )
        source = ChoreSource(Handler(nothing))
        ask = Ask(limit, WORKER, ledger.settings.engine.lease_seconds)
        with listening(ledger) as (tx, claiming):
            claims = source.claim(tx, ask)
        with listening(ledger) as (tx, settling):
            source.settle(tx, [Outcome(claim, OutcomeKind.DONE) for claim in claims])
        marks = _Marks(claiming[0].answer)
        return Script(
            begin="BEGIN IMMEDIATE" if ledger.database.dialect.one_writer else None,
            claim=tuple(_call(heard, marks) for heard in claiming),
            settle=tuple(_call(heard, marks) for heard in settling),
        )


class Heard(msgspec.Struct):
    """What went through a cursor."""

    text: str
    parameters: Any
    many: bool
    answer: list[Any] = []


class _Overheard(Transaction):
    """A transaction whose cursors are listened to."""

    heard: list[Heard]

    def cursor(self) -> Any:
        return _Cursor(super().cursor(), self.heard, self.database.namespace)

    def own_cursor(self) -> Any:
        return _Cursor(super().own_cursor(), self.heard, self.database.namespace)


class _Cursor:
    """Passes everything on, and writes down what is executed with parameters.

    Without the place of the tables: the driver does it in another database.
    """

    def __init__(self, cursor: Any, heard: list[Heard], namespace: Namespace) -> None:
        self._cursor = cursor
        self._heard = heard
        self._place = f"{namespace.own}."

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, text: str, parameters: Any = None) -> Any:
        if parameters is None:
            return self._cursor.execute(text)
        self._heard.append(Heard(text.replace(self._place, ""), parameters, many=False))
        return self._cursor.execute(text, parameters)

    def executemany(self, text: str, rows: Iterable[Any]) -> Any:
        given = list(rows)
        self._heard.append(Heard(text.replace(self._place, ""), given, many=True))
        return self._cursor.executemany(text, given)

    def fetchall(self) -> list[Any]:
        rows: list[Any] = self._cursor.fetchall()
        self._heard[-1].answer = list(rows)
        return rows


@contextmanager
def listening(ledger: Ledger) -> Iterator[tuple[Transaction, list[Heard]]]:
    """A transaction, and what went through its cursors."""
    with ledger.transaction() as tx:
        connection = JoinedConnection(tx.connection, of_sqlalchemy(tx.connection))
        overheard = _Overheard(ledger.database, connection, rooms=ledger.rooms)
        overheard.heard = []
        yield overheard, overheard.heard


class _Marks:
    """Where the values of a column come from, told by what travels for two claimed rows."""

    def __init__(self, rows: Sequence[Any]) -> None:
        first = rows[0]
        marked = (first[0], ATTEMPT_MARK + 1, TOKEN_MARK + 1)
        self._columns = {value: first.index(value) for value in marked}

    def part(self, values: Sequence[Any]) -> Part:
        if list(values) == [0, 1]:
            return Part(position=True)
        column = self._columns.get(values[0])
        return Part(column=column) if column is not None else Part(value=values[0])

    def parts(self, rows: Sequence[Sequence[Any]]) -> tuple[Part, ...]:
        return tuple(self.part(column) for column in zip(*rows, strict=True))


def _call(heard: Heard, marks: _Marks) -> Call:
    """The statement with its rows replaced by where their values come from."""
    given = heard.parameters
    if heard.many:
        return Call(text=heard.text, travel=Travel.ROWS, parts=marks.parts(given))
    named = given if isinstance(given, dict) else dict(enumerate(given))
    lists = {slot: value for slot, value in named.items() if isinstance(value, list)}
    texts = {slot: _values(value) for slot, value in named.items() if _is_array(value)}
    documents = {slot: value for slot, value in named.items() if _begins(value, "[[")}
    parts: tuple[Part, ...] = ()
    travel = Travel.NONE
    if lists:
        travel, parts = Travel.ARRAYS, tuple(map(marks.part, lists.values()))
    elif texts:
        travel, parts = Travel.ARRAY_TEXTS, tuple(map(marks.part, texts.values()))
    elif documents:
        (document,) = documents.values()
        travel, parts = Travel.DOCUMENT, marks.parts(msgspec.json.decode(document))
    return Call(
        text=heard.text,
        travel=travel,
        parameters=given.copy() if isinstance(given, dict) else list(given),
        slots=tuple(lists or texts or documents),
        parts=parts,
    )


def _is_array(value: Any) -> bool:
    """Whether rows travel by it; an empty one stays: what it lacks is the same in all rows."""
    return _begins(value, "{") and value != "{}"


def _begins(value: Any, sign: str) -> bool:
    return isinstance(value, str) and value.startswith(sign)


def _values(text: str) -> list[Any]:
    """What the text of an array holds; enough for ids, numbers, states and NULL."""
    return [_value(part) for part in text.strip("{}").split(",")]


def _value(part: str) -> Any:
    if part.startswith('"'):
        return part.strip('"')
    return None if part == "NULL" else int(part)

"""The statements of the jobs' source, overheard, so that the bare driver can run the same ones.

The real source claims and settles two jobs of a scratch database while its cursor is listened to.
What travels for them is recognised by marks that nothing else holds, so that the driver can put its
own rows in their place. What a claim looks up only now and then (scheduled jobs whose time has
come) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from itertools import dropwhile
from typing import Any
from uuid import UUID

import msgspec

from bench.engine.script import ATTEMPT_MARK, TOKEN_MARK, WORKER, Heard, listening
from bench.jobs.side import JOB
from bench.jobs.sides.ours import declare
from bench.ledgers import opened
from ledgerstone.engine.source import Ask, Outcome, OutcomeKind
from ledgerstone.jobs import NewJob

ID_BEGINNING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{4}")
ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|(NULL)|(-?[0-9]+)')
ARRAY = re.compile(rf"\{{(?:{ELEMENT.pattern})(?:,(?:{ELEMENT.pattern}))*\}}")
FIRST_ATTEMPT = 1


class Travel(Enum):
    """How the rows of a batch reach the database."""

    NONE = "none"
    """No row travels: the parameters are the same each time."""
    ARRAY_TEXTS = "array texts"
    """The text of an array for each column: `{1,2}`."""
    DOCUMENT = "document"
    """One JSON document among the parameters."""


class From(Enum):
    """Where a value of a travelling row comes from."""

    COLUMN = "column"
    """A column of the claimed row, by its number."""
    POSITION = "position"
    FRESH = "fresh"
    """A new id."""
    WORDS = "words"
    """A text with the attempt in it; the number is the column of the attempt."""
    CONSTANT = "constant"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a travelling row."""

    source: From
    number: int = 0
    value: Any = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One statement, what is always given to it, and what of each claimed row is."""

    text: str
    travel: Travel
    parameters: Any = ()
    slots: tuple[Any, ...] = ()
    """The parameters by which rows travel: one for each array, or the one of the document."""
    parts: tuple[Part, ...] = ()
    beginning: Any = None
    """The parameter that is the beginning of new ids, another one each time."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch executes: `claim[0]` answers the claimed rows, each list is a transaction."""

    begin: str | None
    claim: tuple[Call, ...]
    settle: tuple[Call, ...]


def overheard(url: str, *, limit: int) -> Script:
    """The script of the source on the database of this URL, which is used up by it."""
    with opened(url) as ledger:
        declare(ledger, lambda: None)
        source = ledger.job_source()
        ask = Ask(limit, WORKER, ledger.settings.engine.lease_seconds)
        # The first claim finds out what is in line; those behind it know.
        ledger.run(lambda tx: tx.jobs.enqueue(JOB))
        ledger.run(lambda tx: source.claim(tx, ask))
        with ledger.transaction() as tx:
            tx.jobs.enqueue_many([NewJob(type=JOB), NewJob(type=JOB)])
            tx.connection.exec_driver_sql(
                f"UPDATE job SET attempt = {ATTEMPT_MARK}, token = {TOKEN_MARK}"  # noqa: S608 - our own numbers
                " WHERE status = 'queued'"
            )
        with listening(ledger) as (tx, heard):
            claims = source.claim(tx, ask)
        claiming = list(dropwhile(lambda statement: not statement.answer, heard))
        with listening(ledger) as (tx, settling):
            source.settle(tx, [Outcome(claim, OutcomeKind.DONE) for claim in claims])
        marks = _Marks(claiming[0].answer)
        return Script(
            begin="BEGIN IMMEDIATE" if ledger.database.dialect.one_writer else None,
            claim=tuple(_call(statement, marks) for statement in claiming),
            settle=tuple(_call(statement, marks) for statement in settling),
        )


class _Marks:
    """Where the values of a column come from, told by what travels for two claimed rows."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.ids = {str(row[0]) for row in rows}
        self._attempt = rows[0].index(ATTEMPT_MARK + 1)
        self._columns = {
            ATTEMPT_MARK + 1: self._attempt,
            TOKEN_MARK + 1: rows[0].index(TOKEN_MARK + 1),
        }

    def part(self, values: Sequence[Any]) -> Part:
        first = values[0]
        if set(map(str, values)) == self.ids:
            return Part(source=From.COLUMN, number=0)
        if list(values) == [0, 1]:
            return Part(source=From.POSITION)
        if first in self._columns:
            return Part(source=From.COLUMN, number=self._columns[first])
        if isinstance(first, str) and str(ATTEMPT_MARK + 1) in first:
            before, _, after = first.partition(str(ATTEMPT_MARK + 1))
            return Part(source=From.WORDS, number=self._attempt, value=(before, after))
        if len(set(values)) == 1:
            return Part(source=From.CONSTANT, value=first)
        # Two that differ and are none of the above can only be ids that were made for the rows.
        _ = [UUID(value) for value in values]
        return Part(source=From.FRESH)


def _call(heard: Heard, marks: _Marks) -> Call:
    """The statement with its rows replaced by where their values come from."""
    given = heard.parameters
    named = given if isinstance(given, dict) else dict(enumerate(given))
    texts = {slot: _elements(value) for slot, value in named.items() if _is_array(value)}
    documents = {slot: value for slot, value in named.items() if str(value).startswith("[[")}
    travelling: Sequence[Sequence[Any]] = ()
    travel = Travel.NONE
    if texts:
        travel, travelling = Travel.ARRAY_TEXTS, list(texts.values())
    elif documents:
        (document,) = documents.values()
        rows = msgspec.json.decode(document)
        travel, travelling = Travel.DOCUMENT, list(zip(*rows, strict=True))
    for slot, value in named.items():
        if slot not in (texts or documents) and any(key in str(value) for key in marks.ids):
            message = f"a job travels in a way that the driver does not know: {heard.text}"
            raise RuntimeError(message)
    return Call(
        text=heard.text,
        travel=travel,
        parameters=_first_attempts(given),
        slots=tuple(texts or documents),
        parts=tuple(marks.part(column) for column in travelling),
        beginning=next((slot for slot, value in named.items() if _is_beginning(value)), None),
    )


def _first_attempts(given: Any) -> Any:
    """What is always given, told of a first attempt: the driver makes no other."""

    def told(value: Any) -> Any:
        marked = isinstance(value, str) and str(ATTEMPT_MARK + 1) in value
        return value.replace(str(ATTEMPT_MARK + 1), str(FIRST_ATTEMPT)) if marked else value

    if isinstance(given, dict):
        return {name: told(value) for name, value in given.items()}
    return [told(value) for value in given]


def _is_beginning(value: Any) -> bool:
    return isinstance(value, str) and ID_BEGINNING.fullmatch(value) is not None


def _is_array(value: Any) -> bool:
    # An empty one stays as it is: what it lacks is the same in all rows.
    return isinstance(value, str) and ARRAY.fullmatch(value) is not None


def _elements(text: str) -> list[Any]:
    """What the text of an array holds; quoted text is left as it is spelled there."""
    return [
        None if nothing else int(number) if number else quoted
        for quoted, nothing, number in ELEMENT.findall(text)
    ]

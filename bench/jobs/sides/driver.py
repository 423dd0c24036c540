"""The bare driver: the overheard statements in a hand-written loop, one thread, one connection.

The connection is opened by the ledger, so its session settings are the ledger's own; nothing else
of Ledgerstone runs in the loop. Jobs are sent and looked at as ours are.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep
from typing import Any, assert_never

import msgspec
from uuid_utils import uuid7

from bench.jobs.script import Call, From, Part, Script, Travel
from bench.jobs.side import Note
from bench.jobs.sides.ours import Ours
from bench.ledgers import opened

IDLE_SECONDS = 0.005
Rows = Sequence[tuple[Any, ...]]


class Driver(Ours):
    """Our statements without us."""

    name = "driver"

    def __init__(self, script: Script) -> None:
        self._script = script

    def work(self, url: str, note: Note) -> None:
        with opened(url) as ledger:
            taken = ledger.database.engine.raw_connection()
            connection: Any = taken.driver_connection
            cursor = connection.cursor()
            while True:
                rows = _batch(connection, cursor, self._script)
                for _ in rows:
                    note()
                if not rows:
                    sleep(IDLE_SECONDS)


def _batch(connection: Any, cursor: Any, script: Script) -> Rows:
    """Claim once, settle what was claimed."""
    pick, *marks = script.claim
    if script.begin:
        cursor.execute(script.begin)
    cursor.execute(pick.text, _parameters(pick))
    rows: Rows = cursor.fetchall()
    if not rows:
        connection.commit()
        return rows
    for call in marks:
        _execute(cursor, call, rows)
    connection.commit()
    if script.begin:
        cursor.execute(script.begin)
    for call in script.settle:
        _execute(cursor, call, rows)
    connection.commit()
    return rows


def _parameters(call: Call) -> Any:
    """What is given to a statement before its rows are."""
    parameters = call.parameters.copy()
    if call.beginning is not None:
        given = parameters[call.beginning]
        parameters[call.beginning] = str(uuid7())[: len(given)]
    return parameters


def _execute(cursor: Any, call: Call, rows: Rows) -> None:
    parameters = _parameters(call)
    columns = [_column(part, rows) for part in call.parts]
    match call.travel:
        case Travel.ARRAY_TEXTS:
            for slot, part, array in zip(call.slots, call.parts, columns, strict=True):
                parameters[slot] = _array_text(part, array)
        case Travel.DOCUMENT:
            travelling = list(zip(*columns, strict=True))
            parameters[call.slots[0]] = msgspec.json.encode(travelling).decode()
        case Travel.NONE:
            pass
        case _:
            assert_never(call.travel)
    cursor.execute(call.text, parameters)
    if cursor.description:
        cursor.fetchall()


def _column(part: Part, rows: Rows) -> list[Any]:
    match part.source:
        case From.COLUMN:
            return [row[part.number] for row in rows]
        case From.POSITION:
            return list(range(len(rows)))
        case From.FRESH:
            return [str(uuid7()) for _ in rows]
        case From.WORDS:
            before, after = part.value
            return [f"{before}{row[part.number]}{after}" for row in rows]
        case From.CONSTANT:
            return [part.value] * len(rows)
        case _:
            assert_never(part.source)


def _array_text(part: Part, values: Sequence[Any]) -> str:
    """The text of an array; only words have to be quoted, and are spelled for it already."""
    if part.source is From.WORDS:
        return '{"' + '","'.join(values) + '"}'
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"

"""The bare driver: the overheard statements in a hand-written loop, one thread, one connection.

The connection is opened by the ledger, so its session settings are the ledger's own; nothing of
Ledgerstone runs in the timed loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any, assert_never

import msgspec

from bench.engine.script import Call, Part, Script, Travel
from bench.ledgers import opened
from bench.measure import Timing, settle_memory

Rows = Sequence[tuple[Any, ...]]


def drain(url: str, script: Script, *, warm_up: int, count: int) -> Timing:
    """Claim and settle what is queued; how long `count` took, after `warm_up` untimed ones."""
    with opened(url) as ledger:
        taken = ledger.database.engine.raw_connection()
        connection: Any = taken.driver_connection
        settle_memory()
        _drain(connection, script, warm_up)
        began, cpu_began = perf_counter(), process_time()
        _drain(connection, script, count)
        ended, cpu_ended = perf_counter(), process_time()
        taken.close()
    return Timing(count=count, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


def _drain(connection: Any, script: Script, count: int) -> None:
    cursor = connection.cursor()
    pick, *marks = script.claim
    while count > 0:
        if script.begin:
            cursor.execute(script.begin)
        cursor.execute(pick.text, pick.parameters)
        rows = cursor.fetchall()
        if not rows:
            raise RuntimeError("there is nothing left to claim: warm up by whole batches")
        for call in marks:
            _execute(cursor, call, rows)
        connection.commit()
        if script.begin:
            cursor.execute(script.begin)
        for call in script.settle:
            _execute(cursor, call, rows)
        connection.commit()
        count -= len(rows)


def _execute(cursor: Any, call: Call, rows: Rows) -> None:
    if call.travel is Travel.ROWS:
        cursor.executemany(call.text, zip(*_columns(call.parts, rows), strict=True))
        return
    parameters = call.parameters.copy()
    match call.travel:
        case Travel.ARRAYS:
            for slot, array in zip(call.slots, _columns(call.parts, rows), strict=True):
                parameters[slot] = array
        case Travel.ARRAY_TEXTS:
            for slot, part in zip(call.slots, call.parts, strict=True):
                parameters[slot] = "{" + ",".join(_words(part, rows)) + "}"
        case Travel.DOCUMENT:
            travelling = list(zip(*_columns(call.parts, rows), strict=True))
            parameters[call.slots[0]] = msgspec.json.encode(travelling).decode()
        case Travel.NONE:
            pass
        case _:
            assert_never(call.travel)
    cursor.execute(call.text, parameters)
    if cursor.description:
        cursor.fetchall()


def _columns(parts: Sequence[Part], rows: Rows) -> list[list[Any]]:
    """Column by column, what travels for the rows."""
    return [_column(part, rows) for part in parts]


def _column(part: Part, rows: Rows) -> list[Any]:
    if part.column is not None:
        column = part.column
        return [row[column] for row in rows]
    return list(range(len(rows))) if part.position else [part.value] * len(rows)


def _words(part: Part, rows: Rows) -> Sequence[str]:
    """What travels for the rows, as the words of an array; nothing of it needs to be quoted."""
    if part.column is None and not part.position:
        return ["NULL" if part.value is None else str(part.value)] * len(rows)
    return [str(value) for value in _column(part, rows)]

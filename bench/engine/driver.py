"""The bare driver: the overheard statements in a hand-written loop, one thread, one connection.

The connection is opened by the ledger, so its session settings are the ledger's own; nothing of
Ledgerstone runs in the timed loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any, assert_never

import msgspec

from bench.engine.databases import opened
from bench.engine.script import Call, Part, Script, Travel
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
    match call.travel:
        case Travel.ROWS:
            cursor.executemany(call.text, zip(*_columns(call.parts, rows), strict=True))
        case Travel.ARRAYS:
            arrays = zip(call.names, _columns(call.parts, rows), strict=True)
            cursor.execute(call.text, call.parameters | dict(arrays))
        case Travel.DOCUMENT:
            travelling = list(zip(*_columns(call.parts, rows), strict=True))
            document = msgspec.json.encode(travelling).decode()
            cursor.execute(call.text, call.parameters | {call.names[0]: document})
        case Travel.NONE:
            cursor.execute(call.text, call.parameters)
        case _:
            assert_never(call.travel)


def _columns(parts: Sequence[Part], rows: Rows) -> list[list[Any]]:
    """Column by column, what travels for the rows."""
    return [
        [part.value] * len(rows) if part.column is None else [row[part.column] for row in rows]
        for part in parts
    ]

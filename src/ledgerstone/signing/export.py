"""Export and import: the store as JSON lines, byte for byte, with its records in clear beside.

The first line names the format, the last one counts the rows, so that a file which was cut off is
noticed. Each line between holds one row: `family`, `key` and `value` in hex, and `record`, which is
for people and is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from ledgerstone.errors import LedgerstoneError, Malformed
from ledgerstone.signing.bincode import decode
from ledgerstone.signing.families import family_of
from ledgerstone.signing.hexadecimal import in_hex
from ledgerstone.signing.keys import Family, parse
from ledgerstone.signing.kinds import RECORDS
from ledgerstone.signing.store import Store, StoreTransaction, View
from ledgerstone.signing.values import Stored

FORMAT = "ledgerstone signing export"
VERSION = 1
STEP_ROWS = 500
STEP_BYTES_MAX = 8 * 1024 * 1024
RECORD_BYTES_MAX = 1024 * 1024
"""The record of a larger value is not shown beside its bytes."""
LINE_CHARS_MAX = 520 * 1024 * 1024
"""The largest value that the settings allow, in hex."""


S = TypeVar("S", bound=msgspec.Struct)


class Imported(NamedTuple):
    """How many rows were stored, and how many were there before."""

    stored: int
    same: int


class _Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    family: Family
    key: str
    value: str
    record: object = None


class _End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rows: int


class _Row(NamedTuple):
    family: Family
    key: bytes
    value: bytes


def export_lines(store: Store) -> Iterator[str]:
    """The rows of one moment, a line for each, without line ends."""
    rows = 0
    with store.view() as view:
        yield _text(_Head(format=FORMAT, version=VERSION))
        for family in Family:
            for key, value in _rows(view, family):
                yield _text(_line(family, key, value))
                rows += 1
    yield _text(_End(rows=rows))


def _rows(view: View, family: Family) -> Iterator[tuple[bytes, bytes]]:
    after: bytes | None = None
    while True:
        page = view.page(family, after=after, rows_max=STEP_ROWS)
        yield from page.rows
        after = page.after
        if after is None:
            return


def _line(family: Family, key: bytes, value: bytes) -> _Line:
    record = _record(key, value)
    shown = None if record is None else in_hex(record)
    return _Line(family=family, key=key.hex(), value=value.hex(), record=shown)


def _record(key: bytes, value: bytes) -> msgspec.Struct | None:
    """The meaning of a row, as far as it can be read: a damaged row is exported, too."""
    if len(value) > RECORD_BYTES_MAX:
        return None
    try:
        kind = RECORDS.get(type(parse(key)))
        return None if kind is None else decode(kind, value)
    except LedgerstoneError:
        return None


def import_lines(store: Store, lines: Iterable[str]) -> Imported:
    """Store the rows in bounded transactions; Malformed unless the file is whole."""
    stored = same = 0
    for step in _steps(_read(lines)):
        answers = store.run(partial(_insert, rows=step))
        stored += answers.count(Stored.NEW)
        same += answers.count(Stored.SAME)
    return Imported(stored, same)


def _insert(tx: StoreTransaction, rows: list[_Row]) -> list[Stored]:
    return [tx.insert(row.family, row.key, row.value) for row in rows]


def _steps(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    step: list[_Row] = []
    size = 0
    for row in rows:
        step.append(row)
        size += len(row.key) + len(row.value)
        if len(step) >= STEP_ROWS or size >= STEP_BYTES_MAX:
            yield step
            step, size = [], 0
    if step:
        yield step


def _read(lines: Iterable[str]) -> Iterator[_Row]:
    """The rows of a file; Malformed, after those before it, at a line that is wrong or missing."""
    numbered = enumerate(lines, start=1)
    _, first = next(numbered, (1, ""))
    head = _decoded(_Head, first, 1)
    if (head.format, head.version) != (FORMAT, VERSION):
        raise Malformed(f"this is {head.format!r:.80} {head.version}, not {FORMAT!r} {VERSION}")
    rows = 0
    for number, line in numbered:
        if line.startswith('{"rows"'):
            if _decoded(_End, line, number).rows != rows or next(numbered, None) is not None:
                raise Malformed(f"line {number} ends the file, and does not count its {rows} rows")
            return
        yield _row(_decoded(_Line, line, number), number)
        rows += 1
    raise Malformed(f"the file ends after {rows} rows without its last line")


def _row(line: _Line, number: int) -> _Row:
    try:
        row = _Row(line.family, bytes.fromhex(line.key), bytes.fromhex(line.value))
    except ValueError as error:
        raise Malformed(f"line {number} holds something that is no hex") from error
    # The default family holds keys of every kind before they are migrated.
    if row.family is not Family.DEFAULT and family_of(row.key) is not row.family:
        raise Malformed(f"line {number} holds a key that does not belong to {row.family}")
    return row


def _decoded(kind: type[S], line: str, number: int) -> S:
    if len(line) > LINE_CHARS_MAX:
        raise Malformed(f"line {number} has more than {LINE_CHARS_MAX} characters")
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed(f"line {number} is none of an export: {error}") from error


def _text(line: msgspec.Struct) -> str:
    return msgspec.json.encode(line).decode()

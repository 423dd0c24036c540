"""The rows of a snapshot: read in pages of bounded size, and kept as bytes with a hash over all."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, column, select, table
from sqlalchemy.sql.selectable import TableClause

from ledgerstone.errors import StoreCorrupt
from ledgerstone.protocols.moving import POSITION
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.schema import Definition
from ledgerstone.protocols.tables import protocol_value
from ledgerstone.store.sql.expressions import beyond
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction

ROWS_MIN, ROWS_MAX = 25, 1000
BYTES_MAX = 2_097_152
"""A page with more bytes is followed by a smaller one."""
BODY_BYTES_MAX = 1_073_741_824
COMPRESSION = 1
VALUES = protocol_value.name
_of_imports = POSITION.format("")


class Part(msgspec.Struct, frozen=True):
    """Some rows of a table, and the names of their columns."""

    columns: list[str]
    rows: list[list[Any]]


_decoder = msgspec.msgpack.Decoder(Part)


def packed(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    """The rows as bytes."""
    made = Part(list(columns), [[plain(value) for value in row] for row in rows])
    return zlib.compress(msgspec.msgpack.encode(made), COMPRESSION)


def unpacked(body: bytes) -> Part:
    """The rows of these bytes."""
    opened = zlib.decompressobj()
    try:
        return _decoder.decode(opened.decompress(body, BODY_BYTES_MAX))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StoreCorrupt(f"a part of a snapshot cannot be read: {error}") from error


class Hash:
    """A hash over the parts of a snapshot, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32)

    def add(self, table: str, body: bytes) -> None:
        """One more part."""
        self._hash.update(f"{table}\0{len(body)}\0".encode())
        self._hash.update(body)

    def words(self) -> str:
        """The hash of all that was added."""
        return self._hash.hexdigest()


def pages(tx: Transaction, protocol: Protocol) -> Iterator[tuple[str, list[str], list[Row]]]:
    """All rows of a protocol's tables, and its values: table, columns, some rows."""
    for definition in protocol.schema.tables:
        names = [field.name for field in definition.columns]
        for rows in rows_of(tx, definition):
            yield definition.name, names, rows
    values = [
        (row[0], row[1])
        for row in _values.rows(tx, protocol_=protocol.name)
        if not row[0].startswith(_of_imports)
    ]
    if values:
        yield VALUES, ["name", "value"], values


def rows_of(tx: Transaction, definition: Definition) -> Iterator[list[Row]]:
    """All rows of a table in the order of its key, a page at a time."""
    statements = _Pages(definition)
    size, after = ROWS_MIN, None
    while rows := statements.read(tx, size, after):
        yield rows
        if len(rows) < size:
            return
        after = statements.key(rows[-1])
        weight = sum(_weight(value) for row in rows for value in row)
        if weight > BYTES_MAX:
            size = max(size // 2, 1)
        elif weight < BYTES_MAX // 4:
            size = min(size * 2, ROWS_MAX)


_values = Statement(
    "protocols.values",
    select(protocol_value.c.name, protocol_value.c.value)
    .where(protocol_value.c.protocol == bindparam("protocol_"))
    .order_by(protocol_value.c.name),
)


class _Pages:
    """Reads a table by its key."""

    def __init__(self, definition: Definition) -> None:
        typed = definition.table()
        listed = clause_of(definition)
        key = [listed.c[name] for name in definition.key]
        places = [
            bindparam(f"after_{i}", type_=typed.c[name].type)
            for i, name in enumerate(definition.key)
        ]
        names = [field.name for field in definition.columns]
        self._places = [names.index(name) for name in definition.key]
        every = select(*[listed.c[name] for name in names]).order_by(*key)
        limit = bindparam("limit", type_=BigInteger())
        self._first = Statement(f"protocols.copy {definition.name}", every.limit(limit))
        self._next = Statement(
            f"protocols.copy_on {definition.name}",
            every.where(beyond(key, places)).limit(limit),
        )

    def read(self, tx: Transaction, size: int, after: list[Any] | None) -> list[Row]:
        """The rows behind a key."""
        if after is None:
            return self._first.rows(tx, limit=size)
        given = {f"after_{i}": value for i, value in enumerate(after)}
        return self._next.rows(tx, limit=size, **given)

    def key(self, row: Row) -> list[Any]:
        """The key of a row."""
        return [row[place] for place in self._places]


def clause_of(definition: Definition) -> TableClause:
    """A table of a protocol, as its projectors name it."""
    typed = definition.table()
    return table(definition.name, *[column(each.name, each.type) for each in typed.c])


def plain(value: Any) -> Any:
    """A value as the snapshot keeps it: drivers give bytes in several ways."""
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _weight(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray | memoryview) else 8

"""Flags and counters that a protocol wants at hand: one small table, and no copy of it in memory.

Each read asks the database, so that every transaction sees what was committed before it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, delete, select

from ledgerstone.errors import BadInput
from ledgerstone.protocols.tables import KEY_CHARS_MAX
from ledgerstone.protocols.tables import protocol_value as kept
from ledgerstone.store.sql.json_body import decode, encode
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.rows import InsertRows, UpsertRow
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

VALUE_BYTES_MAX = 8192
"""What is larger belongs into a table of the protocol."""

_here = (kept.c.protocol == bindparam("protocol_")) & (kept.c.name == bindparam("name_"))
_get = Statement("protocols.value", select(kept.c.value).where(_here))
_lock = Statement("protocols.lock_value", select(kept.c.value).where(_here).with_for_update())
_add = InsertRows("protocols.add_value", kept, columns=("protocol", "name", "value"))
_put = UpsertRow(
    "protocols.put_value", kept, key=("protocol", "name"), columns=("protocol", "name", "value")
)
_drop = Statement("protocols.drop_value", delete(kept).where(_here))


class KeptValues:
    """The values of one protocol, as a transaction sees them."""

    def __init__(self, tx: Transaction, protocol: str) -> None:
        self._tx = tx
        self._protocol = protocol

    def get(self, name: str, default: Any = None) -> Any:
        """The value of this name."""
        row = _get.one(self._tx, protocol_=self._protocol, name_=name)
        return default if row is None else decode(row[0])


class Values(KeptValues):
    """The same where they may be changed."""

    def set(self, name: str, value: Any) -> None:
        """Give the name a value; None takes it away."""
        check_name(name, "the name of a value", chars_max=KEY_CHARS_MAX)
        if value is None:
            _drop.run(self._tx, protocol_=self._protocol, name_=name)
            return
        body = encode(value, bytes_max=VALUE_BYTES_MAX, setting="the size of a value", as_text=True)
        _put.run(self._tx, protocol_=self._protocol, name_=name, value_=body)

    def add(self, name: str, number: int = 1) -> int:
        """Count: the new value, which nobody else changes before the end of the transaction."""
        check_name(name, "the name of a value", chars_max=KEY_CHARS_MAX)
        _add.run(self._tx, [{"protocol_": self._protocol, "name_": name, "value_": "0"}])
        (row,) = _lock.rows(self._tx, protocol_=self._protocol, name_=name)
        before = decode(row[0])
        if type(before) is not int:
            raise BadInput(f"the value {name} is no number: {before!r}")
        self.set(name, before + number)
        return before + number

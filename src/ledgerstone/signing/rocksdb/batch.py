"""Writes that happen together or not at all."""

from __future__ import annotations

from typing import NamedTuple


class Write(NamedTuple):
    """One write: `act` is "put", "merge" or "delete"."""

    act: str
    family: str
    key: bytes
    value: bytes


class Batch:
    """A list of writes, in order. It belongs to no database and may be written several times."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def __len__(self) -> int:
        return len(self.writes)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set the value of the key."""
        self.writes.append(Write("put", family, key, value))

    def merge(self, family: str, key: bytes, operand: bytes) -> None:
        """Append the operand to the value, in a family whose options say so."""
        self.writes.append(Write("merge", family, key, operand))

    def delete(self, family: str, key: bytes) -> None:
        """Remove the key; nothing happens if it is not there."""
        self.writes.append(Write("delete", family, key, b""))

"""A batch: raw rows of any family, written together or not at all."""

from __future__ import annotations

from typing import Self

from ledgerstone.signing.keys import parse
from ledgerstone.signing.store import StoreTransaction
from ledgerstone.signing.values import Stored


class SigningBatch:
    """Rows that are written by one commit; undone at the end of its block without `commit`.

    The key of a row says in which family it belongs; Malformed if it is no key. Values are bytes,
    and the rules of a request's life are not applied: a batch is for tools that copy records.
    """

    def __init__(self, transaction: StoreTransaction) -> None:
        self._transaction = transaction

    def insert(self, key: bytes, value: bytes) -> Stored:
        """Store the value if the key is free; KeyConflict if it holds another value."""
        return self._transaction.insert(parse(key).family, key, value)

    def delete(self, key: bytes) -> None:
        """Remove the row; nothing happens if it is not there."""
        self._transaction.delete(parse(key).family, key)

    def commit(self) -> None:
        """Make all of it durable, and end the batch."""
        self._transaction.commit()

    def rollback(self) -> None:
        """Undo all of it, and end the batch; done twice is fine."""
        self._transaction.rollback()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollback()

"""The key of an item as one text."""

from __future__ import annotations

import msgspec

from ledgerstone.store.sql.statement import Row


def key_words(key: Row) -> str:
    """A key as text: a single column as it is, several columns as a JSON array."""
    if len(key) == 1:
        return str(key[0])
    return msgspec.json.encode(
        [part if isinstance(part, int) else str(part) for part in key]
    ).decode()

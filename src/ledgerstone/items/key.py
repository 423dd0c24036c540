"""The key of an item, and the words that name it where there is only room for a text."""

from __future__ import annotations

import msgspec

from ledgerstone.store.sql.statement import Row


def key_words(key: Row) -> str:
    """A key as one text: its only part as it is, several as a JSON array."""
    if len(key) == 1:
        return str(key[0])
    return msgspec.json.encode(
        [part if isinstance(part, int) else str(part) for part in key]
    ).decode()

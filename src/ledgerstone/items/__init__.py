"""Leased items: a table of work is declared once and gets claim, extend, settle and rescue.

Read `declaration`, then `claim`, `settle` and `rescue`. `source` combines them into a `Source` for
a table without rules of its own.
"""

from __future__ import annotations

from ledgerstone.items.declaration import (
    Begun,
    Delete,
    Failures,
    History,
    Idle,
    Items,
    More,
    State,
    ToState,
)
from ledgerstone.items.source import ItemClaim, ItemSource

__all__ = [
    "Begun",
    "Delete",
    "Failures",
    "History",
    "Idle",
    "ItemClaim",
    "ItemSource",
    "Items",
    "More",
    "State",
    "ToState",
]

"""Chores: the smallest room. One thing to be done once.

It proves the engine on every database, shows how a room is built, and gives the demonstration its
work. Its tables are not part of a user's schema: `install` adds them where they are wanted.
"""

from __future__ import annotations

from ledgerstone.chores.chores import Chore, Chores, Enqueued, NewChore, install
from ledgerstone.chores.source import ChoreSource
from ledgerstone.chores.states import Status

__all__ = ["Chore", "ChoreSource", "Chores", "Enqueued", "NewChore", "Status", "install"]

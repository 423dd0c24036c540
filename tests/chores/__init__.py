"""Chores: the example room of the tests. One thing to be done once.

It proves the engine on every database and shows how a source is built. No part of the package knows
it: its tables are there where a test asks for them.
"""

from __future__ import annotations

from tests.chores.chores import Chore, Chores, Enqueued, NewChore, install
from tests.chores.source import ChoreSource
from tests.chores.states import Status

__all__ = ["Chore", "ChoreSource", "Chores", "Enqueued", "NewChore", "Status", "install"]

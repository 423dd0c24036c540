"""Chores as a source of work."""

from __future__ import annotations

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Handler
from ledgerstone.items import ItemSource
from tests.chores.tables import CHORES


class ChoreSource(ItemSource):
    """Chores, due by time; a failed one comes back after a back-off until its attempts are used."""

    def __init__(self, handler: Handler, *, backoff: Backoff | None = None) -> None:
        super().__init__(CHORES, handler, backoff=backoff)

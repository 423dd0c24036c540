"""The registry: the state of messaging that a ledger keeps outside of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledgerstone.errors import SettingsError
from ledgerstone.messaging.inbox.consumers import Consumers
from ledgerstone.messaging.outbox.publishing import Statements
from ledgerstone.messaging.outbox.routing import Routes
from ledgerstone.messaging.symfony.setup import Setup
from ledgerstone.messaging.symfony.time_zone import check_zone
from ledgerstone.messaging.tables import Shared, shared
from ledgerstone.settings import MessagingSettings

if TYPE_CHECKING:
    from ledgerstone.store.database import Database


class MessagingRegistry:
    """The tables under their names, the routes, and the consumers of this process."""

    def __init__(self, settings: MessagingSettings) -> None:
        self.settings = settings
        _check_tables(settings)
        check_zone(settings.time_zone)
        self.shared: Shared = shared(settings)
        self.routes = Routes(settings)
        self.consumers = Consumers()
        self.setup = Setup(self.shared, settings)
        self.statements = Statements(self.shared)

    def keeps_order(self, queue: str, database: Database[Any]) -> bool:
        """Whether relays send the messages of this destination in order, by lanes.

        A database with one writer always uses lanes: a competing relay would hold the write lock
        while it sends.
        """
        destination = self.routes.destinations.get(queue)
        ordered = destination is None or destination.mode == "ordered"
        return ordered or database.dialect.one_writer


def _check_tables(settings: MessagingSettings) -> None:
    """Raises SettingsError if two tables have the same name, compared without case."""
    names = [settings.outbox_table, settings.failed_table, settings.deduplication_table]
    if len({name.lower() for name in names}) < len(names):
        problem = f"messaging: two tables have the same name: {', '.join(names)}"
        raise SettingsError([f"{problem}; allowed: a different name for each table"])

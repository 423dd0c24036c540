"""The registry: what messaging of one ledger has outside of transactions."""

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
    """The tables under their names, the routes, and the consumers that this process knows."""

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
        """Whether the messages of this destination leave by lanes.

        With one writer those that need no order do too: relays could not hold rows beside it.
        """
        destination = self.routes.destinations.get(queue)
        ordered = destination is None or destination.mode == "ordered"
        return ordered or database.dialect.one_writer


def _check_tables(settings: MessagingSettings) -> None:
    """SettingsError if two tables have one name, or one that the database takes for the same."""
    names = [settings.outbox_table, settings.failed_table, settings.deduplication_table]
    if len({name.lower() for name in names}) < len(names):
        problem = f"messaging: two tables are called the same: {', '.join(names)}"
        raise SettingsError([f"{problem}; allowed: a name for each"])

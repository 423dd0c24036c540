"""The room of messaging: what it adds to a ledger."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerstone import messaging
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source
from ledgerstone.messaging.outbox.outbox import Outbox
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.messaging.read import checks
from ledgerstone.messaging.read.status import BacklogFacts, backlog_of, failed_messages_of
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.relay.relays import relay_of
from ledgerstone.messaging.tables import tables
from ledgerstone.room import Opened, Room
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.store.rooms import RowSecurity
from ledgerstone.store.schema.columns import names_in
from ledgerstone.store.transaction import Transaction

# Messages have no organisation. Symfony's application manages the rights on shared tables.
SECURITY = RowSecurity(
    refused=("outbox_lane", "outbox_pause", "outbox_key", "message_event", "delivery_crash")
)


def _open(settings: Settings) -> MessagingRegistry:
    return MessagingRegistry(settings.messaging)


def _calls(tx: Transaction, registry: MessagingRegistry) -> Outbox:
    return Outbox(tx, registry)


def _sources(opened: Opened[MessagingRegistry]) -> list[Source]:
    """The relay to the consumers of this process, if it has consumers."""
    local = (LOCAL, RETRY) if opened.state.consumers.all() else ()
    return [relay_of(name, opened.state, opened.database) for name in local]


def _duties(opened: Opened[MessagingRegistry], sources: Sequence[Source]) -> list[Duty]:
    return messaging.duties(opened.state, sources)


def _backlog(
    opened: Opened[MessagingRegistry], tx: Transaction | None
) -> list[BacklogFacts] | None:
    return None if tx is None else backlog_of(tx, opened.state)


def _failed(opened: Opened[MessagingRegistry], tx: Transaction | None) -> int | None:
    return None if tx is None else failed_messages_of(tx, opened.state)


MESSAGING: Room[Outbox, MessagingRegistry] = Room(
    name="messaging",
    open=_open,
    calls=_calls,
    tables=names_in(tables),
    sources=_sources,
    duties=_duties,
    status={"messages": _backlog, "failed_messages": _failed},
    doctor={
        "failed messages": checks.failed_messages,
        "messages": checks.tables,
        "destinations": checks.destinations,
    },
    security=SECURITY,
    failpoints=frozenset(
        {
            "relay.sending",
            "relay.sent",
            "relay.marked",
            "inbox.receipt",
            "inbox.handled",
            "inbox.committed",
        }
    ),
    history=("message_event",),
    cli={
        "outbox": "ledgerstone.messaging.cli.outbox:app",
        "inbox": "ledgerstone.messaging.cli.inbox:app",
        "failed": "ledgerstone.messaging.cli.failed:app",
        "messaging": "ledgerstone.messaging.cli.messaging:app",
    },
)

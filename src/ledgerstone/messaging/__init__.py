"""Messaging: transactional outbox, relays, inbox and failed messages."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source
from ledgerstone.messaging import crashes, inbox, retention
from ledgerstone.messaging.competing import CompetingRelay
from ledgerstone.messaging.failed import Failed
from ledgerstone.messaging.inbox import Inbox
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.office import Office
from ledgerstone.messaging.outbox import Outbox
from ledgerstone.messaging.publishing import NewMessage, Published
from ledgerstone.messaging.relay import OrderedRelay

__all__ = [
    "CompetingRelay",
    "Failed",
    "Inbox",
    "Message",
    "NewMessage",
    "Office",
    "OrderedRelay",
    "Outbox",
    "Published",
    "duties",
]


def duties(office: Office, sources: Sequence[Source]) -> list[Duty]:
    """What has to be done for messages every so often, by one worker of all."""
    relays = [each for each in sources if isinstance(each, OrderedRelay | CompetingRelay)]
    kept = [inbox.duty(office), crashes.duty(office)] if office.consumers.all() else []
    if not relays:
        return kept
    return [*kept, retention.duty(office), *(duty for relay in relays for duty in relay.duties)]

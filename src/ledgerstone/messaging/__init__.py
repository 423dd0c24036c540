"""Messaging: transactional outbox, relays, inbox and failed messages."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source
from ledgerstone.messaging import retention
from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.inbox import crashes, inbox
from ledgerstone.messaging.inbox.inbox import Inbox
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.outbox import Outbox
from ledgerstone.messaging.outbox.publishing import NewMessage, Published
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.relay.competing import CompetingRelay
from ledgerstone.messaging.relay.ordered import OrderedRelay

__all__ = [
    "CompetingRelay",
    "Failed",
    "Inbox",
    "Message",
    "MessagingRegistry",
    "NewMessage",
    "OrderedRelay",
    "Outbox",
    "Published",
    "duties",
]


def duties(registry: MessagingRegistry, sources: Sequence[Source]) -> list[Duty]:
    """The periodic work of messaging. One worker of the cluster does each duty when it is due."""
    relays = [each for each in sources if isinstance(each, OrderedRelay | CompetingRelay)]
    every = [retention.record_duty(registry)]
    if registry.consumers.all():
        every += [inbox.duty(registry), crashes.duty(registry)]
    if relays:
        every += [retention.duty(registry), *(duty for relay in relays for duty in relay.duties)]
    return every

"""The relays of a process: their destinations, counters and outages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput
from ledgerstone.ledger import Ledger
from ledgerstone.messaging import CompetingRelay, OrderedRelay
from ledgerstone.messaging.cli.calls import ready
from ledgerstone.messaging.relay.watched_transport import OF_CONSUMERS, WatchedTransport
from ledgerstone.settings.messaging import masked

Relay = OrderedRelay | CompetingRelay


class CarriedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a relay, in messages; `trouble` is its current outage."""

    destination: str
    to: str
    ordered: bool
    delivered: int
    refused: int
    parked: int
    skipped: int
    trouble: str | None

    @property
    def moved(self) -> bool:
        """Whether the relay has done anything."""
        return bool(self.delivered or self.refused or self.parked or self.skipped)

    @property
    def words(self) -> str:
        rest = {"refused": self.refused, "parked": self.parked, "skipped": self.skipped}
        said = [f"{name} {count:,}" for name, count in rest.items() if count]
        return ", ".join([f"delivered {self.delivered:,}", *said])


def destinations_of(ledger: Ledger, named: Sequence[str] = ()) -> list[str]:
    """The named destinations, or all that this process can send to."""
    consumers = ledger.registry.consumers.all()
    if named:
        for name in OF_CONSUMERS:
            if name in named and not consumers:
                hint = "-A names the ledger that has them, as in -A shop:ledger"
                raise BadInput(f"{name} needs consumers, and this process has none", hint=hint)
        return list(dict.fromkeys(named))
    others = [name for name in ledger.registry.routes.destinations if name not in OF_CONSUMERS]
    return [*others, *(OF_CONSUMERS if consumers else ())]


def ready_to_carry(ledger: Ledger, destinations: Sequence[str]) -> None:
    """Checks that the tables of these destinations exist, and creates what the settings allow."""
    shared = ledger.registry.shared
    if destinations:
        ready(ledger, shared.outbox, shared.failed)
    if set(destinations) & set(OF_CONSUMERS):
        ready(ledger, shared.receipt)


def relays_of(ledger: Ledger, destinations: Sequence[str]) -> list[Relay]:
    """The relays of these destinations."""
    return [ledger.relay_source(name) for name in destinations]


def facts_of(ledger: Ledger, relay: Relay) -> CarriedFacts:
    """The counters of the relays of this process."""
    counters, transport = relay.counters, relay.transport
    return CarriedFacts(
        destination=relay.queue,
        to=address(ledger, relay.queue),
        ordered=isinstance(relay, OrderedRelay),
        delivered=counters.delivered,
        refused=counters.refused,
        parked=counters.parked,
        skipped=counters.skipped,
        trouble=transport.trouble if isinstance(transport, WatchedTransport) else None,
    )


def address(ledger: Ledger, destination: str) -> str:
    """The URL of a destination without its password."""
    return masked(ledger.registry.routes.destinations[destination].url)


def consumers_table(ledger: Ledger) -> RenderableType:
    """A table of the consumers of the application."""
    table = output.table("Consumers", "name", "messages", "order")
    for consumer in ledger.registry.consumers.all().values():
        order = "by partition" if consumer.ordered else "any"
        table.add_row(Text(consumer.name, "bold"), Text(consumer.pattern), order)
    return table

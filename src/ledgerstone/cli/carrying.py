"""Relays as a process runs them: which, what they have carried, and whether they get through."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec
from rich.console import RenderableType

from ledgerstone.cli import output
from ledgerstone.cli.message_calls import ready
from ledgerstone.cli.output import Text
from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.ledger import Ledger
from ledgerstone.messaging import CompetingRelay, Message, OrderedRelay
from ledgerstone.messaging.routing import RETRY
from ledgerstone.messaging.transport import Answer, Heard, Transport, Verdict
from ledgerstone.settings.messaging import LOCAL, masked

Relay = OrderedRelay | CompetingRelay
OF_CONSUMERS = (LOCAL, RETRY)
"""Destinations that lead to the consumers of a process that has some."""
CODES_SAID_MAX = 100
"""Causes of refusals that are said, each once."""

_log = logging.getLogger("ledgerstone.relay")


class CarriedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay did so far, in messages; `trouble` says why nothing gets through now."""

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
        """Whether anything happened."""
        return bool(self.delivered or self.refused or self.parked or self.skipped)

    @property
    def words(self) -> str:
        rest = {"refused": self.refused, "parked": self.parked, "skipped": self.skipped}
        said = [f"{name} {count:,}" for name, count in rest.items() if count]
        return ", ".join([f"delivered {self.delivered:,}", *said])


class Watched:
    """A transport that says when its destination is out of reach, and when it is back.

    Each is said once, and so is each cause for which messages are refused.
    """

    def __init__(self, name: str, transport: Transport) -> None:
        self.trouble: str | None = None
        self._name = name
        self._transport = transport
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        try:
            answers = self._transport.send(messages, seconds_max=seconds_max, heard=heard)
        except TargetDown as down:
            self._went(down.message)
            raise
        if answers and all(answer.verdict is Verdict.UNKNOWN for answer in answers):
            self._went(answers[0].reason or "no answer came")
        elif answers:
            self._came_back()
            self._say_refusals(answers)
        return answers

    def close(self) -> None:
        self._transport.close()

    def _went(self, words: str) -> None:
        words = " ".join(words.split())
        with self._lock:
            known, self.trouble = self.trouble, words
        if known is None:
            told = words if words.startswith(self._name) else f"{self._name}: {words}"
            _log.warning("%s; what waits for it goes on waiting", told)

    def _came_back(self) -> None:
        with self._lock:
            known, self.trouble = self.trouble, None
        if known is not None:
            _log.info("%s is back", self._name)

    def _say_refusals(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.verdict not in {Verdict.REFUSED, Verdict.UNDELIVERABLE}:
                continue
            with self._lock:
                if answer.code in self._said or len(self._said) >= CODES_SAID_MAX:
                    continue
                self._said.add(answer.code)
            _log.warning(
                "%s %s: %s: %s; `ledgerstone outbox lanes %s` shows which",
                self._name,
                "has messages waiting" if self._name in OF_CONSUMERS else "refuses messages",
                *(answer.code, answer.reason, self._name),
            )


def destinations_of(ledger: Ledger, named: Sequence[str] = ()) -> list[str]:
    """The destinations that are named; otherwise all that this process can carry to."""
    consumers = ledger.office.consumers.all()
    if named:
        for name in OF_CONSUMERS:
            if name in named and not consumers:
                hint = "-A names the ledger that has them, as in -A shop:ledger"
                raise BadInput(f"{name} leads to consumers, and there are none here", hint=hint)
        return list(dict.fromkeys(named))
    others = [name for name in ledger.office.routes.destinations if name not in OF_CONSUMERS]
    return [*others, *(OF_CONSUMERS if consumers else ())]


def ready_to_carry(ledger: Ledger, destinations: Sequence[str]) -> None:
    """The tables are there that carrying to these needs, or an error says how to make them."""
    shared = ledger.office.shared
    if destinations:
        ready(ledger, shared.outbox, shared.failed)
    if set(destinations) & set(OF_CONSUMERS):
        ready(ledger, shared.receipt)


def relays_of(ledger: Ledger, destinations: Sequence[str]) -> list[Relay]:
    """The relays of these destinations, each watched."""
    relays = [ledger.relay_source(name) for name in destinations]
    for relay in relays:
        relay.transport = Watched(relay.queue, relay.transport)
    return relays


def facts_of(ledger: Ledger, relay: Relay) -> CarriedFacts:
    """What a relay of this process did so far."""
    tally, transport = relay.tally, relay.transport
    return CarriedFacts(
        destination=relay.queue,
        to=address(ledger, relay.queue),
        ordered=isinstance(relay, OrderedRelay),
        delivered=tally.delivered,
        refused=tally.refused,
        parked=tally.parked,
        skipped=tally.skipped,
        trouble=transport.trouble if isinstance(transport, Watched) else None,
    )


def address(ledger: Ledger, destination: str) -> str:
    """Where a destination is, as it may be shown."""
    return masked(ledger.office.routes.destinations[destination].url)


def consumers_table(ledger: Ledger) -> RenderableType:
    """The consumers of the application as people see them."""
    table = output.table("Consumers", "name", "messages", "order")
    for consumer in ledger.office.consumers.all().values():
        order = "by partition" if consumer.ordered else "any"
        table.add_row(Text(consumer.name, "bold"), Text(consumer.pattern), order)
    return table

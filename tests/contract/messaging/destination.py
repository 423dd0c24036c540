"""A shelf: a destination in memory, and a shop that publishes to it.

    shelf = Shelf()
    shelf.tell("poison", REFUSED)
    with Shop(url, clock, shelf=shelf, on_failure="park") as shop:
        shop.publish("poison", partition="ann")
        shop.tick()
        assert shop.lane("ann").attempts == 1

What is published under `order.…` goes to the destination `shop`, whose relays carry to the shelf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec
from sqlalchemy import select

from ledgerstone.engine.worker import Worker
from ledgerstone.errors import TargetDown
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard, SendResult
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.publishing import Published
from ledgerstone.messaging.record import Entry
from ledgerstone.messaging.relay.competing import CompetingRelay
from ledgerstone.messaging.relay.lanes import LaneRow
from ledgerstone.messaging.relay.ordered import OrderedRelay
from ledgerstone.messaging.relay.relays import relay_of
from ledgerstone.messaging.states import RecordKind
from ledgerstone.messaging.tables import event
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.store.clock import Clock

SHOP = "shop"
NAME = "order.placed"
NOWHERE = "amqp://nowhere"
"""A destination has a URL; what is given in place of its transport needs none."""

REFUSED = Answer(SendResult.REFUSED, "full", "the shelf is full")
UNDELIVERABLE = Answer(SendResult.UNDELIVERABLE, "too_large", "it takes no such size")
MISSING = Answer(SendResult.UNDELIVERABLE, "unroutable", "nobody is bound")
UNKNOWN = Answer(SendResult.UNKNOWN, "timeout", "no answer came")


class Shelf:
    """A transport that keeps messages in memory.

    - `tell` says how it answers for messages with this body, for so many times or for ever.
    - While it is `down` every send raises TargetDown.
    - `sent` is all that was handed over, `kept` what it confirmed, both in order.
    - `meanwhile` is called once, in the middle of the next send.
    """

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.kept: list[Message] = []
        self.batches: list[int] = []
        self.down = False
        self.closed = 0
        self.meanwhile: Callable[[], None] | None = None
        self._told: dict[str, tuple[Answer, int | None]] = {}

    @property
    def bodies(self) -> list[Any]:
        """The bodies of what it keeps."""
        return [message.body for message in self.kept]

    def bodies_of(self, partition: str) -> list[Any]:
        """Those of one partition."""
        return [message.body for message in self.kept if message.partition == partition]

    def tell(self, body: Any, answer: Answer, *, times: int | None = None) -> None:
        """Answer so when a message with this body comes."""
        self._told[_spelled(body)] = (answer, times)

    def forgive(self, body: Any) -> None:
        """Take messages with this body from now on."""
        self._told.pop(_spelled(body), None)

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        assert seconds_max > 0
        if self.down:
            raise TargetDown(SHOP)
        self.sent.extend(messages)
        self.batches.append(len(messages))
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return [self._answer(message) for message in messages]

    def close(self) -> None:
        self.closed += 1

    def _answer(self, message: Message) -> Answer:
        word = message.raw.decode()
        answer, times = self._told.get(word, (DELIVERED, None))
        if times is not None:
            if times <= 1:
                del self._told[word]
            else:
                self._told[word] = (answer, times - 1)
        if answer.result is SendResult.DELIVERED:
            self.kept.append(message)
        return answer


class Shop:
    """A ledger whose orders go to a shelf.

    - `options` are those of the destination; `messaging` those of the section beside it.
    - The shelf may stand at `local`, where else handlers run.
    - Each `relay` is a worker of its own, on the same database and shelf.
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        shelf: Shelf | None = None,
        destination: str = SHOP,
        messaging: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.destination = destination
        place = "local:" if destination == LOCAL else NOWHERE
        section = {
            "destinations": {destination: {"url": place, **options}},
            "routes": {"order.*": [destination]},
            **(messaging or {}),
        }
        settings = Settings.load(url=url, environ={}, messaging=section, engine=engine or {})
        self.ledger = Ledger(url, settings=settings, clock=clock)
        self.shelf = shelf or Shelf()
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    def publish(self, *bodies: Any, name: str = NAME, **given: Any) -> list[Published]:
        """Publish each of these bodies, in one transaction."""
        with self.ledger.transaction() as tx:
            return [tx.outbox.publish(name, body, **given) for body in bodies]

    def source(self, destination: str | None = None) -> OrderedRelay | CompetingRelay:
        """What carries to the shelf."""
        name = destination or self.destination
        return relay_of(name, self.ledger.registry, self.ledger.database, self.shelf)

    def relay(self, destination: str | None = None) -> Worker:
        """A further relay."""
        return self.ledger.worker(self.source(destination))

    def tick(self, times: int = 1) -> None:
        """The first relay takes so many steps."""
        if self._worker is None:
            self._worker = self.relay()
        for _ in range(times):
            self._worker.tick()

    def lane(self, partition: str = "", destination: str | None = None) -> LaneRow:
        """Where a partition stands."""
        with self.ledger.reading() as tx:
            rows = tx.outbox.lanes(destination or self.destination, limit=1000).rows
        (found,) = [row for row in rows if row.partition == partition]
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The outbox as it is, in the order of the places."""
        outbox = self.ledger.registry.shared.outbox
        with self.ledger.reading() as tx:
            found = tx.execute(select(outbox).order_by(outbox.c.id))
            return [dict(row) for row in found.mappings()]

    def waiting(self) -> list[Any]:
        """The bodies of what was not delivered, in the order of the places."""
        rows = [row for row in self.rows() if row["delivered_at"] is None]
        return [msgspec.json.decode(row["body"]) for row in rows]

    def record(self) -> list[Entry]:
        """What was put on record, in order."""
        with self.ledger.reading() as tx:
            found = tx.execute(select(event).order_by(event.c.id)).mappings()
            return [
                Entry(
                    what=RecordKind(row["what"]),
                    queue=row["queue_name"],
                    partition=row["partition_key"],
                    message_id=row["message_id"],
                    who=row["who"],
                    code=row["code"],
                    reason=row["reason"],
                )
                for row in found
            ]


def _spelled(body: Any) -> str:
    return msgspec.json.encode(body).decode()

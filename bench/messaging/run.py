"""One run: the sides in turn, round after round; a ratio is the median of the rounds' ratios."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import msgspec

from bench import places
from bench.command import Say
from bench.drain import Drained, drain_fresh
from bench.ledgers import described
from bench.machine import versions
from bench.measure import Timing, apart, cpu_us, ratios
from bench.messaging import broker, client, heads, load
from bench.messaging.figures import FIGURES, HEAD_LOOKUP, figure
from bench.messaging.sides import faststream_outbox as peer
from bench.messaging.sides.faststream_outbox import FaststreamOutbox
from bench.messaging.sides.inbox import BareInbox, Inbox, SQLAlchemyInbox
from bench.messaging.sides.relay import Relay
from bench.places import Place
from bench.report import Figure, Measurement, Report, report
from bench.side import LOT_MAX, Side
from ledgerstone.messaging.relay.competing import BATCHES_MAX
from ledgerstone.settings import EngineSettings, SubscriptionSettings
from ledgerstone.testing.servers import PrivateRabbitMQ

DATABASE = "postgres"
PARTS = ("relays", "inbox", "heads")
PACKAGES = ("SQLAlchemy", "psycopg", "pika")
PEERS = ("faststream-outbox", "faststream", "aio-pika", "asyncpg", "uvloop")
REHEARSAL = 500
"""Messages that each side carries before anything is measured."""
WIDE = client.WINDOW * BATCHES_MAX
"""As much as a relay may have under way when all its batches are sent at the same moment."""
SUBSCRIPTION = SubscriptionSettings(url="amqp://nowhere", queue=broker.QUEUE)
WORDS = f"""\
Relays: messages of {load.BODY_BYTES} bytes, persistent and mandatory, from PostgreSQL to a quorum
queue of RabbitMQ, each counted when its confirm is in and it is marked delivered in the database.
The process is started, carries {REHEARSAL} and falls idle; it is held still (SIGSTOP) while another
one commits the backlog and the tables are analyzed, and let go. Measured is from that moment until
the last one is marked. Sides are measured in turn, each time on a fresh database of one server with
stock settings (fsync and synchronous_commit on) and a fresh queue; a ratio is the median of the
ratios of the rounds. CPU is that of the process, for each message.

- competing, ordered: a relay with default settings but for the mode of its destination, alone in
  its worker. It hands over up to {client.WINDOW:,} messages at a time and marks them in one
  transaction; {BATCHES_MAX} such batches may be at some point of their way at once. Ordered: in
  {load.PARTITIONS:,} partitions, one message of each under way.
- client: pika, on which our transport is built, in a process of its own: its asynchronous
  connection publishes the same messages with the same headers from memory, {client.WINDOW:,} under
  way without a confirm. Nothing is read from or written to a database. Beside it, for the table
  alone, a window of {WIDE:,}.
- faststream-outbox: its documented relay (a FastStream publisher stacked on an outbox subscriber)
  with asyncpg, uvloop, {peer.WORKERS} workers, batches of {peer.BATCH_SIZE:,}, deletes in batches
  of {peer.FLUSH_SIZE}, the autovacuum it advises, publisher confirms on, and no checks of types. It
  takes fewer messages: what is compared is messages a second.

Publish: into the outbox, {LOT_MAX} in each transaction. Inbox: messages that lie in the queue are
handled, each in a transaction with its receipt and one row, and then acknowledged. Ours is a
receiver with default settings ({SUBSCRIPTION.concurrency} threads,
prefetch {SUBSCRIPTION.prefetch}); the client is pika and psycopg with as many threads, the same
prefetch and the same two rows. Both handlers write their row with a cursor of psycopg; beside them,
for the table alone, ours with SQLAlchemy's connection.

Heads: the statements with which a relay claims the next lane that is due and reads its first
message, without the commit, while so many rows wait in {load.PARTITIONS:,} partitions; a round
claims and reads all lanes at once."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    scale: float
    messages: int
    messages_peer: int
    messages_inbox: int
    rounds: int
    waiting: tuple[int, int] = (10_000, 100_000)
    """Rows behind which heads are looked up; the last number is the figure's."""
    lookups: int
    lookup_rounds: int
    peers: bool = True
    """Whether the peer is measured too; without it only the bare client is."""

    @classmethod
    def of(cls, scale: float) -> Plan:
        """The plan of a scale; below some size nothing can be told from noise."""
        return cls(
            scale=scale,
            messages=max(4000, round(20_000 * scale)),
            messages_peer=max(1000, round(4000 * scale)),
            messages_inbox=max(1000, round(5000 * scale)),
            rounds=5 if scale >= 1 else 3,
            lookups=max(100, min(500, round(300 * scale))),
            lookup_rounds=max(5, min(50, round(20 * scale))),
        )


def measured(plan: Plan, parts: Sequence[str], *, say: Say) -> Report:
    """Measure the parts one after the other."""
    with places.postgres() as place, PrivateRabbitMQ() as server:
        bench = Bench(place, server.url, plan, say)
        with place.fresh(heads.prepare) as url:
            facts = {DATABASE: described(url), "rabbitmq": broker.described(server.url)}
        if "relays" in parts:
            bench.relays()
        if "inbox" in parts:
            bench.inbox()
        if "heads" in parts:
            bench.heads()
    return report(
        room="messaging",
        scale=plan.scale,
        versions=versions([*PACKAGES, *(PEERS if plan.peers else ())]),
        databases=facts,
        settings={
            "plan": msgspec.to_builtins(plan),
            "engine": msgspec.to_builtins(EngineSettings()),
        },
        figures=sorted(bench.figures, key=lambda found: FIGURES.index(found.name)),
        measurements=bench.measurements,
    )


class Bench:
    """The measurements with one database server and one broker."""

    def __init__(self, place: Place, broker_url: str, plan: Plan, say: Say) -> None:
        self.place = place
        self.broker = broker_url
        self.plan = plan
        self.say = say
        self.figures: list[Figure] = []
        self.measurements: list[Measurement] = []

    def relays(self) -> None:
        """The bare client, then each relay, in every round."""
        sides: list[tuple[Side, int]] = [
            (Relay("competing", self.broker), self.plan.messages),
            (Relay("ordered", self.broker), self.plan.messages),
        ]
        if self.plan.peers:
            sides.append((FaststreamOutbox(self.broker), self.plan.messages_peer))
        bare: dict[int, list[Timing]] = {client.WINDOW: [], WIDE: []}
        taken: dict[str, list[Drained]] = {side.name: [] for side, _ in sides}
        for number in range(self.plan.rounds):
            for window, some in bare.items():
                some.append(self._published(window))
            for side, count in sides:
                taken[side.name].append(self._drained(side, count))
            rates = {_client(window): some for window, some in bare.items()}
            rates |= {name: _drains(some) for name, some in taken.items()}
            self._say_round("relay", number, rates)
        for window, some in bare.items():
            self._rates(f"relay {_client(window)}", some, f"window of {window:,}")
        for side, _ in sides:
            self._rates(f"relay {side.name}", _drains(taken[side.name]), side.setting)
        for mode in ("competing", "ordered"):
            ours = _drains(taken[mode])
            beside = ratios(ours, bare[client.WINDOW])
            self._ratio(f"amqp.{mode}.vs_client", f"relay {mode}/client", beside)
            self._add(f"relay {mode}/{_client(WIDE)}", "ratio", ratios(ours, bare[WIDE]))
        if self.plan.peers:
            ours, theirs = _drains(taken["competing"]), _drains(taken[FaststreamOutbox.name])
            case = f"relay competing/{FaststreamOutbox.name}"
            self._ratio("amqp.competing.vs_faststream_outbox", case, ratios(ours, theirs))
        for side, _ in sides:
            self._rates(f"publish {side.name}", [found.filled for found in taken[side.name]])

    def inbox(self) -> None:
        """Ours, with the driver and with SQLAlchemy, and the bare client in turn."""
        sides: list[Side] = [side(self.broker) for side in (Inbox, SQLAlchemyInbox, BareInbox)]
        taken: dict[str, list[Timing]] = {side.name: [] for side in sides}
        for number in range(self.plan.rounds):
            for side in sides:
                found = self._drained(side, self.plan.messages_inbox)
                taken[side.name].append(found.drained)
            self._say_round("inbox", number, taken)
        for name, some in taken.items():
            self._rates(f"inbox {name}", some)
        beside = ratios(taken["ours"], taken["client"])
        self._ratio("inbox.handled.vs_client", "inbox ours/client", beside)

    def heads(self) -> None:
        """With few and with many rows waiting."""
        plan = self.plan
        with ExitStack() as stack:
            urls = {
                waiting: stack.enter_context(self.place.fresh(heads.prepare))
                for waiting in plan.waiting
            }
            looked = apart(heads.lookups, urls, ones=plan.lookups, rounds=plan.lookup_rounds)
        for waiting, found in looked.items():
            self.say(f"heads behind {waiting:,}: {median(found.one):.2f} ms")
            self._add(f"heads one of {waiting:,}", "ms", found.one)
            self._add(
                f"heads round of {waiting:,}", "ms", found.round, f"{load.PARTITIONS:,} lanes"
            )
        self.figures.append(figure(HEAD_LOOKUP, median(looked[plan.waiting[-1]].one)))

    def _published(self, window: int) -> Timing:
        broker.renew(self.broker)
        count = self.plan.messages
        timing = apart(client.publish, self.broker, warm_up=REHEARSAL, count=count, window=window)
        kept = broker.kept(self.broker, REHEARSAL + count)
        if kept != REHEARSAL + count:
            message = f"the broker keeps {kept} messages of the client's {REHEARSAL + count}"
            raise RuntimeError(message)
        return timing

    def _drained(self, side: Side, count: int) -> Drained:
        broker.renew(self.broker)
        return drain_fresh(self.place, side, workers=1, count=count, rehearsal=REHEARSAL)

    def _say_round(self, what: str, number: int, rates: dict[str, list[Timing]]) -> None:
        told = ", ".join(f"{name} {some[-1].rate:,.0f}/s" for name, some in rates.items())
        self.say(f"{what} {number + 1} of {self.plan.rounds}: {told}")

    def _rates(self, case: str, taken: Sequence[Timing], setting: str = "") -> None:
        parts = (f"{taken[0].count:,} messages", f"{cpu_us(taken):.0f} µs CPU", setting)
        note = ", ".join(part for part in parts if part)
        self._add(case, "1/s", [timing.rate for timing in taken], note)

    def _ratio(self, figure_name: str, case: str, values: list[float]) -> None:
        self._add(case, "ratio", values)
        self.figures.append(figure(f"messaging.{figure_name}", median(values)))

    def _add(self, case: str, unit: str, values: list[float], note: str = "") -> None:
        self.measurements.append(
            Measurement(database=DATABASE, case=case, unit=unit, values=values, note=note)
        )


def _client(window: int) -> str:
    return "client" if window == client.WINDOW else "client with a wide window"


def _drains(taken: Sequence[Drained]) -> list[Timing]:
    return [found.drained for found in taken]

"""The lane contract: places follow commits, people can stop a partition, heads are found."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import pytest
from sqlalchemy import select

from ledgerstone.engine.source import Ask
from ledgerstone.errors import NotAllowedNow, NotFound
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.outbox.publishing import NewMessage
from ledgerstone.messaging.record import Entry
from ledgerstone.messaging.relay import lanes
from ledgerstone.messaging.relay.heads import Head, Heads
from ledgerstone.messaging.relay.lanes import HeldLane
from ledgerstone.messaging.relay.memory_budget import Budget
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.store.dialects.postgres.wire import wired
from ledgerstone.store.sql.statement import Compiled
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.destination import NAME, SHOP, Shop
from tests.contract.messaging.relays import LEASE, Opened, Opening, call, claimed, run
from tests.harness.joinable import guest_on
from tests.harness.ledgers import Undone
from tests.harness.threads import aside, signaled, still_waits, together

RACERS = 6
ROUNDS = 5
BACKLOG, PARTITIONS = 20_000, 200
MEMORY_BYTES = 1 << 30


class Line(NamedTuple):
    """A line of a plan, and whether it is as it should be."""

    words: str
    looked_up: bool


def values_of(ours: Compiled) -> dict[str, Any]:
    """Something for every parameter that a statement of this contract can have."""
    assert ours.text
    names = [f"p{number}" for number in range(100)]
    lane_id = "00000000-0000-0000-0000-000000000000"
    return {
        "queue": SHOP,
        "limit": 50,
        "lease_ms": 1000,
        "worker": "w",
        "now": 1_700_000_000_000,
        "each": 3,
        "small": MEMORY_BYTES,
        "one_partition_key": "p1",
        "in_partition_key": "{" + ",".join(names) + "}",
        "rows": f'[["{lane_id}"]]',
        **{f"in_{i}_partition_key": name for i, name in enumerate(names)},
    }


def plan_of_sqlite(tx: Transaction, ours: Compiled) -> list[Line]:
    """By EXPLAIN QUERY PLAN."""
    given = ours.parameters(values_of(ours))
    rows = tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {ours.text}", given)
    lines = [str(row[3]) for row in rows]
    wrong = re.compile(r"SCAN (messenger_outbox|outbox_lane)|TEMP B-TREE")
    return [Line(line, not wrong.search(line)) for line in lines]


def plan_of_postgres(tx: Transaction, ours: Compiled) -> list[Line]:
    """By EXPLAIN, of the plan for these parameters and of the one for any."""
    sent = wired(ours.text, ours.parameters(values_of(ours)))
    assert sent is not None
    text, given = sent[0].decode(), sent[1]
    spelled = ", ".join("NULL" if one is None else f"'{one.decode()}'" for one in given)
    lines: list[str] = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for command in (f"SET LOCAL plan_cache_mode = {mode}", f"PREPARE look AS {text}"):
            tx.command(command)
        shown = tx.connection.exec_driver_sql(f"EXPLAIN EXECUTE look({spelled})")
        lines += [str(row[0]) for row in shown]
        tx.command("DEALLOCATE look")
    # The few lanes that were found are read by their keys, or from the few pages that all fill.
    wrong = re.compile(r"Seq Scan on messenger_outbox|Sort|Bitmap")
    return [Line(line, not wrong.search(line)) for line in lines]


def plan_of_mysql(tx: Transaction, ours: Compiled) -> list[Line]:
    """By EXPLAIN: how each table is reached, and whether it is sorted."""
    given = ours.parameters(values_of(ours))
    shown = tx.connection.exec_driver_sql(f"EXPLAIN {ours.text}", given).mappings()
    lines = []
    for row in shown:
        ours_alone = row["table"] in {"messenger_outbox", "outbox_lane"}
        good = row["type"] in {"ref", "range", "eq_ref", "const"}
        sorts = "filesort" in (row["Extra"] or "")
        lines.append(Line(str(dict(row)), not ours_alone or (good and not sorts)))
    return lines


PLANS: dict[str, Callable[[Transaction, Compiled], list[Line]]] = {
    "sqlite": plan_of_sqlite,
    "postgres": plan_of_postgres,
    "mysql": plan_of_mysql,
}
FIGURES = {
    "sqlite": "ANALYZE",
    "postgres": "ANALYZE",
    "mysql": "ANALYZE TABLE messenger_outbox, outbox_lane",
}
"""How each database is told to look at its tables."""


class CommitOrderContract(Opened):
    """Messages of a partition leave in the order of their commits. Fixtures: `home`, `clock`."""

    @pytest.mark.parametrize("known", [False, True], ids=["a new partition", "a known partition"])
    def test_commits_in_the_opposite_order(self, opening: Opening, known: bool) -> None:
        """What was inserted first and committed last leaves last, and none is left out."""
        shop = opening()
        if known:
            shop.publish("before", partition="ann")
            shop.tick()
            shop.shelf.kept.clear()

        committed = opposite(shop, [["early"]], [["late"]])
        shop.tick(2)

        assert shop.shelf.bodies == committed
        assert sorted(committed) == ["early", "late"]
        assert shop.waiting() == []

    def test_a_relay_in_between(self, opening: Opening) -> None:
        """Also when the later one was delivered before the earlier one was committed."""
        shop = opening()
        shop.publish("before", partition="ann")
        between: list[list[Any]] = []

        def deliver() -> None:
            shop.tick(2)
            between.append(list(shop.shelf.bodies))

        committed = opposite(shop, [["early"]], [["late"]], between=deliver)
        shop.tick(2)

        assert shop.shelf.bodies == ["before", *committed]
        assert between in ([], [["before", "late"]])
        assert shop.waiting() == []

    def test_joined_transactions_that_commit_in_the_opposite_order(self, opening: Opening) -> None:
        """Also in SQLAlchemy transactions of the user's own; one that was rolled back left nothing.

        With one writer the second begins when the first is through.
        """
        shop = opening()
        ledger = shop.ledger
        with ExitStack() as open_:
            first, second = (open_.enter_context(ledger.database.engine.connect()) for _ in "12")
            ledger.join(first).outbox.publish(NAME, "gone", partition="ann")
            first.rollback()
            ledger.join(first).outbox.publish(NAME, "early", partition="ann")
            if ledger.database.dialect.one_writer:
                first.commit()
            ledger.join(second).outbox.publish(NAME, "late", partition="ann")
            second.commit()
            first.commit()
            told = shop.lane("ann").due_at
        shop.tick(2)

        one_writer = ledger.database.dialect.one_writer
        assert shop.shelf.bodies == (["early", "late"] if one_writer else ["late", "early"])
        assert told is not None
        assert shop.waiting() == []

    def test_places_follow_commits(self, opening: Opening) -> None:
        """The number of a row is its place: several rows move together, in their own order."""
        shop = opening()

        committed = opposite(
            shop,
            [["a1", "b1"], ["a2", "c1"], ["a3"]],
            [["a4", "b2"], ["a5"]],
            partition_of=lambda body: body[0],
        )

        assert by_partition(shop.waiting()) == by_partition(committed)

    def test_a_savepoint_undone_before_a_move(self, opening: Opening) -> None:
        """What a savepoint took back is not there after a move, and the rest is."""
        shop = opening()
        published, go = threading.Event(), threading.Event()

        def early() -> None:
            with shop.ledger.transaction() as tx:
                tx.outbox.publish(NAME, 1, partition="ann")
                with pytest.raises(Undone), tx.savepoint():
                    tx.outbox.publish(NAME, 2, partition="ann")
                    raise Undone
                tx.outbox.publish(NAME, 3, partition="ann")
                published.set()
                signaled(go)

        with aside(early):
            signaled(published)
            with aside(partial(shop.publish, 4, partition="ann")) as late:
                if not shop.ledger.database.dialect.one_writer:
                    late.result(WAIT_SECONDS_MAX)
                go.set()
        shop.tick(2)

        assert shop.shelf.bodies in ([4, 1, 3], [1, 3, 4])

    def test_several_partitions_without_a_circle(self, opening: Opening) -> None:
        """Transactions that publish to the same partitions in opposite order all commit."""
        shop = opening()
        names = [f"p{number}" for number in range(5)]

        def publish(number: int) -> None:
            order = names if number % 2 else names[::-1]
            for step in range(ROUNDS):
                with shop.ledger.transaction() as tx:
                    for partition in order:
                        tx.outbox.publish(NAME, [number, step], partition=partition)

        together(*[partial(publish, number) for number in range(RACERS)])
        run([shop.relay()], shop)

        for partition in names:
            arrived = shop.shelf.bodies_of(partition)
            assert len(arrived) == RACERS * ROUNDS
            for number in range(RACERS):
                steps = [step for racer, step in arrived if racer == number]
                assert steps == list(range(ROUNDS))

    def test_a_new_partition_for_many_at_once(self, opening: Opening) -> None:
        """Threads that are the first to publish to a partition, all at once, all commit."""
        shop = opening()

        for step in range(ROUNDS):
            partition = f"new {step}"
            together(
                *[partial(shop.publish, number, partition=partition) for number in range(RACERS)]
            )

        shop.tick(2)
        for step in range(ROUNDS):
            assert sorted(shop.shelf.bodies_of(f"new {step}")) == list(range(RACERS))

    def test_order_while_relays_run(self, opening: Opening) -> None:
        """Publishers and relays at the same time: each partition arrives in its commit order."""
        shop = opening(batch_max=5)
        relays = [shop.relay(), shop.relay()]
        over = threading.Event()

        def carry(number: int) -> None:
            while not over.is_set():
                relays[number].tick()

        def publish(number: int) -> None:
            for step in range(10):
                shop.publish([number, step], partition=f"p{step % 2}")

        with aside(partial(carry, 0)), aside(partial(carry, 1)):
            try:
                together(*[partial(publish, number) for number in range(3)])
            finally:
                over.set()
        run(relays, shop)

        for rest in range(2):
            places = [
                message.place or 0 for message in shop.shelf.kept if message.partition == f"p{rest}"
            ]
            assert places == sorted(places)
            assert len(places) == 15

    def test_a_joined_transaction_has_its_place_at_once(self, opening: Opening, home: Home) -> None:
        """What a joined transaction publishes is before all that commit after it, or with it."""
        shop = opening()
        with guest_on("driver", home.url) as guest:
            guest.begin()
            guest.joined(shop.ledger, lambda tx: tx.outbox.publish(NAME, "theirs", partition="ann"))
            with aside(partial(shop.publish, "ours", partition="ann")):
                guest.commit()

        shop.tick(2)

        assert shop.shelf.bodies == ["theirs", "ours"]

    def test_a_commit_goes_behind_one_that_has_the_place(
        self, opening: Opening, home: Home
    ) -> None:
        """A transaction that commits while another has the last place goes behind that one.

        With one writer the second begins when the first is through.
        """
        shop = opening()
        for partition in ("ann", "bob"):
            shop.publish("before", partition=partition)
        one_writer = shop.ledger.database.dialect.one_writer
        published, go = threading.Event(), threading.Event()

        def early() -> None:
            with shop.ledger.transaction() as tx:
                for partition in ("ann", "bob"):
                    tx.outbox.publish(NAME, "early", partition=partition)
                published.set()
                signaled(go)

        with aside(early) as first, guest_on("driver", home.url) as guest:
            signaled(published)
            if one_writer:
                go.set()
                first.result(WAIT_SECONDS_MAX)
            guest.begin()
            guest.joined(shop.ledger, lambda tx: tx.outbox.publish(NAME, "late", partition="ann"))
            go.set()
            waits = still_waits(first)
            guest.commit()
        shop.tick(2)

        order = ["early", "late"] if one_writer else ["late", "early"]
        assert waits is not one_writer
        assert shop.shelf.bodies_of("ann") == ["before", *order]
        assert shop.shelf.bodies_of("bob") == ["before", "early"]

    def test_without_order_nobody_waits(self, opening: Opening, home: Home) -> None:
        """Where order is not asked for, a transaction that stays open holds up no other."""
        shop = opening(mode="competing")
        with guest_on("driver", home.url) as guest:
            guest.begin()
            if not shop.ledger.database.dialect.one_writer:
                guest.joined(shop.ledger, lambda tx: tx.outbox.publish(NAME, "open"))
            shop.publish("ours")
            shop.tick()
            guest.rollback()

        assert shop.shelf.bodies == ["ours"]


class HeadsContract(Opened):
    """What waits first is found in an index, however much waits behind it."""

    def test_heads_are_looked_up(self, opening: Opening, home: Home) -> None:
        """Claiming lanes and reading their heads neither scans nor sorts the backlog.

        Whether the database has looked at its tables before, or not.
        """
        shop = opening()
        new = [
            NewMessage(name=NAME, body=number, partition=f"p{number % PARTITIONS}")
            for number in range(PARTITIONS)
        ]
        call(shop, lambda tx: tx.outbox.publish_many(new))
        grow(shop, BACKLOG)

        for known in (False, True):
            if known:
                with shop.ledger.transaction() as tx:
                    tx.connection.exec_driver_sql(FIGURES[home.kind])
            found, plans = looked_up(shop, home)

            assert [len(first.rows) for first in found.values()] == [3] * 50
            for index in ("idx_outbox_lane__due", "idx_outbox_waiting"):
                assert any(index in line.words for line in plans), plans
            assert [line for line in plans if not line.looked_up] == []

    def test_the_first_are_the_first(self, opening: Opening) -> None:
        """So many of each lane are read, in order, and nothing of another lane or destination."""
        shop = opening()
        for partition, count in (("ann", 5), ("bob", 1), ("", 3)):
            shop.publish("other", name="stock.counted", partition=partition)
            shop.publish(*range(count), partition=partition)
        heads = Heads(shop.ledger.registry.shared)

        with shop.ledger.transaction() as tx:
            taken = lanes.claim.run(tx, Ask(50, "w", 1.0), queue=SHOP)
            held = {each.partition: each for each in map(HeldLane.of, taken)}
            found = heads.read(tx, SHOP, list(held.values()), each=4, budget=Budget(MEMORY_BYTES))

        bodies = {name: [row[1] for row in found[each.id].rows] for name, each in held.items()}
        assert bodies == {"ann": ["0", "1", "2", "3"], "bob": ["0"], "": ["0", "1", "2"]}


class PausingContract(Opened):
    """What people do with destinations and partitions."""

    def test_a_destination_is_paused(self, opening: Opening) -> None:
        """Nothing leaves for a paused destination until it is resumed; both are on record."""
        shop = opening()
        shop.publish(1, partition="ann")
        call(shop, lambda tx: tx.outbox.pause(SHOP, by="ada"))
        shop.tick()
        paused = list(shop.shelf.bodies)
        with shop.ledger.reading() as tx:
            backlog = {each.destination: each for each in tx.outbox.backlog()}[SHOP]

        call(shop, lambda tx: tx.outbox.resume(SHOP, by="bob"))
        shop.tick()

        assert (paused, backlog.paused, backlog.waiting) == ([], True, 1)
        assert shop.shelf.bodies == [1]
        assert shop.record() == [
            Entry(what=RecordKind.PAUSED, queue=SHOP, who="ada"),
            Entry(what=RecordKind.RESUMED, queue=SHOP, who="bob"),
        ]

    def test_the_backlog(self, opening: Opening, clock: ManualClock) -> None:
        """The backlog says of each destination how many wait, and since when the oldest does."""
        shop = opening()
        shop.publish("delivered", partition="ann")
        shop.tick()
        clock.advance(60)
        oldest = datetime.fromtimestamp(clock.now_ms() // 1000, UTC)
        shop.publish("oldest", partition="ann")
        clock.advance(60)
        shop.publish("newest", partition="bob")

        with shop.ledger.reading() as tx:
            found = {each.destination: each for each in tx.outbox.backlog()}

        assert (found[SHOP].waiting, found[SHOP].oldest_at) == (2, oldest)
        assert (found["local"].waiting, found["local"].oldest_at) == (0, None)

    def test_a_pause_is_of_one_destination(self, opening: Opening) -> None:
        """Messages for other destinations leave while one is paused."""
        shop = opening()
        call(shop, lambda tx: tx.outbox.pause("local"))
        shop.publish(1, partition="ann")

        shop.tick()

        assert shop.shelf.bodies == [1]

    def test_a_partition_is_paused(self, opening: Opening) -> None:
        """Nothing of a paused partition leaves, all others do; resumed, it goes on in order."""
        shop = opening()
        shop.publish(1, partition="ann")
        call(shop, lambda tx: tx.outbox.pause(SHOP, partition="ann", by="ada"))
        shop.publish(2, partition="ann")
        shop.publish(3, partition="bob")
        shop.tick()
        paused, lane = list(shop.shelf.bodies), shop.lane("ann")

        call(shop, lambda tx: tx.outbox.resume(SHOP, partition="ann"))
        shop.tick()

        assert (paused, lane.state) == ([3], LaneState.PAUSED)
        assert shop.shelf.bodies == [3, 1, 2]
        assert [(entry.what, entry.partition) for entry in shop.record()] == [
            (RecordKind.PAUSED, "ann"),
            (RecordKind.RESUMED, "ann"),
        ]

    def test_paused_while_under_way(self, opening: Opening) -> None:
        """What is under way when its partition is paused arrives, is marked, and is the last."""
        shop = opening(batch_max=1)
        shop.publish(1, 2, partition="ann")
        shop.shelf.meanwhile = lambda: call(shop, lambda tx: tx.outbox.pause(SHOP, partition="ann"))

        shop.tick(3)

        assert (shop.shelf.bodies, shop.waiting()) == ([1], [2])
        assert shop.lane("ann").state is LaneState.PAUSED

    def test_a_rescue_does_not_resume(self, opening: Opening, clock: ManualClock) -> None:
        """A partition that was paused while its relay died stays paused."""
        shop = opening()
        shop.publish(1, partition="ann")
        claimed(shop)
        call(shop, lambda tx: tx.outbox.pause(SHOP, partition="ann"))

        clock.advance(LEASE + 1)
        shop.tick(2)

        assert (shop.lane("ann").state, shop.shelf.bodies) == (LaneState.PAUSED, [])

    def test_what_makes_no_sense_is_refused(self, opening: Opening) -> None:
        """Pausing twice, resuming what is open and naming what is not there are refused."""
        shop = opening()
        shop.publish(1, partition="ann")
        call(shop, lambda tx: tx.outbox.pause(SHOP))

        for error, refused in (
            (NotAllowedNow, lambda tx: tx.outbox.pause(SHOP)),
            (NotAllowedNow, lambda tx: tx.outbox.resume("local")),
            (NotAllowedNow, lambda tx: tx.outbox.resume(SHOP, partition="ann")),
            (NotFound, lambda tx: tx.outbox.pause(SHOP, partition="bob")),
            (NotFound, lambda tx: tx.outbox.pause("nowhere")),
            (NotFound, lambda tx: tx.outbox.lanes("nowhere")),
        ):
            with pytest.raises(error):
                call(shop, refused)


def opposite(
    shop: Shop,
    early: Sequence[Sequence[str]],
    late: Sequence[Sequence[str]],
    *,
    partition_of: Callable[[str], str] = lambda _: "ann",
    between: Callable[[], None] = lambda: None,
) -> list[str]:
    """Two transactions, each of some calls; the bodies in the order of their commits.

    `early` inserts first and, where both can be open at once, commits last.
    """
    inserted, go = threading.Event(), threading.Event()
    committed: list[str] = []

    def publish(tx: Transaction, calls: Sequence[Sequence[str]]) -> None:
        for bodies in calls:
            tx.outbox.publish_many(
                [NewMessage(name=NAME, body=body, partition=partition_of(body)) for body in bodies]
            )

    def first() -> None:
        with shop.ledger.transaction() as tx:
            publish(tx, early)
            inserted.set()
            signaled(go)
        committed.extend(body for bodies in early for body in bodies)

    def second() -> None:
        with shop.ledger.transaction() as tx:
            publish(tx, late)
        committed.extend(body for bodies in late for body in bodies)

    with aside(first):
        signaled(inserted)
        with aside(second) as other:
            if not shop.ledger.database.dialect.one_writer:
                other.result(WAIT_SECONDS_MAX)
                between()
            go.set()
    return committed


def grow(shop: Shop, count: int) -> None:
    """Double the backlog until there are so many messages, behind those that are there."""
    outbox = shop.ledger.registry.shared.outbox
    names = [c.name for c in outbox.c if c.name != "id"]
    doubled = outbox.insert().from_select(names, select(*[outbox.c[name] for name in names]))
    with shop.ledger.transaction() as tx:
        total = PARTITIONS
        while total < count:
            tx.execute(doubled)
            total *= 2


def looked_up(shop: Shop, home: Home) -> tuple[dict[str, Head], list[Line]]:
    """What waits first in fifty lanes that are claimed for it, and how that was looked up."""
    heads = Heads(shop.ledger.registry.shared)
    # As a worker does it: how few pages the lanes fill decides otherwise.
    database = shop.ledger.database.sibling(connections=1)
    with closing(database), database.transaction() as tx:
        taken = lanes.claim.run(tx, Ask(50, "w", 1.0), queue=SHOP)
        found = heads.read(
            tx, SHOP, [HeldLane.of(each) for each in taken], each=3, budget=Budget(MEMORY_BYTES)
        )
        plans = [
            line
            for operation in (lanes.claim.each, heads.first)
            for name, statement in operation.statements.items()
            # One that other tests of this process have asked another kind of database.
            if name.startswith(home.kind)
            for line in PLANS[home.kind](tx, statement.compiled(tx))
        ]
    return found, plans


def by_partition(bodies: Sequence[str]) -> dict[str, list[str]]:
    """The bodies by their first letter, which is their partition."""
    found: dict[str, list[str]] = {}
    for body in bodies:
        found.setdefault(body[0], []).append(body)
    return found

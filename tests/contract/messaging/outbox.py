"""The outbox contract: what is accepted, what is refused, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import msgspec
import pytest

from ledgerstone.errors import BadInput, KeyConflict, NotFound, StoreBusy, TooLarge
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.message import HEADERS_MAX
from ledgerstone.messaging.outbox import outbox
from ledgerstone.messaging.outbox.outbox import OutboxRow
from ledgerstone.messaging.outbox.publishing import (
    AVAILABLE_DAYS_MAX,
    MESSAGES_MAX,
    Accepted,
    NewMessage,
    Published,
)
from ledgerstone.messaging.symfony import envelope
from ledgerstone.store.sql import pages
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.destination import NAME, SHOP, Shop
from tests.contract.messaging.relays import Opened, Opening, call, moment
from tests.harness.joinable import GUESTS, Guest, guest_on, url_for
from tests.harness.ledgers import Undone
from tests.harness.own_table import notes_kept, tables
from tests.harness.own_table import write as write_note
from tests.harness.threads import still_waits, together

RACERS = 6
DAY_SECONDS = 86_400
ZONE = timezone(timedelta(hours=5, minutes=30))
BODY_BYTES_MAX = 2048

BAD_NAMES: list[Any] = [
    "",
    "order",
    "Order.placed",
    "order.Placed",
    "order..placed",
    ".order.placed",
    "order.placed.",
    "order.1placed",
    "1order.placed",
    "order.pla_ced",
    "order.pla-ced",
    "order placed",
    "order.placed\n",
    "örder.placed",
    "order.*",
    "a." + "b" * 254,
    None,
    7,
    b"order.placed",
]
BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "a partition that is no text": {"partition": 7},
    "no partition at all": {"partition": None},
    "a long partition": {"partition": "p" * 256},
    "a partition with NUL": {"partition": "a\0b"},
    "a partition that ends in a space": {"partition": "a "},
    "a partition with half a character": {"partition": "\ud83d"},
    "a key that is no text": {"key": 7},
    "an empty key": {"key": ""},
    "a long key": {"key": "k" * 256},
    "a key with NUL": {"key": "a\0b"},
    "headers that are a list": {"headers": [("a", "b")]},
    "headers that are text": {"headers": "a"},
    "a header that is a number": {"headers": {"a": 1}},
    "a header without a value": {"headers": {"a": None}},
    "a header without a name": {"headers": {"": "a"}},
    "a header with a space": {"headers": {"a b": "c"}},
    "a name that is no text": {"headers": {1: "a"}},
    "a long name of a header": {"headers": {"a" * 129: "b"}},
    "a long header": {"headers": {"a": "b" * 4097}},
    "a header of two lines": {"headers": {"a": "b\r\nc"}},
    "a header with NUL": {"headers": {"a": "b\0c"}},
    "a header with half a character": {"headers": {"a": "\ud83d"}},
    "many headers": {"headers": {f"h{n}": "v" for n in range(HEADERS_MAX + 1)}},
    "the type": {"headers": {"type": "a"}},
    "the content type": {"headers": {"Content-Type": "a"}},
    "the id": {"headers": {"Message-Id": "a"}},
    "a stamp": {"headers": {r"X-Message-Stamp-A": "[]"}},
    "a header of ours": {"headers": {"x-ledgerstone-key": "a"}},
    "a header of CloudEvents": {"headers": {"ce-id": "a"}},
    "a moment without a zone": {"available_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the case
    "a moment as a number": {"available_at": 1_700_000_000},
    "a moment as text": {"available_at": "2030-01-01T00:00:00Z"},
    "a moment too far away": {
        "available_at": datetime.now(UTC) + timedelta(days=AVAILABLE_DAYS_MAX + 2)
    },
    "a moment before all": {"available_at": datetime(1960, 1, 1, tzinfo=UTC)},
}
BAD_BODIES: dict[str, Any] = {
    "what is no JSON": object(),
    "NaN": {"weight": float("nan")},
    "infinity": [float("inf")],
    "NUL": {"words": "a\0b"},
    "half a character": "\ud83d",
    "a number as a name that cannot be one": {(1, 2): 3},
}


class PublishingContract(Opened):
    """What `publish` promises. Fixtures: `home`, `clock`."""

    def test_a_row_is_as_documented(self, opening: Opening, clock: ManualClock) -> None:
        """Body a JSON document, headers a JSON object with stamps, naive UTC times in seconds."""
        shop = opening()
        clock.advance(0.999)
        (published,) = shop.publish(
            {"n": 7, "ä": None}, partition="ann", key="k", headers={"Tenant": "ø"}
        )

        (row,) = shop.rows()

        headers = msgspec.json.decode(row["headers"])
        now = datetime.fromtimestamp(clock.now_ms() // 1000, UTC)
        assert list(row) == [
            *("id", "body", "headers", "queue_name", "created_at", "available_at"),
            *("delivered_at", "partition_key"),
        ]
        assert (row["queue_name"], row["partition_key"]) == (SHOP, "ann")
        assert msgspec.json.decode(row["body"]) == {"n": 7, "ä": None}
        assert moment(row["created_at"]) == moment(row["available_at"]) == now
        assert row["delivered_at"] is None
        assert (headers["type"], headers["Content-Type"]) == (NAME, "application/json")
        assert headers["Tenant"] == "ø"
        stamps = {name: value for name, value in headers.items() if name.startswith(envelope.STAMP)}
        assert [msgspec.json.decode(value) for value in stamps.values()] == [
            [{"messageId": published.id}],
            [{"messageName": NAME}],
        ]
        assert set(stamps) == {envelope.ID_STAMP, envelope.NAME_STAMP}

    def test_later_is_kept_to_the_second(self, opening: Opening) -> None:
        """A moment to leave at is kept in UTC, in whole seconds, never too early."""
        shop = opening()
        at = datetime(2030, 1, 1, 12, 0, 0, 1, tzinfo=ZONE)
        shop.publish(1, available_at=at)

        (row,) = shop.rows()

        assert moment(row["available_at"]) == datetime(2030, 1, 1, 6, 30, 1, tzinfo=UTC)

    def test_it_commits_with_the_business(self, opening: Opening) -> None:
        """The user's rows and the messages are kept together."""
        shop = opening()
        with_notes(shop)

        with shop.ledger.transaction() as tx:
            write_note(tx, "mine")
            tx.outbox.publish(NAME, 1)
            tx.outbox.publish(NAME, 2, partition="ann")
            tx.outbox.publish(NAME, 3)

        assert notes_kept(shop.ledger) == ["mine"]
        assert shop.waiting() == [1, 2, 3]

    def test_it_vanishes_with_the_business(self, opening: Opening) -> None:
        """After a rollback neither is there, nothing is delivered, and the key is free."""
        shop = opening()
        with_notes(shop)

        with pytest.raises(Undone), shop.ledger.transaction() as tx:
            write_note(tx, "mine")
            for number in range(3):
                tx.outbox.publish(NAME, number, partition="ann", key=f"k{number}")
            raise Undone

        assert (notes_kept(shop.ledger), shop.rows()) == ([], [])
        (again,) = shop.publish("other", key="k1")
        assert again.created

    def test_a_savepoint_takes_it_along(self, opening: Opening) -> None:
        """What was published since a savepoint that was undone is gone, the rest is delivered."""
        shop = opening()

        with shop.ledger.transaction() as tx:
            tx.outbox.publish(NAME, 1, partition="ann")
            with pytest.raises(Undone), tx.savepoint():
                tx.outbox.publish(NAME, 2, partition="ann", key="k")
                tx.outbox.publish(NAME, 3, partition="bob")
                raise Undone
            tx.outbox.publish(NAME, 4, partition="ann")
        shop.tick(2)

        assert shop.shelf.bodies == [1, 4]
        assert shop.publish(5, key="k")[0].created

    def test_destinations_have_rows_of_their_own(self, opening: Opening) -> None:
        """A message has one row for each destination that its name leads to, with the same id."""
        shop = opening(
            messaging={
                "destinations": {
                    name: {"url": f"amqp://{name}"} for name in (SHOP, "audit", "mail")
                },
                "routes": {"order.*": [SHOP, "audit"], "*.placed": ["audit"], "user.*": ["mail"]},
            }
        )

        (placed,) = shop.publish(1, partition="ann")
        (other,) = shop.publish(2, name="stock.counted")

        assert placed.destinations == (SHOP, "audit")
        assert other.destinations == ("local",)
        rows = shop.rows()
        assert [row["queue_name"] for row in rows] == [SHOP, "audit", "local"]
        ids = [envelope.id_in(envelope.headers_in(row["headers"])) for row in rows]
        assert ids == [placed.id, placed.id, other.id]

    def test_the_same_key_is_the_same_message(self, opening: Opening) -> None:
        """The same key with the same content is the message there is: nothing more is written."""
        shop = opening()
        (first,) = shop.publish({"a": 1, "b": 2}, partition="ann", key="order 7")

        (again,) = shop.publish({"b": 2, "a": 1}, partition="ann", key="order 7")

        assert (again.id, again.created, again.accepted) == (first.id, False, Accepted.EXISTING)
        assert len(shop.rows()) == 1

    @pytest.mark.parametrize(
        "other", [{"bodies": [2]}, {"partition": "bob"}, {"name": "order.changed"}]
    )
    def test_another_content_is_a_conflict(self, opening: Opening, other: dict[str, Any]) -> None:
        """The same key with another body, partition or name is KeyConflict; the rest goes on."""
        shop = opening()
        shop.publish(1, partition="ann", key="k")
        given = {"name": NAME, "partition": "ann", **other}
        (body,) = given.pop("bodies", [1])

        with shop.ledger.transaction() as tx:
            with pytest.raises(KeyConflict, match="'k'"):
                tx.outbox.publish(given["name"], body, partition=given["partition"], key="k")
            tx.outbox.publish(NAME, "goes on")

        assert shop.waiting() == [1, "goes on"]

    def test_a_key_is_won_by_one(self, opening: Opening) -> None:
        """Of threads that publish with the same key at once one creates, the others are told."""
        shop = opening()

        same = together(*[partial(shop.publish, 1, key="same") for _ in range(RACERS)])

        answers = [answer for (answer,) in same]
        assert sorted(answer.created for answer in answers) == [False] * (RACERS - 1) + [True]
        assert len({answer.id for answer in answers}) == 1
        assert shop.waiting() == [1]

    def test_keys_in_another_order(self, opening: Opening) -> None:
        """Calls that publish with the same keys in another order do not wait in a circle."""
        shop = opening()

        def publish(keys: str) -> list[bool]:
            with shop.ledger.transaction() as tx:
                new = [NewMessage(name=NAME, body=1, key=key) for key in keys]
                return [each.created for each in tx.outbox.publish_many(new)]

        with ThreadPoolExecutor(2) as threads:
            with shop.ledger.transaction() as tx:
                tx.outbox.publish(NAME, 1, key="m")
                first = threads.submit(publish, "zma")
                still_waits(first)
                second = threads.submit(publish, "az")
                still_waits(second)
            answers = first.result(WAIT_SECONDS_MAX), second.result(WAIT_SECONDS_MAX)

        one, other = answers
        assert (one[0] + other[1], one[1], one[2] + other[0]) == (1, False, 1)

    def test_a_key_is_refused_to_others(self, opening: Opening) -> None:
        """Of threads that publish other content with one key at once all but one are refused."""
        shop = opening()

        def publish(number: int) -> bool:
            try:
                shop.publish(number, key="k")
            except KeyConflict:
                return False
            return True

        won = together(*[partial(publish, number) for number in range(RACERS)])

        assert sorted(won) == [False] * (RACERS - 1) + [True]
        assert shop.waiting() == [won.index(True)]

    def test_many_at_once(self, opening: Opening) -> None:
        """Each of many has its own answer, in order; conflicts and known ones stop nothing."""
        shop = opening()
        shop.publish("known", key="a")
        new = [("first", None), ("known", "a"), ("other", "a"), ("twice", "b"), ("twice", "b")]

        with shop.ledger.transaction() as tx:
            answers = tx.outbox.publish_many(
                [NewMessage(name=NAME, body=body, key=key) for body, key in new]
            )

        accepted = [answer.accepted for answer in answers]
        assert accepted == [
            Accepted.CREATED,
            Accepted.EXISTING,
            Accepted.CONFLICT,
            Accepted.CREATED,
            Accepted.EXISTING,
        ]
        assert answers[3].id == answers[4].id
        assert shop.waiting() == ["known", "first", "twice"]

    def test_a_batch_has_its_end(self, opening: Opening) -> None:
        """A call takes at most so many, kept in order; one more is TooLarge and writes nothing."""
        shop = opening()
        new = [NewMessage(name=NAME, body=n, partition="ann") for n in range(MESSAGES_MAX)]

        with shop.ledger.transaction() as tx, pytest.raises(TooLarge, match=str(MESSAGES_MAX)):
            tx.outbox.publish_many([*new, new[0]])
        call(shop, lambda tx: tx.outbox.publish_many(new[:2500]))

        assert shop.waiting() == list(range(2500))

    def test_none_is_none(self, opening: Opening) -> None:
        """A call with nothing publishes nothing."""
        shop = opening()

        with shop.ledger.transaction() as tx:
            assert tx.outbox.publish_many([]) == []

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    def test_a_bad_name_is_refused(self, opening: Opening, name: Any) -> None:
        """What is no name of a message is refused with the rule, before anything is written."""
        refuse(opening(), lambda tx: tx.outbox.publish(name, 1))

    @pytest.mark.parametrize("given", BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
    def test_bad_options_are_refused(self, opening: Opening, given: dict[str, Any]) -> None:
        """What cannot be a partition, key, header or moment is refused before it is written."""
        refuse(opening(), lambda tx: tx.outbox.publish(NAME, 1, **given))

    @pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
    def test_a_bad_body_is_refused(self, opening: Opening, body: Any) -> None:
        """What cannot be written as JSON is refused before anything is written."""
        refuse(opening(), lambda tx: tx.outbox.publish(NAME, body))

    def test_a_large_body_is_refused(self, opening: Opening) -> None:
        """A body beyond the limit is TooLarge and says what to do; one that fits is taken."""
        shop = opening(messaging={"body_bytes_max": BODY_BYTES_MAX})
        fits = "x" * (BODY_BYTES_MAX - 2)

        with shop.ledger.transaction() as tx, pytest.raises(TooLarge) as raised:
            tx.outbox.publish(NAME, fits + "x")
        shop.publish(fits)

        assert "messaging.body_bytes_max" in str(raised.value)
        assert "refer to it" in str(raised.value)
        assert shop.waiting() == [fits]

    def test_a_bad_one_refuses_all(self, opening: Opening) -> None:
        """One that is malformed refuses the whole call; so does what is no message."""
        shop = opening()
        good = NewMessage(name=NAME, body=1)

        for bad in (NewMessage(name="bad", body=1), {"name": NAME}, None):
            refuse(shop, lambda tx, bad=bad: tx.outbox.publish_many([good, bad]))

    def test_everything_arrives_unchanged(self, opening: Opening) -> None:
        """Quotes, backslashes, per cent signs, emoji and large texts are kept as they are."""
        shop = opening()
        odd = "'\"\\%s%%🦊\u2028{}\\u0041\n\t;--$1:name?"
        bodies = [odd, {odd: [odd]}, "x" * 300_000, None, True, 1.5, -(2**53)]

        shop.publish(*bodies, partition=odd.strip(), key=None, headers={"a": "'\"\\%s🦊"})
        shop.tick()

        assert shop.shelf.bodies == bodies
        assert {message.partition for message in shop.shelf.kept} == {odd.strip()}
        assert {message.headers["a"] for message in shop.shelf.kept} == {"'\"\\%s🦊"}

    @pytest.mark.parametrize("many", [False, True])
    def test_the_list_shows_all(
        self, opening: Opening, monkeypatch: pytest.MonkeyPatch, *, many: bool
    ) -> None:
        """The list shows what is there, newest first, by destination, page by page.

        What waits is shown in the order in which it leaves.
        """
        if many:
            monkeypatch.setattr(outbox, "FEW_MAX", 1)
            monkeypatch.setattr(outbox, "_lists", outbox._Lists)
            monkeypatch.setattr(pages, "STEP_ROWS", 3)
            monkeypatch.setattr(pages, "STEPS_MAX", 2)
        shop = opening()
        shop.publish(1, 2, 3)
        shop.publish(4, name="stock.counted")
        shop.tick()
        shop.publish(5)
        shop.publish(7, 8, partition="b")
        shop.publish(6, partition="a")

        with shop.ledger.reading() as tx:
            first = tx.outbox.find(limit=2)
            second = tx.outbox.find(limit=2, cursor=first.next)
            waiting = every_page(tx, waiting=True)
            ours = every_page(tx, destination=SHOP, waiting=True)
            every = every_page(tx, destination=SHOP)
            none = tx.outbox.find(destination="retry")
            with pytest.raises(NotFound):
                tx.outbox.find(destination="nowhere")

        assert [row.body for row in (*first.rows, *second.rows)] == ["6", "8", "7", "5"]
        assert [row.body for row in waiting] == ["4", "5", "6", "7", "8"]
        assert [row.body for row in ours] == ["5", "6", "7", "8"]
        assert {(row.name, row.destination) for row in ours} == {(NAME, SHOP)}
        assert [row.body for row in every] == ["6", "8", "7", "5", "3", "2", "1"]
        assert (none.rows, none.next) == ([], None)


def every_page(tx: Transaction, **given: Any) -> list[OutboxRow]:
    """All rows of a list, two at a time."""
    found: list[OutboxRow] = []
    cursor = None
    while True:
        page = tx.outbox.find(limit=2, cursor=cursor, **given)
        assert len(page.rows) <= 2
        found += page.rows
        if (cursor := page.next) is None:
            return found


@pytest.mark.filterwarnings("ignore:SQLite .* has the WAL-reset bug:RuntimeWarning")
class JoinedPublishingContract:
    """In the user's own transaction, whatever they hold it in. Fixtures: `home`, `clock`."""

    @pytest.fixture(params=list(GUESTS))
    def name(self, request: pytest.FixtureRequest) -> str:
        """Every way to hold a transaction."""
        return str(request.param)

    @pytest.fixture
    def shop(self, home: Home, clock: ManualClock, name: str) -> Iterator[Shop]:
        """A shop that the guest can join."""
        with Shop(url_for(name, home), clock) as shop:
            with_notes(shop)
            yield shop

    @pytest.fixture
    def guest(self, name: str, shop: Shop, home: Home) -> Iterator[Guest]:
        """A program with a transaction of its own on the same database."""
        with guest_on(name, home.url) as guest:
            guest.begin()
            yield guest

    def test_it_commits_and_vanishes_with_theirs(self, shop: Shop, guest: Guest) -> None:
        """Both are kept by the user's commit and gone with their rollback; a savepoint too."""
        guest.execute("INSERT INTO note (name, count) VALUES ('gone', 0)")
        joined(shop, guest, "gone")
        guest.rollback()
        guest.begin()
        guest.execute("INSERT INTO note (name, count) VALUES ('kept', 0)")
        joined(shop, guest, "first", key="k")
        guest.savepoint()
        joined(shop, guest, "undone")
        guest.undo()
        joined(shop, guest, "second")
        with pytest.raises(KeyConflict):
            joined(shop, guest, "other", key="k")
        before = shop.waiting()

        guest.commit()
        shop.tick(2)

        assert before == []
        assert notes_kept(shop.ledger) == ["kept"]
        assert shop.shelf.bodies == ["first", "second"]

    def test_batches_and_partitions(self, shop: Shop, guest: Guest) -> None:
        """Many messages of several partitions in one joined transaction keep their order."""
        new = [NewMessage(name=NAME, body=n, partition=f"p{n % 3}") for n in range(30)]

        answers = guest.joined(shop.ledger, lambda tx: tx.outbox.publish_many(new))
        guest.commit()
        shop.tick(2)

        assert all(answer.created for answer in answers)
        for rest in range(3):
            assert shop.shelf.bodies_of(f"p{rest}") == list(range(rest, 30, 3))


def with_notes(shop: Shop) -> None:
    """A table of the user's own, empty."""
    tables.drop_all(shop.ledger.database.engine)
    tables.create_all(shop.ledger.database.engine)


def joined(shop: Shop, guest: Guest, body: Any, **given: Any) -> Published:
    """Published in the guest's transaction, to one partition."""
    return guest.joined(
        shop.ledger, lambda tx: tx.outbox.publish(NAME, body, partition="ann", **given)
    )


def refuse(shop: Shop, work: Any) -> None:
    """It is BadInput, says what was wrong, and the transaction goes on without it."""

    def both(tx: Transaction) -> None:
        with pytest.raises(BadInput) as raised:
            work(tx)
        assert str(raised.value)
        assert not isinstance(raised.value, StoreBusy)
        tx.outbox.publish(NAME, "good")

    call(shop, both)
    assert shop.waiting()[-1:] == ["good"]
    assert set(shop.waiting()) == {"good"}

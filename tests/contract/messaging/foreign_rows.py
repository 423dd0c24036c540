"""The contract of rows that others wrote into the outbox: found, delivered, or set aside."""

from __future__ import annotations

from uuid import NAMESPACE_OID, uuid5

import pytest
from sqlalchemy import Table

from ledgerstone.messaging.relay import sweep as sweeping
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.store.sql.distinct import STEPS_MAX
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.destination import NAME, REFUSED, SHOP, Shop
from tests.contract.messaging.relays import (
    Opened,
    Opening,
    call,
    foreign,
    insert_text,
    symfony,
    write,
)


class ForeignRowsContract(Opened):
    """What holds for rows that were not published through the ledger."""

    def test_rows_of_others_are_delivered(self, opening: Opening, clock: ManualClock) -> None:
        """Rows that a Symfony installation wrote are found and delivered, beside those of ours."""
        shop = opening()
        write(shop, clock, '{"n":1}', symfony("order.placed"))
        write(shop, clock, '{"n":2}', symfony("order.placed"), partition="ann")
        shop.tick()
        write(shop, clock, '{"n":3}', symfony("order.placed"))
        shop.publish({"n": 4})
        write(shop, clock, '{"n":5}', symfony("order.placed"))
        shop.tick()
        write(shop, clock, '{"n":6}', symfony("order.placed"))

        clock.advance(2)
        shop.tick(2)

        assert [body["n"] for body in shop.shelf.bodies_of("")] == [1, 3, 4, 5, 6]
        assert shop.shelf.bodies_of("ann") == [{"n": 2}]
        assert shop.waiting() == []

    def test_an_id_is_made_of_the_place(self, opening: Opening, clock: ManualClock) -> None:
        """A row without an id gets one that follows from its place, the same each time."""
        shop = opening()
        shop.shelf.tell({"n": 1}, REFUSED, times=2)
        place = write(shop, clock, '{"n":1}', symfony("order.placed"))

        for _ in range(4):
            shop.tick()
            clock.advance(400)

        identity = shop.ledger.database.identity
        expected = str(uuid5(NAMESPACE_OID, f"{identity}:messenger_outbox:{place}"))
        assert {message.id for message in shop.shelf.sent} == {expected}
        assert len(shop.shelf.sent) == 3

    def test_an_id_in_a_stamp_is_kept(self, opening: Opening, clock: ManualClock) -> None:
        """A row that has an id in its stamp keeps it, whatever the namespace of the stamp."""
        shop = opening()
        mine = "01890a5d-ac96-774b-bcce-b302099a8057"
        stamp = r"X-Message-Stamp-App\\Messenger\\MessageIdStamp"
        headers = f'{{"type":"order.placed","{stamp}":"[{{\\"messageId\\":\\"{mine}\\"}}]"}}'
        write(shop, clock, "{}", headers)

        shop.tick()

        assert [message.id for message in shop.shelf.kept] == [mine]

    def test_many_partitions_are_swept(self, opening: Opening, clock: ManualClock) -> None:
        """All partitions that others wrote into are found, also more than one sweep passes."""
        shop = opening()
        count = STEPS_MAX + 300
        rows = [foreign(clock, str(n), symfony(NAME), f"p{n:05}") for n in range(count)]
        call(shop, lambda tx: tx.execute(insert_text(outbox_of(shop)), rows))

        for _ in range(8):
            shop.tick()
            clock.advance(2)

        assert sorted(shop.shelf.bodies) == list(range(count))

    def test_one_sweep_passes_thousands(self, opening: Opening, clock: ManualClock) -> None:
        """One sweep finds the rows of more partitions than one statement does."""
        shop = opening()
        rows = [foreign(clock, str(n), symfony(NAME), f"p{n:05}") for n in range(2000)]
        call(shop, lambda tx: tx.execute(insert_text(outbox_of(shop)), rows))

        told = shop.ledger.run(sweeping.Sweep(shop.ledger.registry, SHOP))

        assert told == 2000

    def test_a_sweep_goes_on_where_it_had_enough(
        self, opening: Opening, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Partitions that nothing leaves hide none behind them: the next sweep comes to those."""
        shop = opening()
        monkeypatch.setattr(sweeping, "PARTITIONS_MAX", 4)
        for number in range(10):
            write(shop, clock, str(number), symfony(NAME), f"p{number}")
        sweep = sweeping.Sweep(shop.ledger.registry, SHOP)

        told = [shop.ledger.run(sweep) for _ in range(6)]

        assert (max(told), sum(told)) == (4, 10)
        shop.tick()
        assert sorted(shop.shelf.bodies) == list(range(10))

    @pytest.mark.parametrize(
        ("headers", "words"),
        [
            ("no JSON", "not a JSON object"),
            ("[]", "not a JSON object"),
            ("{}", "`type`"),
            ('{"type":""}', "`type`"),
            (r'{"type":"order.placed","X-Message-Stamp-A\\MessageIdStamp":"[{}]"}', "id"),
            (r'{"type":"order.placed","X-Message-Stamp-A\\MessageIdStamp":"x"}', "MessageIdStamp"),
        ],
    )
    def test_a_malformed_row_is_parked(
        self, opening: Opening, clock: ManualClock, headers: str, words: str
    ) -> None:
        """A row that cannot be read parks its partition with the code malformed, and says why."""
        shop = opening()
        shop.publish(1, partition="ann")
        write(shop, clock, "{}", headers, partition="ann")
        shop.publish(2, partition="ann")

        shop.tick(2)

        lane = shop.lane("ann")
        assert (lane.state, lane.code) == (LaneState.PARKED, "malformed")
        assert words in (lane.reason or "")
        assert shop.shelf.bodies == [1]
        assert [entry.what for entry in shop.record()] == [RecordKind.PARKED]

    def test_a_malformed_row_may_be_skipped(self, opening: Opening, clock: ManualClock) -> None:
        """With skip it is in the failed table with all that it holds, and the rest goes on."""
        shop = opening(on_failure="skip")
        write(shop, clock, "the body", "no JSON", partition="ann")
        shop.publish(2, partition="ann")

        shop.tick(3)

        assert shop.shelf.bodies == [2]
        with shop.ledger.reading() as tx:
            (found,) = tx.failed.find().rows
            failed = tx.failed.get(found.id)
        assert (failed.code, failed.raw) == ("malformed", b"the body")
        assert "no JSON" in str(failed.headers)


def outbox_of(shop: Shop) -> Table:
    """The table."""
    return shop.ledger.registry.shared.outbox

"""The volume of a day, and reservations."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone.errors import BadInput, Malformed, StoreCorrupt
from ledgerstone.signing.keys import ContextKey, Family
from ledgerstone.signing.life import records, volume
from ledgerstone.signing.values import Approved, Rejected
from tests.signing.people import DAY, KAS, NOW, group, payment
from tests.signing.world import Worlds


def test_reservations_count(worlds: Worlds) -> None:
    """An approved amount that is not finalized counts against the limit; a free one does not."""
    world = worlds(max_daily_volume_sompi=25 * KAS)
    first = world.approved("r1", payment(1))
    world.approved("r2", payment(2))

    third = world.decision(world.approved("r3", payment(3)))
    world.abort(first)
    fourth = world.decision(world.approved("r4", payment(4)))

    assert isinstance(third, Rejected)
    assert fourth == Approved()


def test_the_next_day(worlds: Worlds) -> None:
    """Five payments fill the limit, a sixth is rejected, and accepted on the next UTC day."""
    world = worlds(max_daily_volume_sompi=50 * KAS)
    for number in range(5):
        world.finalize(world.signed(f"r{number}", payment(number)))

    today = world.decision(world.approved("r5", payment(5)))
    world.now += DAY
    tomorrow = world.decision(world.approved("r6", payment(6, timestamp_nanos=NOW)))

    assert isinstance(today, Rejected)
    assert "daily_volume" in today.reason
    assert tomorrow == Approved()


def test_over_midnight(worlds: Worlds) -> None:
    """An amount that was approved yesterday and is paid today counts today."""
    world = worlds(max_daily_volume_sompi=20 * KAS)
    late = [world.signed(f"r{n}", payment(n)) for n in (1, 2)]
    world.now += DAY
    refused = world.decision(world.approved("r3", payment(3)))

    for request in late:
        world.finalize(request)

    assert isinstance(refused, Rejected)
    with world.store.transaction() as tx:
        assert volume.volume_of_day(tx, world.now) == 20 * KAS


def test_since(worlds: Worlds) -> None:
    """The volume since a moment counts whole UTC days, from the day of the moment on."""
    world = worlds()
    for number in (1, 3):
        world.finalize(world.signed(f"r{number}", payment(number, amount_sompi=10 * number)))
        world.now += DAY

    with world.store.transaction() as tx:
        assert volume.volume_since(tx, 0) == 40
        assert volume.volume_since(tx, NOW + DAY) == 30
        assert volume.volume_since(tx, NOW + DAY + DAY // 3) == 30
        assert volume.volume_since(tx, NOW + 2 * DAY) == 0


def test_days_that_are_full(worlds: Worlds) -> None:
    """A day holds no more than 64 bits can say; the volume of another day is not changed by it."""
    world = worlds()
    for number, amount in enumerate((2**64 - 1, 2**64 - 1, 7)):
        world.finalize(world.signed(f"r{number}", payment(number, amount_sompi=amount)))
        world.now += number * DAY

    days = [world.signing.volume_of_day(NOW + day * DAY) for day in range(3)]

    assert days == [2**64 - 1, 7, 0]
    assert world.signing.get_volume_since(NOW) == 2**64 - 1
    with pytest.raises(BadInput):
        world.signing.volume_of_day(-1)


def test_more_is_reserved_than_64_bits_hold(worlds: Worlds) -> None:
    """A limit is compared with the exact sum, and the request is rejected with it."""
    world = worlds()
    for number in (1, 2):
        world.approved(f"large{number}", payment(number, amount_sompi=2**64 - 1))
    world.group_id = world.signing.upsert_group_config(
        group(2, 3, max_daily_volume_sompi=2**64 - 1)
    )

    limited = world.approved("limited", payment(3, amount_sompi=1))

    rejected = world.decision(limited)
    assert isinstance(rejected, Rejected)
    assert "368934881474.1910323 reserved" in rejected.reason


def test_a_request_that_reserved_nothing(worlds: Worlds) -> None:
    """The amount that is paid counts, whatever was reserved of it."""
    world = worlds()
    request = world.signed()
    report = world.signing.audit_request(request)
    assert report.context is not None
    with world.store.transaction() as tx:
        context = msgspec.structs.replace(report.context, reserved_sompi=0)
        records.save(tx, ContextKey(request_id=request), context)
        volume.release(tx, 10 * KAS)

    world.finalize(request)

    assert world.signing.volume_today() == 10 * KAS
    assert world.signing.reserved_volume() == 0


def test_a_damaged_sum(worlds: Worlds) -> None:
    """A reserved sum of another length is Malformed."""
    with worlds().store.transaction() as tx:
        tx.put(Family.DEFAULT, b"own:reserved", b"1")
        with pytest.raises(Malformed):
            volume.reserved(tx)


def test_the_reserved_sum_is_exact(worlds: Worlds) -> None:
    """Reservations beyond 64 bits are kept exactly; more is never given back than there is."""
    with worlds().store.transaction() as tx:
        volume.reserve(tx, 2**64 - 1)
        volume.reserve(tx, 2**64 - 1)
        volume.release(tx, 2**64 - 1)
        assert volume.reserved(tx) == 2**64 - 1
        with pytest.raises(StoreCorrupt):
            volume.release(tx, 2**64)

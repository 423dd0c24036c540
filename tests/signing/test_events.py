"""Events: accepted once."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerstone.errors import BadInput, DerivationPathInvalid, EventReplayed, NotFound, TooLarge
from ledgerstone.signing import hashes
from ledgerstone.signing.keys import EventIdKey
from ledgerstone.signing.life import events
from ledgerstone.signing.values import EventHash, Stored
from tests.signing.people import NOW, payment
from tests.signing.world import Worlds


def test_once(worlds: Worlds) -> None:
    """An event is new the first time and the same after; it is read as it was."""
    world = worlds()
    event = payment()

    first, again = world.event(event), world.event(event)

    assert (first.stored, again.stored) == (Stored.NEW, Stored.SAME)
    assert first.event_hash == again.event_hash == hashes.event_hash(event)
    with world.store.transaction() as tx:
        assert events.get_event(tx, first.event_hash) == event


@pytest.mark.parametrize(
    "change",
    [{"timestamp_nanos": NOW + 1}, {"amount_sompi": 1}, {"signature": b"s" * 64}],
    ids=str,
)
def test_the_same_id_with_other_content(worlds: Worlds, change: dict[str, Any]) -> None:
    """An event whose source used its id before is EventReplayed, however little differs."""
    world = worlds()
    world.event(payment())

    with pytest.raises(EventReplayed, match="event-1"):
        world.event(payment(**change))


def test_an_event_of_another_program(worlds: Worlds) -> None:
    """An event that is stored without our index is the same event when it comes again."""
    world = worlds()
    event_hash = world.event(payment()).event_hash
    key = EventIdKey(source_hash=hashes.source_hash(payment()))
    world.delete(key)

    assert world.event(payment()) == (event_hash, Stored.SAME)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"event_id": ""}, BadInput),
        ({"event_id": "x" * 257}, BadInput),
        ({"event_id": "\ud800"}, BadInput),
        ({"event_id": 7}, BadInput),
        ({"derivation_path": None}, BadInput),
        ({"metadata": {"n": 1}}, BadInput),
        ({"derivation_path": "m/0", "derivation_index": None}, DerivationPathInvalid),
        ({"derivation_path": "", "derivation_index": None}, DerivationPathInvalid),
        ({"derivation_path": "m/45'/111111'/0'/0/1"}, DerivationPathInvalid),
        ({"amount_sompi": 2**64}, BadInput),
        ({"metadata": {str(n): "" for n in range(65)}}, TooLarge),
        ({"metadata": {"n" * 65: ""}}, TooLarge),
        ({"metadata": {"n": "v" * 2049}}, TooLarge),
        ({"metadata": {str(n): "v" * 2000 for n in range(9)}}, TooLarge),
        ({"signature": bytes(4097)}, TooLarge),
    ],
)
def test_events_that_are_refused(
    worlds: Worlds, change: dict[str, Any], error: type[Exception]
) -> None:
    """A wrong path, an empty id and anything beyond its limit is refused, and not stored."""
    world = worlds()
    rows = world.rows()

    with pytest.raises(error):
        world.event(payment(**change))

    assert world.rows() == rows


def test_an_unknown_event(worlds: Worlds) -> None:
    """An event that is not there is NotFound."""
    with worlds().store.transaction() as tx, pytest.raises(NotFound):
        events.get_event(tx, EventHash(bytes(32)))

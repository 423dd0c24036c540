"""Messages that were seen before."""

from __future__ import annotations

from ledgerstone.signing.keys import Family
from ledgerstone.signing.life import seen
from ledgerstone.signing.values import PeerId, SessionId
from tests.signing.people import NOW, peer
from tests.signing.world import Worlds


def test_once(worlds: Worlds) -> None:
    """A message is new once for its peer, session and number."""
    world = worlds()
    session = SessionId(b"s" * 32)

    with world.store.transaction() as tx:
        answers = [
            seen.mark_seen_message(tx, PeerId(name), session, number, now_nanos=NOW)
            for name, number in (("a", 1), ("a", 1), ("a", 2), ("b", 1))
        ]

    assert answers == [True, False, True, True]


def test_cleaning_up(worlds: Worlds) -> None:
    """Old entries are deleted in bounded steps, by the moment at which we saw them."""
    world = worlds()
    session = SessionId(b"s" * 32)

    with world.store.transaction() as tx:
        for number in range(7):
            seen.mark_seen_message(tx, peer(1), session, number, now_nanos=NOW + number % 2)
        steps = [seen.cleanup_seen_messages(tx, older_than_nanos=NOW + 1, rows_max=3)]
        while steps[-1].after is not None:
            steps.append(
                seen.cleanup_seen_messages(
                    tx, older_than_nanos=NOW + 1, after=steps[-1].after, rows_max=3
                )
            )
        again = seen.mark_seen_message(tx, peer(1), session, 1, now_nanos=NOW)
        gone = seen.mark_seen_message(tx, peer(1), session, 0, now_nanos=NOW)

    assert [step.deleted for step in steps] == [2, 1, 1]
    assert (again, gone) == (False, True)


def test_a_damaged_entry(worlds: Worlds) -> None:
    """An entry that is no moment is told and stays, and those behind it are forgotten."""
    world = worlds()
    damaged = b"seen:a:" + bytes(32) + b":" + bytes(8)
    with world.store.transaction() as tx:
        tx.put(Family.SEEN, damaged, b"x")
    for number in range(3):
        world.signing.mark_seen_message(peer(1), SessionId(b"s" * 32), number)

    found = world.signing.cleanup_seen_messages(world.now + 1)

    assert (found.deleted, found.after, [*found.errors]) == (3, None, [repr(damaged)])
    assert [key for family, key in world.rows() if family is Family.SEEN] == [damaged]

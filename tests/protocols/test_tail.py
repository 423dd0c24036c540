"""Following the log: each event once, in the order of the commits."""

from __future__ import annotations

from ledgerstone import Ledger
from ledgerstone.items.sequencer import Sequencer
from ledgerstone.protocols import Envelope, Protocol, Running
from ledgerstone.protocols.applying import apply
from ledgerstone.protocols.log import SEQUENCE
from tests.protocols.letters import letters


def note(number: int) -> Envelope:
    """An event that is only kept."""
    return Envelope(type="note", data={"n": number})


def sequence(ledger: Ledger) -> None:
    """Give positions, as a worker does."""
    if not ledger.database.dialect.one_writer:
        ledger.run(Sequencer(SEQUENCE).append)


def numbers(running: Running, after: int = 0) -> tuple[list[int], int]:
    """What comes behind a position, and the new position."""
    tail = running.tail(after=after)
    return [each.event.data["n"] for each in tail.read()], tail.after


def test_a_tail_goes_on_where_it_was(ledger: Ledger) -> None:
    """A reader that comes back with its position misses nothing and sees nothing twice."""
    running = ledger.protocol(letters())
    running.import_events([note(1), note(2)])
    sequence(ledger)
    first, position = numbers(running)

    running.import_events([note(3)])
    sequence(ledger)

    assert (first, numbers(running, position)[0]) == ([1, 2], [3])
    assert numbers(running)[0] == [1, 2, 3]


def test_a_late_commit_is_not_missed(ledger: Ledger) -> None:
    """An event that gets its number first and is committed last comes behind the others."""
    if ledger.database.dialect.one_writer:
        return
    protocol = letters()
    running = ledger.protocol(protocol)
    with ledger.transaction() as late:
        apply(late, protocol, note(1), 1)
        running.import_events([note(2)])
        sequence(ledger)
        first, position = numbers(running)
    for _ in range(3):
        sequence(ledger)

    assert (first, numbers(running, position)[0]) == ([2], [1])


def test_events_of_others_are_passed_over(ledger: Ledger) -> None:
    """A tail follows one protocol; the position passes by the others."""
    running, other = ledger.protocol(letters()), Protocol("other")
    other.keeps("note")
    ledger.protocol(other).import_events([note(1)])
    running.import_events([note(2)])
    sequence(ledger)

    with running.tail() as tail:
        found = tail.wait(seconds=60)

    assert [each.event.data["n"] for each in found] == [2]
    assert found[0].position == tail.after == 2

"""What comes in, goes out and is moved: sizes, names, identities, and where a reader goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask, Batch
from ledgerstone.protocols import Envelope, Projecting, Protocol, Reading, Running, keys
from ledgerstone.protocols.events import identity_of
from ledgerstone.protocols.incoming import Wire
from ledgerstone.protocols.moving import exported
from ledgerstone.testing.clock import ManualClock
from tests.protocols.letters import arrive, count, given_key, letters, rows, seat, written
from tests.protocols.test_retention import send
from tests.protocols.test_tail import note, numbers, sequence

DAY_SECONDS = 86_400.0


def test_the_largest_item(ledger: Ledger, running: Running) -> None:
    """What comes in and what goes out may be as large as the settings say, and no larger."""
    most = ledger.settings.store.body_bytes_max

    running.receive([b"x" * most])
    ledger.run(lambda tx: tx.protocols.send(b"x" * most, address="ann"))

    with pytest.raises(errors.TooLarge, match=f"has {most + 1} bytes"):
        running.receive([b"small", b"x" * (most + 1)])
    with pytest.raises(errors.TooLarge, match=f"has {most + 1} bytes"):
        ledger.run(lambda tx: tx.protocols.send(b"x" * (most + 1), address="ann"))
    assert (count(running, "incoming"), count(running, "outgoing")) == (1, 1)


@pytest.mark.parametrize("address", ["a ", "a\0b", "x" * 300])
def test_an_address_that_cannot_be_kept(ledger: Ledger, running: Running, address: str) -> None:
    """An address that some database would keep as another one is refused; none is fine."""
    with pytest.raises(errors.BadInput, match="an address"):
        ledger.run(lambda tx: tx.protocols.send(b"x", address=address))
    ledger.run(lambda tx: tx.protocols.send(b"x", address=""))

    assert rows(running, "SELECT address FROM outgoing") == [("",)]


def test_an_event_of_the_same_content(running: Running) -> None:
    """The order of the names in its content makes no other event, and its type does."""
    one = Envelope(type="note", data={"a": 1, "b": {"c": 2, "d": 3}})
    same = Envelope(type="note", data={"b": {"d": 3, "c": 2}, "a": 1})

    moved = running.import_events([one, same])

    assert (moved.new, moved.known) == (1, 1)
    assert identity_of("ab", b"c") != identity_of("a", b"bc")


def test_known_events_among_new_ones(ledger: Ledger) -> None:
    """A batch with some events that are known applies the others, and these not again."""
    protocol = letters()
    protocol.projector("counted")(lambda db, _event: db.values.add("count"))
    running = ledger.protocol(protocol)
    events = [Envelope(type="counted", data={"n": number}) for number in range(4)]
    arrive(running, events[1])
    running.work()

    arrive(running, *events)
    running.work(together=10)

    assert running.read(lambda db: db.values.get("count")) == 4
    assert (count(running, "events"), count(running, "incoming")) == (4, 0)


def test_a_decoder_says_who_receives(ledger: Ledger) -> None:
    """What the decoder says of an event counts before what is known of its bytes."""
    protocol = letters()

    @protocol.decoder
    def decode(_db: Reading, blob: bytes) -> Envelope:
        known = "bob" if blob == b"known" else ""
        return Envelope(type="note", data={"is": blob.decode()}, received_by=known)

    running = ledger.protocol(protocol)
    running.receive([Wire(blob=b"known"), Wire(blob=b"unknown")], received_by="ann")
    running.receive([b"known", b"unknown"], received_by="ann")
    running.work()

    kept = rows(running, "SELECT received_by FROM events ORDER BY received_by")
    assert [row[0] for row in kept] == ["", "ann", "bob"]


def test_rechecks_are_counted(running: Running) -> None:
    """An event tells how often it was tried again while it waited for one thing after another."""
    arrive(running, seat("d", "a", "b", "c"))
    running.work()
    counted = []

    for name in "ab":
        arrive(running, seat(name))
        running.work()
        counted.append(rows(running, "SELECT rechecks, reason_key FROM blocked"))

    assert counted == [[(1, "b")], [(2, "c")]]


@pytest.mark.usefixtures("clock")
def test_an_item_that_names_no_protocol(ledger: Ledger) -> None:
    """With several protocols it belongs to none of them, and waits."""
    running, other = ledger.protocol(letters()), Protocol("other")
    other.keeps("note")
    ledger.protocol(other)
    running.receive([b"{}"])
    send(ledger, "UPDATE incoming SET protocol = ''")
    worker = ledger.worker()

    worker.tick()

    worker.stop(grace_seconds=0)
    assert rows(running, "SELECT status, attempts FROM incoming") == [("queued", 0)]


def test_an_item_whose_claim_was_lost(ledger: Ledger, clock: ManualClock, running: Running) -> None:
    """A worker that was taken for dead applies nothing more, and removes nothing."""
    arrive(running, given_key())
    source = running.sources()[0]
    (old,) = ledger.run(lambda tx: source.claim(tx, Ask(10, "a worker", 30.0)))
    clock.advance(31)
    ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=3))
    batch = Batch.of([old])

    with pytest.raises(errors.LeaseLost):
        source.handler(old).call(batch)

    assert (count(running, "incoming"), count(running, "events")) == (1, 0)


def test_how_long_a_key_is_remembered(ledger: Ledger, clock: ManualClock, running: Running) -> None:
    """A key is forgotten when it is older than asked for, and not before."""
    command = {"room": "hall", "words": "a"}
    running.command("letter.write", command, key="k")
    forgotten = []

    for seconds in (DAY_SECONDS, 1):
        clock.advance(seconds)
        forgotten.append(ledger.run(lambda tx: keys.forget(tx, keep_days=1)))

    assert forgotten == [0, 1]
    running.command("letter.write", command | {"words": "b"}, key="k")


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_many_events_of_others(ledger: Ledger, limit: int) -> None:
    """A tail passes over pages that hold nothing of its protocol, and stands behind them."""
    running, other = ledger.protocol(letters()), Protocol("other")
    other.keeps("note")
    beside = ledger.protocol(other)
    beside.import_events([note(number) for number in range(4)])
    running.import_events([note(7)])
    beside.import_events([note(number) for number in range(4, 6)])
    sequence(ledger)
    tail = running.tail()

    found = [tail.read(limit=limit) for _ in range(2)]

    assert [[each.event.data["n"] for each in part] for part in found] == [[7], []]
    assert tail.after == 7
    assert numbers(running, 5) == ([], 7)


def test_an_import_that_waits_is_resumed(running: Running) -> None:
    """An import goes on behind its last batch, also if events of that batch wait or are known."""
    events = [written(f"{number}", room="attic") for number in range(6)]

    def broken_off() -> Iterator[Envelope]:
        yield from events[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.import_events(broken_off(), name="file", batch=2)

    moved = running.import_events(events, name="file", batch=2)

    assert (moved.resumed, moved.blocked, moved.failed, moved.all) == (4, 2, 0, 6)
    assert count(running, "blocked") == 6


def test_an_export_of_several_pages(ledger: Ledger, running: Running) -> None:
    """All events behind a number are exported, page by page, in order."""
    running.import_events([note(number) for number in range(5)])
    ids = [row[0] for row in rows(running, "SELECT id FROM events ORDER BY id")]

    found = list(exported(ledger.database, running.protocol, after=ids[0], page=2))

    assert [(number, event.data["n"]) for number, event in found] == list(
        zip(ids[1:], range(1, 5), strict=True)
    )


@pytest.mark.usefixtures("clock")
def test_an_event_that_fails_in_an_import_waits(ledger: Ledger) -> None:
    """It comes in like one that failed there: it is tried again after the first pause."""
    protocol = letters()
    tries: list[int] = []

    @protocol.projector("failing")
    def failing(_db: Projecting, _event: Envelope) -> None:
        tries.append(1)
        raise LookupError("not yet")

    running = ledger.protocol(protocol)
    running.import_events([Envelope(type="failing")])
    imported = len(tries)
    running.work()

    assert len(tries) == imported
    assert rows(running, "SELECT status, attempts FROM incoming") == [("queued", 1)]

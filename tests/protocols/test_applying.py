"""What becomes of events: applied once for each identity, kept while they wait, or parked."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.protocols import (
    Blocked,
    Envelope,
    Projecting,
    Protocol,
    Reading,
    Result,
    Running,
    Wire,
)
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import until
from tests.protocols.letters import (
    arrive,
    count,
    given_key,
    letters,
    rows,
    seat,
    words_of,
    written,
)


def send(ledger: Ledger, sql: str, **parameters: object) -> None:
    """A statement of another program."""
    ledger.run(lambda tx: tx.connection.execute(text(sql), parameters))


def test_an_event_is_applied_once_for_each_identity(running: Running) -> None:
    """The same content is the same event; each identity that receives it has a copy."""
    arrive(running, given_key(), given_key(by="bob"), written("hello"), written("hello"))
    arrive(running, written("hello", by="bob"), written("hello", at=99))

    running.work()

    assert (words_of(running), words_of(running, "bob")) == (["hello"], ["hello"])
    assert (count(running, "events"), count(running, "incoming")) == (4, 0)


def told(words: str, event_id: str = "e-1", room: str = "hall") -> Envelope:
    """A letter that brings an identity."""
    return msgspec.structs.replace(written(words, room=room), event_id=event_id)


@pytest.mark.parametrize("known", [True, False])
def test_an_identity_with_other_content(running: Running, known: bool) -> None:
    """It is parked with its reason, also while the first one waits; the same content is known."""
    arrive(running, *([given_key()] if known else []))
    arrive(running, told("first"), told("first"), told("second"))
    running.work()

    arrive(running, *([] if known else [given_key()]))
    running.work()

    assert words_of(running) == ["first"]
    kept = rows(running, "SELECT status, attempts, last_error FROM incoming")
    assert kept == [("parked", 1, "key_conflict: the event e-1 came before with other content")]


def test_an_identity_with_other_content_that_did_not_wait(running: Running) -> None:
    """Of two contents the one that is applied first stays; the one that waited is parked."""
    arrive(running, told("waits"), given_key("attic"), told("at once", room="attic"))
    running.work()

    arrive(running, given_key())
    running.work()

    assert rows(running, "SELECT words FROM letter") == [("at once",)]
    ((status, error),) = rows(running, "SELECT status, last_error FROM incoming")
    assert error.startswith("key_conflict")
    assert (status, count(running, "blocked")) == ("parked", 0)


@pytest.mark.parametrize("way", ["command", "import", "deferred", "together"])
def test_other_content_on_every_way(ledger: Ledger, way: str) -> None:
    """A command is refused; what is imported, deferred or applied in a batch is parked."""
    protocol = letters()

    @protocol.command("tell")
    def tell(_db: Reading) -> Result:
        return Result(envelopes=[told("second")])

    running = ledger.protocol(protocol)
    arrive(running, given_key(), told("first"))
    running.work()

    match way:
        case "command":
            with pytest.raises(errors.KeyConflict):
                running.command("tell")
        case "import":
            running.import_events([told("other", "e-2"), told("second")])
        case "deferred":
            ledger.run(lambda tx: tx.protocols.defer(told("second"), partition="p"))
        case _:
            arrive(running, told("other", "e-2"), told("second"))
    running.work(together=10)

    assert "second" not in words_of(running)
    parked = rows(running, "SELECT status FROM incoming WHERE last_error LIKE 'key_conflict%'")
    assert parked == ([] if way == "command" else [("parked",)])


def test_the_identity_that_a_protocol_makes(ledger: Ledger) -> None:
    """It is the event's identity, and other content under it is a conflict."""
    running = ledger.protocol(letters(identify=lambda event: event.data.get("room")))
    arrive(running, given_key("attic"), written("a", room="hall"), written("b", room="hall"))

    running.work()

    assert rows(running, "SELECT event_id FROM events") == [("attic",)]
    assert rows(running, "SELECT event_id FROM blocked") == [("hall",)]
    assert rows(running, "SELECT status FROM incoming") == [("parked",)]


def test_what_waits_is_applied_when_its_key_comes(running: Running) -> None:
    """In the order of arrival, only for the identity that got the key, and for no other room."""
    arrive(running, written("one"), written("two"), written("one", by="bob"))
    arrive(running, written("elsewhere", room="attic"))
    running.work()
    before = words_of(running)

    arrive(running, given_key())
    running.work()

    assert (before, words_of(running)) == ([], ["one", "two"])
    assert words_of(running, "bob") == []
    waits = rows(running, "SELECT reason_key, rechecks FROM blocked ORDER BY id")
    assert waits == [("bob/hall", 0), ("ann/attic", 0)]
    due = "SELECT 1 FROM recheck_queue WHERE available_at_ms IS NOT NULL"
    assert rows(running, due) == []


def test_a_chain_of_waiting(running: Running) -> None:
    """What is unblocked unblocks others; one with several reasons waits for each in turn."""
    arrive(running, seat("d", "b", "c"), seat("c", "b"), seat("b", "a"))
    running.work()
    waiting = rows(running, "SELECT reason_key, also FROM blocked ORDER BY id")

    arrive(running, seat("a"))
    running.work()

    assert waiting == [("b", '[["seat","c"]]'), ("b", None), ("a", None)]
    assert [row[0] for row in rows(running, "SELECT name FROM seat ORDER BY name")] == [*"abcd"]
    assert count(running, "blocked") == 0


def test_a_cycle_does_not_spin(running: Running) -> None:
    """Two that wait for each other wait, and nothing is looked at again."""
    arrive(running, seat("x", "y"), seat("y", "x"))

    first, second = running.work(), running.work()

    assert (first.incoming, second.incoming, second.rechecks) == (2, 0, 0)
    assert count(running, "blocked") == 2


def test_many_that_wait_for_one_key(running: Running) -> None:
    """More than a page of them; the markers of one key are one row."""
    arrive(running, *[written(f"{i:03}") for i in range(250)])
    running.work()

    arrive(running, given_key(), given_key("attic"))
    done = running.work()

    assert words_of(running) == [f"{i:03}" for i in range(250)]
    assert done.rechecks == 2


def test_a_failing_item_is_parked(clock: ManualClock, running: Running) -> None:
    """It is retried with growing pauses, then kept with its reason; those behind it go on."""
    arrive(running, Envelope(type="broken"), given_key(), written("behind"))

    for _ in range(6):
        running.work()
        clock.advance(600)

    assert words_of(running) == ["behind"]
    kept = rows(running, "SELECT status, attempts, last_error FROM incoming")
    assert kept == [("parked", 5, "ProjectorBroken: the projector fails")]
    assert count(running, "seat") == 0


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"{nonsense", "the bytes are no envelope"),
        (b'{"type":"strange"}', "knows no event 'strange'"),
        (b'{"type":"hopeless"}', "the signature is wrong"),
        (b'{"type":"letter","data":[1]}', "the bytes are no envelope"),
        (b'{"type":"note","data":{"n":"\\ud800"}}', "the bytes are no envelope"),
        (b'{"type":"note","created_at_ms":99999999999999999999}', "a moment in ms since 1970"),
        (b'{"type":"note","event_id":"a\\u0000"}', "characters that are no text"),
        (b'{"type":"note","data":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "no envelope"),
    ],
)
def test_what_can_never_be_applied(running: Running, wire: bytes, reason: str) -> None:
    """It is parked at the first attempt, with the reason."""
    running.receive([wire])

    running.work()

    ((status, attempts, error),) = rows(
        running, "SELECT status, attempts, last_error FROM incoming"
    )
    assert (status, attempts) == ("parked", 1)
    assert reason in error


def test_parked_items_are_tried_again(ledger: Ledger, running: Running) -> None:
    """When an operator says so."""
    running.receive([b"{nonsense"])
    running.work()

    again = ledger.run(lambda tx: tx.protocols.retry_parked())
    worked = running.work()

    assert (again, worked.incoming) == (1, 1)


def test_together_is_the_same_as_one_by_one(ledger: Ledger) -> None:
    """Many items in one transaction, with known, waiting and failing ones among them."""
    running = ledger.protocol(letters())
    arrive(running, written("early"), given_key(), Envelope(type="broken"), written("early"))
    arrive(running, *[written(f"{i}") for i in range(30)], Envelope(type="note", data={"n": 1}))

    running.work(together=10)

    assert sorted(words_of(running)) == sorted(["early", *[f"{i}" for i in range(30)]])
    assert rows(running, "SELECT status, attempts FROM incoming") == [("queued", 1)]
    assert count(running, "events") == 33


def test_an_item_of_another_program(ledger: Ledger, running: Running) -> None:
    """One that knows only the documented columns can go on inserting."""
    insert = "INSERT INTO incoming (blob, created_at_ms) VALUES (:blob, 5)"
    blob = b'{"type":"seat","data":{"name":"theirs"}}'
    if ledger.database.dialect.name == "mysql":
        insert = insert.replace("blob,", "`blob`,", 1)
    send(ledger, insert, blob=blob)

    running.work()

    assert rows(running, "SELECT name FROM seat") == [("theirs",)]


def test_what_another_program_has_deferred(ledger: Ledger) -> None:
    """It names neither a protocol nor a lane; a worker applies it in the order of its numbers."""
    running = ledger.protocol(letters())
    insert = (
        "INSERT INTO deferred (payload, partition_key, available_at_ms) VALUES (:payload, :of, 1)"
    )
    for of, name in (("x", "one"), (None, "two"), ("x", "three")):
        payload = b'{"type":"seat","data":{"name":"%s"}}' % name.encode()
        send(ledger, insert, payload=payload, of=of)
    worker = ledger.worker()

    until(lambda: worker.tick() is not None and count(running, "seat") == 3)

    worker.stop(grace_seconds=0)
    assert count(running, "deferred") == 0


def test_the_log_is_only_appended_to(ledger: Ledger, running: Running) -> None:
    """Whoever writes: an event is neither changed nor removed."""
    arrive(running, given_key())
    running.work()

    for sql in ("UPDATE events SET event_type = 'x'", "DELETE FROM events"):
        with pytest.raises(errors.LedgerstoneError, match="never changed"):
            send(ledger, sql)

    assert count(running, "events") == 1


def test_a_decoder(ledger: Ledger) -> None:
    """It reads what arrives, drops what is not ours, and may wait for what it lacks."""
    protocol = letters()

    @protocol.decoder
    def decode(db: Reading, blob: bytes) -> Envelope | None:
        kind, _, words = blob.decode().partition(":")
        if kind == "stray":
            return None
        if kind == "key":
            return given_key()
        if not db.exists("SELECT 1 FROM letter_key"):
            raise Blocked(("key", "ann/hall"))
        return written(words)

    running = ledger.protocol(protocol)
    running.receive([b"letter:sealed", b"stray:x", b"letter:sealed"])
    running.work()
    waits = count(running, "blocked")

    running.receive([Wire(blob=b"key:")])
    running.work()

    assert (waits, words_of(running), count(running, "incoming")) == (1, ["sealed"], 0)


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "rollback",
        "/* x */ COMMIT",
        "-- x\nCOMMIT",
        "CREATE TABLE t (id INTEGER)",
        "SELECT 1; COMMIT",
        "SAVEPOINT x",
        "BEGIN",
        "PRAGMA user_version = 1",
        "SET autocommit = 1",
        "TRUNCATE TABLE seat",
        "SELECT 1 -- it's\n; COMMIT -- '",
        "SELECT '--' ; COMMIT",
        "SELECT 1 /*! ; COMMIT */",
        "INSERT OR REPLACE INTO events (id) VALUES (1)",
        'DELETE FROM "incoming"',
        "UPDATE leases SET token = 0",
        "DELETE FROM job",
        "DELETE FROM main.events",
        "DELETE FROM ONLY events",
        "DELETE FROM seat, incoming USING seat, incoming",
        "UPDATE seat, incoming SET status = 'parked'",
        "UPDATE seat JOIN incoming ON 1 = 1 SET status = 'parked'",
        "UPDATE OR REPLACE incoming SET attempts = 0",
        "REPLACE seat (name) VALUES ('x')",
        "MERGE INTO seat USING job ON 1 = 1",
        "WITH gone AS (DELETE FROM job RETURNING id) SELECT id FROM gone",
        "SELECT name INTO other FROM seat",
        "SELECT name FROM seat INTO OUTFILE 'x'",
        "SELECT $$'$$; COMMIT; SELECT $$'$$",
        "SELECT $a$'$a$; COMMIT; SELECT $a$'$a$",
        "SELECT E'\\''; COMMIT --'",
        "DELETE FROM # it's\n incoming # '",
        "DELETE /* ' */ FROM incoming /* ' */",
        "SELECT 1 --1; COMMIT",
        "WITH a AS (SELECT 1) -- \r UPDATE incoming SET attempts = 99",
        "SELECT 1 -- \r ' \n; COMMIT -- '",
    ],
)
def test_a_projector_cannot_end_the_transaction(ledger: Ledger, sql: str) -> None:
    """What would commit, roll back or do so silently is refused before it is sent."""
    protocol = Protocol("ender", schema="CREATE TABLE seat (name TEXT PRIMARY KEY);")

    @protocol.projector("end")
    def end(db: Projecting, _event: Envelope) -> None:
        db.insert("seat", name="before")
        db.execute(sql)

    running = ledger.protocol(protocol)
    arrive(running, Envelope(type="end"))

    running.work()

    assert (count(running, "seat"), count(running, "events")) == (0, 0)
    ((error,),) = rows(running, "SELECT last_error FROM incoming")
    assert "not_allowed_now" in error


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO seat (name) SELECT 'x; -- it''s' WHERE NOT EXISTS (SELECT 1 FROM seat)",
        "INSERT INTO seat (name) VALUES (REPLACE('y', 'y', 'x')) -- job",
        "UPDATE seat SET name = (SELECT MAX(event_type) FROM events) WHERE name = 'delete job'",
        "update seat set name = 'x' where name = 'y'",
        "DELETE FROM seat",
        "DELETE FROM seat WHERE name IN (SELECT 'update') ;",
        "DELETE FROM seat -- all\r\nWHERE name = 'x'",
        "SELECT name FROM seat FOR UPDATE",
    ],
)
def test_what_a_projector_may_send(ledger: Ledger, sql: str) -> None:
    """What changes only its tables passes, whatever stands in its texts."""
    protocol = Protocol("sender", schema="CREATE TABLE seat (name TEXT PRIMARY KEY);")
    if ledger.database.dialect.one_writer:
        sql = sql.removesuffix("FOR UPDATE")

    @protocol.projector("send")
    def send(db: Projecting, _event: Envelope) -> None:
        db.execute(sql)

    running = ledger.protocol(protocol)
    arrive(running, Envelope(type="send"))

    running.work()

    assert rows(running, "SELECT last_error FROM incoming") == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name INTO other FROM seat",
        "SELECT 1; DELETE FROM seat",
        "DELETE FROM seat",
        "SHOW x",
    ],
)
def test_a_command_only_reads(running: Running, sql: str) -> None:
    """What would change or make a table is refused, and values are not changed by a command."""
    with pytest.raises(errors.NotAllowedNow):
        running.read(lambda db: db.rows(sql))
    assert running.read(lambda db: hasattr(db.values, "set")) is False
    assert running.read(lambda db: db.rows("SELECT REPLACE('a', 'a', 'b')")) == [("b",)]

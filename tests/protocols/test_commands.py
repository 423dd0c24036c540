"""Commands: pure, in one transaction, once for each key, and with wishes that are allowed."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.protocols import Envelope, Projecting, Protocol, Reading, Result, Running
from ledgerstone.protocols.commands import Transactions
from tests.protocols.letters import (
    arrive,
    count,
    given_key,
    letters,
    rows,
    words_of,
    written,
)


def test_a_command_is_applied_at_once(running: Running) -> None:
    """Its events are projected, and its wishes carried out, in its transaction."""
    arrive(running, given_key())
    running.work()

    answer = running.command("letter.write", {"room": "hall", "words": "hello"})

    assert answer == {"words": "hello", "known": True}
    assert words_of(running) == ["hello"]
    assert rows(running, "SELECT address FROM outgoing") == [("everyone",)]


def test_what_has_to_wait_is_kept(running: Running) -> None:
    """A command whose event waits for a key succeeds."""
    running.command("letter.write", {"room": "hall", "words": "early"})
    arrive(running, given_key())

    running.work()

    assert words_of(running) == ["early"]


def test_a_key_is_used_once(running: Running) -> None:
    """The same content is answered the same, also when it would be different by now."""
    first = running.command("letter.write", {"room": "hall", "words": "a"}, key="k")
    arrive(running, given_key())
    running.work()

    again = running.command("letter.write", {"room": "hall", "words": "a"}, key="k")

    assert (first, again["known"]) == (again, False)
    assert count(running, "outgoing") == 1
    with pytest.raises(errors.KeyConflict):
        running.command("letter.write", {"room": "hall", "words": "b"}, key="k")


def test_a_failing_projector_undoes_the_command(ledger: Ledger) -> None:
    """Nothing of it is kept, the key neither."""
    protocol = letters()

    @protocol.command("break")
    def break_(_db: Reading) -> Result:
        return Result(envelopes=[given_key(), Envelope(type="broken")])

    running = ledger.protocol(protocol)

    with pytest.raises(Exception, match="the projector fails"):
        running.command("break", key="k")

    assert [count(running, table) for table in ("events", "seat", "protocol_key")] == [0, 0, 0]


def test_wishes(running: Running) -> None:
    """An item of `incoming` is removed, an event is deferred."""
    arrive(running, written("never"))
    ((number,),) = rows(running, "SELECT id FROM incoming")

    running.command("wish", {"remove": number, "later": "tomorrow"})

    assert (count(running, "incoming"), count(running, "deferred")) == (0, 1)


def test_items_of_incoming_are_replaced(ledger: Ledger) -> None:
    """`per_item` applies an envelope in the place of an item, once."""
    protocol = letters()

    @protocol.command("swap")
    def swap(_db: Reading, *, number: int) -> Result:
        return Result(per_item=[(number, written("swapped"))])

    running = ledger.protocol(protocol)
    arrive(running, written("raw"))
    ((number,),) = rows(running, "SELECT id FROM incoming")

    running.command("swap", {"number": number})
    running.command("swap", {"number": number})

    assert (count(running, "incoming"), count(running, "blocked")) == (0, 1)


def test_a_command_changes_nothing_itself(ledger: Ledger) -> None:
    """It reads; what would write is refused, and so is a wish that is none."""
    protocol = letters()

    @protocol.command("write")
    def write(db: Reading) -> Result:
        db.rows("WITH x AS (SELECT 1) DELETE FROM seat")
        return Result()

    @protocol.command("wrong")
    def wrong(_db: Reading) -> object:
        return {"db": "overwrite"}

    @protocol.command("wishes")
    def wishes(_db: Reading) -> Result:
        return Result(intents=["DROP TABLE seat"])  # type: ignore[list-item]

    running = ledger.protocol(protocol)

    with pytest.raises(errors.NotAllowedNow, match="no query"):
        running.command("write")
    with pytest.raises(errors.BadInput, match="not a Result"):
        running.command("wrong")
    with pytest.raises(errors.BadInput, match="wishes for str"):
        running.command("wishes")
    with pytest.raises(errors.NotFound, match="no command 'x'"):
        running.command("x")
    with pytest.raises(errors.BadInput, match="words"):
        running.command("letter.write", {"room": "hall"})


def test_a_command_that_manages_its_transactions(ledger: Ledger) -> None:
    """Each `run` is a transaction; what failed before the next one is undone alone."""
    protocol = letters()

    @protocol.command("steps", manages_transactions=True)
    def steps(at: Transactions) -> Result:
        at.run(lambda db: db.insert("seat", name="first", after=""))

        def broken(db: Projecting) -> None:
            db.insert("seat", name="second", after="")
            raise RuntimeError

        with pytest.raises(RuntimeError):
            at.run(broken)
        return Result(answer={"seats": at.reading(lambda db: len(db.rows("SELECT 1 FROM seat")))})

    running = ledger.protocol(protocol)

    assert running.command("steps") == {"seats": 1}
    with pytest.raises(errors.BadInput, match="manages its own transactions"):
        running.command("steps", key="k")


def test_values(ledger: Ledger) -> None:
    """Flags and counters are read from the database each time, and counted one after the other."""
    ledger.protocol(letters())
    with ledger.transaction() as tx:
        tx.protocols.values().set("flag", {"on": True})
        assert tx.protocols.values().add("count", 2) == 2

    assert ledger.run(lambda tx: tx.protocols.values().add("count")) == 3
    with ledger.reading() as tx:
        values = tx.protocols.values()
        assert (values.get("flag"), values.get("count"), values.get("none", 7)) == (
            {"on": True},
            3,
            7,
        )


def test_values_are_fresh(ledger: Ledger) -> None:
    """Each transaction sees what others have committed, also where it was read before."""
    running = ledger.protocol(letters())
    seen = []
    with Ledger(str(ledger.settings.url)) as other:
        there = other.protocol(letters())
        for number in (1, 2):
            with ledger.transaction() as tx:
                tx.protocols.values().set("n", number)
            seen += [each.read(lambda db: db.values.get("n")) for each in (running, there)]

    assert seen == [1, 1, 2, 2]


SCHEMA = """
-- A comment, with; a semicolon
CREATE TABLE IF NOT EXISTS thing (
  id INTEGER PRIMARY KEY AUTOINCREMENT, /* counted */
  name TEXT NOT NULL DEFAULT 'a, (b)',
  weight REAL,
  data BLOB,
  seen BOOLEAN NOT NULL DEFAULT 0
  INDEX idx_thing_name (name, id DESC)
  ,
  UNIQUE (name, weight)
);
CREATE INDEX idx_thing_seen ON thing (seen);
"""


def test_a_schema(ledger: Ledger) -> None:
    """The tables are made as they are written, and adding to them keeps their rows."""
    before = ledger.protocol(Protocol("things", schema=SCHEMA))
    with ledger.transaction() as tx:
        db = Projecting(tx, before.protocol, 0)
        assert db.insert("thing", name="x", weight=1.5, data=b"\0\xff")
        assert not db.insert("thing", name="x", weight=1.5, data=b"")
    more = SCHEMA.replace("data BLOB,", "data BLOB, color TEXT NOT NULL DEFAULT 'red',")

    with Ledger(str(ledger.settings.url)) as other:
        after = other.protocol(
            Protocol("things", schema=more + "CREATE INDEX ic ON thing (color);")
        )
        kept = rows(after, "SELECT id, name, weight, data, seen, color FROM thing")
        again = other.protocol("things")

    assert [before.installed[0], again.installed] == ["make thing", []]
    assert after.installed == ["add color to thing", "make ic on thing"]
    ((number, name, weight, data, seen, color),) = kept
    assert (number, name, weight, bytes(data), seen, color) == (1, "x", 1.5, b"\0\xff", 0, "red")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("weight REAL", "weight TEXT"), "the column weight is changed or gone"),
        (("data BLOB,", ""), "the column data is changed or gone"),
        (("data BLOB,", "data BLOB, must TEXT NOT NULL,"), "the new column must needs a default"),
        (("(name, id DESC)", "(name, id)"), "the index idx_thing_name is changed"),
    ],
)
def test_a_schema_that_cannot_be_reached(ledger: Ledger, change: tuple[str, str], why: str) -> None:
    """Rows that are there are not thrown away in silence."""
    ledger.protocol(Protocol("things", schema=SCHEMA))

    with Ledger(str(ledger.settings.url)) as other, pytest.raises(errors.NotAllowedNow, match=why):
        other.protocol(Protocol("things", schema=SCHEMA.replace(*change)))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"name": "a "}, "thing.name is in a key, and does not end in a space"),
        ({"name": "a" * 191}, "thing.name takes 190 characters, not 191"),
        ({"name": "a\0"}, "characters that are no text"),
        ({"name": 1}, "thing.name takes a text, not int"),
        ({"name": None}, "thing.name takes a text, not NoneType"),
        ({"id": "text"}, "thing.id takes a whole number of 64 bits, not str"),
        ({"id": 1.5}, "thing.id takes a whole number"),
        ({"id": 1 << 63}, "thing.id takes a whole number"),
        ({"weight": float("nan")}, "thing.weight takes a finite number"),
        ({"seen": 2}, "thing.seen takes true or false"),
        ({"data": "text"}, "thing.data takes bytes"),
        ({"color": "red"}, "thing has no column color"),
    ],
)
def test_a_value_of_another_type(ledger: Ledger, values: dict[str, object], why: str) -> None:
    """It is refused on every database, where one would store it and another would change it."""
    running = ledger.protocol(Protocol("things", schema=SCHEMA))

    for change in (Projecting.insert, _put):
        with pytest.raises(errors.BadInput, match=why), ledger.transaction() as tx:
            change(Projecting(tx, running.protocol, 0), "thing", **values)

    assert count(running, "thing") == 0


def _put(db: Projecting, into: str, **values: object) -> None:
    db.put(into, ("id",), **values)


def test_values_of_the_declared_types(ledger: Ledger) -> None:
    """They are the same on every database when they are read again."""
    running = ledger.protocol(Protocol("things", schema=SCHEMA))
    smallest = -(1 << 63) + 1

    with ledger.transaction() as tx:
        db = Projecting(tx, running.protocol, 0)
        db.insert("thing", id=smallest, name="ä", weight=3, data=None, seen=True)

    kept = rows(running, "SELECT id, name, weight, data, seen FROM thing")
    assert [tuple(row) for row in kept] == [(smallest, "ä", 3.0, None, 1)]


def test_indexes_of_a_schema(ledger: Ledger) -> None:
    """One that is listed no more is dropped; a unique one that the rows do not allow is refused."""
    running = ledger.protocol(Protocol("things", schema=SCHEMA))
    ledger.run(lambda tx: _twice(Projecting(tx, running.protocol, 0)))
    without = SCHEMA.replace("INDEX idx_thing_name (name, id DESC)\n  ,", ",")
    unique = without + "CREATE UNIQUE INDEX one_of_a_name ON thing (name);"

    with Ledger(str(ledger.settings.url)) as other:
        done = other.protocol(Protocol("things", schema=without)).installed
    with Ledger(str(ledger.settings.url)) as other, pytest.raises(errors.Duplicate):
        other.protocol(Protocol("things", schema=unique))
    with Ledger(str(ledger.settings.url)) as other:
        again = other.protocol(Protocol("things", schema=SCHEMA)).installed

    assert done == ["drop idx_thing_name of thing"]
    assert again == ["make idx_thing_name on thing"]


def _twice(db: Projecting) -> None:
    db.insert("thing", name="x", weight=1.5)
    db.insert("thing", name="x", weight=2.5)


def test_a_table_of_others(ledger: Ledger) -> None:
    """A table of another program, or of another protocol, is refused by its name."""
    with ledger.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE thing (theirs INTEGER)"))
    with pytest.raises(errors.NotAllowedNow, match="the table thing of things is there"):
        ledger.protocol(Protocol("things", schema=SCHEMA))

    ledger.protocol(Protocol("one", schema="CREATE TABLE mine (id INTEGER PRIMARY KEY);"))
    with pytest.raises(errors.NotAllowedNow, match="belongs to the protocol one"):
        ledger.protocol(Protocol("two", schema="CREATE TABLE mine (id INTEGER PRIMARY KEY);"))


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE TABLE t (a TEXT);", "no PRIMARY KEY"),
        ("CREATE TABLE t (a SERIAL PRIMARY KEY);", "cannot read 'a SERIAL PRIMARY KEY'"),
        ("CREATE TABLE events (a TEXT PRIMARY KEY);", "cannot have a table events"),
        ("\n\nDROP TABLE job;", "line 3: only CREATE TABLE"),
        ("CREATE TABLE t (a TEXT PRIMARY KEY COLLATE NOCASE);", "cannot read 'COLLATE NOCASE'"),
        ("CREATE TABLE t (a TEXT PRIMARY KEY, INDEX i (b));", "t has no column 'b'"),
        ("CREATE INDEX i ON t (a);", "no table t before its index"),
    ],
)
def test_a_schema_that_cannot_be_read(sql: str, why: str) -> None:
    """The error names the line and what is wrong with it."""
    with pytest.raises(errors.BadInput, match=why.replace("(", r"\(")):
        Protocol("wrong", schema=sql)

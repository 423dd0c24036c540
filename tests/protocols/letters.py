"""A small protocol: letters that wait for the key of their room, and rooms that wait for guests."""

from __future__ import annotations

from typing import Any

from ledgerstone.errors import Hopeless
from ledgerstone.protocols import (
    Blocked,
    DeferredEnqueue,
    Envelope,
    IncomingRemove,
    OutgoingEnqueue,
    Projecting,
    Protocol,
    Reading,
    Result,
    Running,
)
from ledgerstone.protocols.events import encode

SCHEMA = """
CREATE TABLE letter_key (
  room TEXT NOT NULL,
  received_by TEXT NOT NULL,
  PRIMARY KEY (room, received_by)
);
CREATE TABLE letter (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id TEXT NOT NULL,
  received_by TEXT NOT NULL,
  room TEXT NOT NULL,
  words TEXT NOT NULL,
  sent_at_ms INTEGER NOT NULL,
  UNIQUE (event_id, received_by),
  INDEX idx_letter_page (received_by, sent_at_ms DESC, event_id DESC)
);
CREATE TABLE seat (name TEXT PRIMARY KEY, after TEXT NOT NULL DEFAULT '');
"""


class ProjectorBroken(Exception):
    """A projector fails."""


def letters(**options: Any) -> Protocol:
    """The protocol, made anew."""
    protocol = Protocol("letters", **{"schema": SCHEMA, **options})
    protocol.keeps("note")

    @protocol.projector("key")
    def key(db: Projecting, event: Envelope) -> None:
        db.insert("letter_key", room=event.data["room"], received_by=event.received_by)
        db.unblock("key", f"{event.received_by}/{event.data['room']}")

    @protocol.projector("letter")
    def letter(db: Projecting, event: Envelope) -> None:
        room = event.data["room"]
        known = "SELECT 1 FROM letter_key WHERE room = :room AND received_by = :by"
        if not db.exists(known, room=room, by=event.received_by):
            raise Blocked(("key", f"{event.received_by}/{room}"))
        db.insert(
            "letter",
            event_id=event.event_id,
            received_by=event.received_by,
            room=room,
            words=event.data["words"],
            sent_at_ms=event.created_at_ms,
        )

    @protocol.projector("seat")
    def seat(db: Projecting, event: Envelope) -> None:
        """A seat that waits for several others, and unblocks those that wait for it."""
        name, after = event.data["name"], event.data.get("after", [])
        taken = "SELECT 1 FROM seat WHERE name = :name"
        missing = [each for each in after if not db.exists(taken, name=each)]
        if missing:
            raise Blocked(*[("seat", each) for each in missing])
        db.insert("seat", name=name, after=",".join(after))
        db.unblock("seat", name)

    @protocol.projector("broken")
    def broken(db: Projecting, _event: Envelope) -> None:
        db.insert("seat", name="of a broken event", after="")
        raise ProjectorBroken("the projector fails")

    @protocol.projector("hopeless")
    def hopeless(_db: Projecting, _event: Envelope) -> None:
        raise Hopeless("the signature is wrong")

    _add_commands(protocol)
    return protocol


def _add_commands(protocol: Protocol) -> None:
    @protocol.command("letter.write")
    def write(db: Reading, *, room: str, words: str, by: str = "ann") -> Result:
        return Result(
            envelopes=[written(words, room=room, by=by)],
            intents=[OutgoingEnqueue(words.encode(), "everyone")],
            answer={"words": words, "known": db.exists("SELECT 1 FROM letter_key")},
        )

    @protocol.command("wish")
    def wish(_db: Reading, *, remove: int = 0, later: str = "") -> Result:
        intents: list[Any] = [IncomingRemove(remove)] if remove else []
        if later:
            intents.append(DeferredEnqueue(written(later), "p", None, 60.0))
        return Result(intents=intents)


def given_key(room: str = "hall", *, by: str = "ann") -> Envelope:
    """The key of a room, for one identity."""
    return Envelope(type="key", data={"room": room}, received_by=by, created_at_ms=1)


def written(words: str, *, room: str = "hall", by: str = "ann", at: int = 1) -> Envelope:
    """A letter in a room, for one identity."""
    data = {"room": room, "words": words}
    return Envelope(type="letter", data=data, received_by=by, created_at_ms=at)


def seat(name: str, *after: str) -> Envelope:
    """A seat after others."""
    return Envelope(type="seat", data={"name": name, "after": list(after)})


def arrive(running: Running, *envelopes: Envelope) -> None:
    """They come in, and wait to be applied."""
    running.receive([encode(each) for each in envelopes])


def rows(running: Running, sql: str, **parameters: Any) -> list[Any]:
    """What a query answers."""
    with running.database.reading() as tx:
        return Reading(tx, "letters", 0).rows(sql, **parameters)


def words_of(running: Running, by: str = "ann") -> list[str]:
    """The letters that an identity can read, in the order in which they were applied."""
    sql = "SELECT words FROM letter WHERE received_by = :by ORDER BY id"
    return [row[0] for row in rows(running, sql, by=by)]


def count(running: Running, table: str) -> int:
    """How many rows a table has."""
    (row,) = rows(running, f"SELECT COUNT(*) FROM {table}")  # noqa: S608 - a name of ours
    return int(row[0])

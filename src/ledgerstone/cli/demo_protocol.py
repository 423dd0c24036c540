"""The part of the tour in which messages arrive before what they need: the example protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

from ledgerstone.ledger import Ledger
from ledgerstone.protocols import Envelope, Reading
from ledgerstone.protocols.events import encode
from ledgerstone.protocols.example import protocol

MESSAGES = 20
GROUP, CREATOR, GUEST = "garden", "ann", "bob"


class Chat(NamedTuple):
    """Messages that arrived, those that waited, and those that can be read in the end."""

    sent: int
    waited: int
    read: int


def chat(ledger: Ledger) -> Chat:
    """Each message comes twice, and before the key, the invite and the group that it needs."""
    running = ledger.protocol(protocol)
    messages = [
        _event("message", key=f"{GROUP}-1", by=GUEST, words=f"message {number}")
        for number in range(MESSAGES)
    ]
    needed = [
        _event("join", invite="welcome", by=GUEST),
        _event("key", id=f"{GROUP}-1", by=CREATOR),
        _event("invite", id="welcome", by=CREATOR),
        Envelope(type="group", data={"id": GROUP, "name": "Garden", "by": CREATOR}),
    ]
    running.receive([encode(each) for each in [*messages, *messages]])
    running.work()
    waited = running.read(lambda db: _count(db, "blocked"))
    running.receive([encode(each) for each in needed])
    running.work()
    return Chat(MESSAGES, waited, running.read(lambda db: _count(db, "chat_message")))


def _event(kind: str, **data: Any) -> Envelope:
    return Envelope(type=kind, data={"group": GROUP, **data})


def _count(db: Reading, table: str) -> int:
    ((count,),) = db.rows(f"SELECT COUNT(*) FROM {table}")  # noqa: S608 - a name of ours
    return int(count)

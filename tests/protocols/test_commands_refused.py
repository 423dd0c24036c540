"""What a command may answer, and what becomes of an answer that asks for too much."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.protocols import (
    Envelope,
    OutgoingEnqueue,
    Projecting,
    Protocol,
    Reading,
    Result,
    Running,
    commands,
)
from ledgerstone.protocols.commands import Transactions
from ledgerstone.protocols.values import VALUE_BYTES_MAX
from tests.harness.threads import together
from tests.protocols.letters import arrive, count, letters, rows, seat, words_of, written

NOTE = Envelope(type="note")
UNKEPT = Envelope(type="note", received_by="y" * 300)
"""An event that no database keeps."""


def answering(ledger: Ledger, result: Result, *, manages: bool = False) -> Running:
    """A protocol with a command that answers this, whatever is asked."""
    protocol = letters()

    @protocol.command("answer", manages_transactions=manages)
    def answer(_: Reading | Transactions) -> Result:
        return result

    return ledger.protocol(protocol)


def test_an_item_that_is_gone_is_not_replaced(ledger: Ledger) -> None:
    """An envelope made of an item is applied if the item is still there, and never twice."""
    protocol = letters()

    @protocol.command("swap")
    def swap(_db: Reading, *, number: int, name: str) -> Result:
        return Result(per_item=[(number, seat(name))])

    running = ledger.protocol(protocol)
    arrive(running, written("raw"))
    ((number,),) = rows(running, "SELECT id FROM incoming")

    for name in "ab":
        running.command("swap", {"number": number, "name": name})

    assert rows(running, "SELECT name FROM seat") == [("a",)]


@pytest.mark.parametrize("place", ["envelopes", "per_item"])
def test_an_answer_that_no_database_keeps(ledger: Ledger, place: str) -> None:
    """Each envelope of an answer is checked, and nothing of the answer is kept otherwise."""
    protocol = letters()

    @protocol.command("wrong")
    def wrong(_db: Reading, *, number: int) -> Result:
        both = {"envelopes": [NOTE, UNKEPT], "per_item": [(number, UNKEPT)]}
        return Result(**{place: both[place]})  # type: ignore[arg-type]

    running = ledger.protocol(protocol)
    arrive(running, written("raw"))
    ((number,),) = rows(running, "SELECT id FROM incoming")

    with pytest.raises(errors.BadInput, match="an identity that receives"):
        running.command("wrong", {"number": number})

    assert (count(running, "events"), count(running, "incoming")) == (0, 1)


def test_the_answer_of_a_managed_command(ledger: Ledger) -> None:
    """Its envelopes and intents are carried out like those of any other command."""
    result = Result(envelopes=[NOTE], intents=[OutgoingEnqueue(b"x")])
    running = answering(ledger, result, manages=True)

    running.command("answer")

    assert (count(running, "events"), count(running, "outgoing")) == (1, 1)


@pytest.mark.parametrize(
    "result",
    [
        Result(envelopes=[NOTE] * 3),
        Result(per_item=[(1, NOTE)] * 3),
        Result(intents=[OutgoingEnqueue(b"x")] * 3),
        Result(envelopes=[NOTE], per_item=[(1, NOTE)], intents=[OutgoingEnqueue(b"x")]),
    ],
    ids=["envelopes", "per_item", "intents", "together"],
)
def test_an_answer_without_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, result: Result
) -> None:
    """Envelopes and intents together are bounded."""
    monkeypatch.setattr(commands, "INTENTS_MAX", 2)
    running = answering(ledger, result)

    with pytest.raises(errors.BadInput, match="more than 2 envelopes and intents"):
        running.command("answer")

    assert (count(running, "events"), count(running, "outgoing")) == (0, 0)


def test_a_managed_command_unblocks(ledger: Ledger) -> None:
    """What waits for a key that such a command unblocks is tried again."""
    protocol = letters()

    def give(db: Projecting) -> None:
        db.insert("letter_key", room="hall", received_by="ann")
        db.unblock("key", "ann/hall")

    @protocol.command("give", manages_transactions=True)
    def command(at: Transactions) -> Result:
        at.run(give)
        return Result()

    running = ledger.protocol(protocol)
    arrive(running, written("hello"))
    running.work()

    running.command("give")
    running.work()

    assert (words_of(running), count(running, "blocked")) == (["hello"], 0)


def projecting(protocol: Protocol, call: Any) -> Protocol:
    """The protocol, with an event that makes this call."""
    protocol.projector("call")(lambda db, _event: call(db))
    return protocol


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.insert("protocol_value", protocol="letters", name="x", value="1"),
        lambda db: db.put("protocol_value", ["protocol", "name"], name="x", value="1"),
        lambda db: db.unblock("key", ""),
        lambda db: db.unblock("", "ann/hall"),
        lambda db: db.insert("seat"),
    ],
    ids=["insert", "put", "no key", "no kind", "no values"],
)
def test_what_a_projector_may_not_do(ledger: Ledger, call: Any) -> None:
    """It writes rows of its own tables, and unblocks keys that can be kept."""
    running = ledger.protocol(projecting(letters(), call))

    running.import_events([Envelope(type="call")])

    ((error,),) = rows(running, "SELECT last_error FROM incoming")
    assert error.partition(":")[0] in {"bad_input", "not_allowed_now"}
    assert (count(running, "protocol_value"), count(running, "recheck_queue")) == (0, 0)


def test_values_that_are_refused(ledger: Ledger) -> None:
    """A value has a bounded size, and only numbers are counted."""
    ledger.protocol(letters())

    with pytest.raises(errors.TooLarge, match="the size of a value"), ledger.transaction() as tx:
        tx.protocols.values().set("large", "x" * VALUE_BYTES_MAX)
    for words in ("words", True):
        with pytest.raises(errors.BadInput, match="is no number"), ledger.transaction() as tx:
            tx.protocols.values().set("flag", words)
            tx.protocols.values().add("flag")


def test_a_value_that_several_count(ledger: Ledger) -> None:
    """Transactions that count at the same moment count one after the other."""
    ledger.protocol(letters())
    ledger.run(lambda tx: tx.protocols.values().set("count", 0))

    def counted() -> None:
        for _ in range(10):
            ledger.run(lambda tx: tx.protocols.values().add("count"))

    together(*[counted] * 4)

    assert ledger.run(lambda tx: tx.protocols.values().get("count")) == 40

"""The local transport: consumers of the same ledger as a destination, on every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ledgerstone import Ledger
from ledgerstone.errors import Hopeless, TargetDown
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.office import Office
from ledgerstone.messaging.transport import DELIVERED, Verdict
from ledgerstone.messaging.transports.local import LocalTransport
from ledgerstone.testing.contracts.transport import Place, TransportContract
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.failed import found
from tests.contract.messaging.inbox import message_of, new_office, receipts

SECONDS_MAX = WAIT_SECONDS_MAX


class Here:
    """The consumers of this process as a place."""

    name = "local"

    def __init__(self, ledger: Ledger, office: Office) -> None:
        self.transport = LocalTransport(ledger.database, office)
        self._seen: list[Message] = []
        office.consumers.add("*", lambda _, came: self._seen.append(came), name="all")

    def received(self) -> Sequence[Message]:
        return self._seen


class TestLocal(TransportContract):
    """It keeps what every transport keeps."""

    full_batch = 100

    @pytest.fixture
    def place(self, ledger: Ledger) -> Place:
        return Here(ledger, new_office(ledger))


@pytest.fixture
def office(ledger: Ledger) -> Office:
    return new_office(ledger)


@pytest.fixture
def transport(ledger: Ledger, office: Office) -> LocalTransport:
    return LocalTransport(ledger.database, office)


def failing(_: Any, __: Message) -> None:
    """A handler that fails."""
    raise LookupError("no such order")


def tried(message: Message, attempt: int) -> Message:
    """The message as the relay gives it when it was refused so often."""
    return msgspec.structs.replace(message, attempt=attempt)


def test_no_consumer(transport: LocalTransport) -> None:
    """A message that nobody here consumes is refused, and waits for a process that does."""
    (answer,) = transport.send([message_of()], seconds_max=SECONDS_MAX)

    assert (answer.verdict, answer.code) == (Verdict.REFUSED, "no_consumer")
    assert not answer.counts
    assert "order.placed" in answer.reason


def test_pauses_grow(transport: LocalTransport, office: Office) -> None:
    """A handler that fails is tried again after 1, 2 and 4 seconds, as the settings say."""
    office.consumers.add("*", failing, name="mailer")
    came = message_of()

    answers = [transport.send([tried(came, n)], seconds_max=SECONDS_MAX)[0] for n in range(3)]

    assert [answer.retry_after_seconds for answer in answers] == [1.0, 2.0, 4.0]
    assert {(answer.verdict, answer.code) for answer in answers} == {
        (Verdict.REFUSED, "LookupError")
    }
    assert answers[0].reason == "mailer: no such order"


def test_given_up(ledger: Ledger, transport: LocalTransport, office: Office) -> None:
    """After the last retry it is in the failed table for that consumer, and dealt with."""
    office.consumers.add("*", failing, name="mailer")
    came = tried(message_of(), office.settings.retries_max)

    answers = transport.send([came], seconds_max=SECONDS_MAX)

    assert answers == [DELIVERED]
    (kept,) = found(ledger, office)
    assert (kept.message_id, kept.consumer, kept.origin) == (came.id, "mailer", "local")
    assert kept.attempts == office.settings.retries_max + 1
    assert receipts(ledger, office) == []


def test_hopeless(ledger: Ledger, transport: LocalTransport, office: Office) -> None:
    """What a handler calls hopeless is not tried again."""

    def give_up(_: Any, __: Message) -> None:
        raise Hopeless("the order was deleted")

    office.consumers.add("*", give_up, name="mailer")

    answers = transport.send([message_of()], seconds_max=SECONDS_MAX)

    assert answers == [DELIVERED]
    assert [kept.code for kept in found(ledger, office)] == ["hopeless"]


def test_a_target_that_is_down(ledger: Ledger, transport: LocalTransport, office: Office) -> None:
    """What a handler talks to is down: that is not the message's doing, however often."""

    def send(_: Any, __: Message) -> None:
        raise TargetDown("mail")

    office.consumers.add("*", send, name="mailer")

    (answer,) = transport.send([tried(message_of(), 100)], seconds_max=SECONDS_MAX)

    assert (answer.verdict, answer.code) == (Verdict.UNKNOWN, "target_down")
    assert found(ledger, office) == []


def test_one_of_two_fails(ledger: Ledger, transport: LocalTransport, office: Office) -> None:
    """Who has handled it does not handle it again when the other is tried again."""
    seen: list[str] = []
    office.consumers.add("*", failing, name="mailer")
    office.consumers.add("*", lambda _, came: seen.append(came.id), name="biller")
    came = message_of()

    first = transport.send([came], seconds_max=SECONDS_MAX)
    last = transport.send([tried(came, office.settings.retries_max)], seconds_max=SECONDS_MAX)

    assert first[0].verdict is Verdict.REFUSED
    assert last == [DELIVERED]
    assert seen == [came.id]
    assert [kept.consumer for kept in found(ledger, office)] == ["mailer"]


def test_one_fails_while_another_is_down(transport: LocalTransport, office: Office) -> None:
    """A failure counts, whatever the other consumer of the message had to wait for."""

    def down(_: Any, __: Message) -> None:
        raise TargetDown("mail")

    office.consumers.add("*", down, name="mailer")
    office.consumers.add("*", failing, name="biller")

    (answer,) = transport.send([message_of()], seconds_max=SECONDS_MAX)

    assert (answer.verdict, answer.code) == (Verdict.REFUSED, "LookupError")
    assert answer.counts


def test_those_behind_are_held(transport: LocalTransport, office: Office) -> None:
    """Behind a message that is not delivered those of its partition wait, and no others."""
    seen: list[str] = []

    def send(_: Any, came: Message) -> None:
        if came.body == "bad":
            raise LookupError
        seen.append(came.id)

    office.consumers.add("*", send, name="mailer")
    bad = message_of(partition="ann", body=b'"bad"')
    behind, other = message_of(partition="ann"), message_of(partition="bob")

    answers = transport.send([bad, behind, other], seconds_max=SECONDS_MAX)

    assert [(answer.verdict, answer.code) for answer in answers] == [
        (Verdict.REFUSED, "LookupError"),
        (Verdict.UNKNOWN, "held"),
        (Verdict.DELIVERED, ""),
    ]
    assert seen == [other.id]


def test_for_one_consumer(transport: LocalTransport, office: Office) -> None:
    """A message that is for one consumer is handled by that one, and waits if it is not here."""
    seen: list[str] = []
    office.consumers.add("*", lambda *_: seen.append("mailer"), name="mailer")
    office.consumers.add("*", lambda *_: seen.append("biller"), name="biller")
    mine = msgspec.structs.replace(message_of(), consumer="biller")
    nobodys = msgspec.structs.replace(message_of(partition="x"), consumer="gone")

    answers = transport.send([mine, nobodys], seconds_max=SECONDS_MAX)

    assert [answer.code for answer in answers] == ["", "no_consumer"]
    assert seen == ["biller"]


def test_no_time_left(transport: LocalTransport, office: Office) -> None:
    """What there was no time for is unknown, and was not begun."""
    seen: list[str] = []
    office.consumers.add("*", lambda _, came: seen.append(came.id), name="mailer")

    (answer,) = transport.send([message_of()], seconds_max=0.0)

    assert (answer.verdict, answer.code) == (Verdict.UNKNOWN, "late")
    assert seen == []


def test_huge_pauses(ledger: Ledger) -> None:
    """However often and however steeply, a pause is a number of seconds within bounds."""
    office = new_office(ledger, retries_max=1000, retry_factor=100.0)
    office.consumers.add("*", failing, name="mailer")
    transport = LocalTransport(ledger.database, office)

    (answer,) = transport.send([tried(message_of(), 999)], seconds_max=SECONDS_MAX)

    assert answer.retry_after_seconds == 86_400.0

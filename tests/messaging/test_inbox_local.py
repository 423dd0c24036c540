"""The local transport: consumers of the same ledger as a destination, on every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ledgerstone import Ledger
from ledgerstone.errors import Hopeless, TargetDown
from ledgerstone.messaging.brokers.transport import DELIVERED, SendResult
from ledgerstone.messaging.brokers.transports.local import LocalTransport
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.testing.contracts.transport import Endpoint, TransportContract
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.failed import found
from tests.contract.messaging.inbox import message_of, new_office, receipts

SECONDS_MAX = WAIT_SECONDS_MAX


class Here:
    """The consumers of this process as a place."""

    name = "local"

    def __init__(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        self.transport = LocalTransport(ledger.database, registry)
        self._seen: list[Message] = []
        registry.consumers.add("*", lambda _, came: self._seen.append(came), name="all")

    def received(self) -> Sequence[Message]:
        return self._seen


class TestLocal(TransportContract):
    """It keeps what every transport keeps."""

    full_batch = 100

    @pytest.fixture
    def place(self, ledger: Ledger) -> Endpoint:
        return Here(ledger, new_office(ledger))


@pytest.fixture
def registry(ledger: Ledger) -> MessagingRegistry:
    return new_office(ledger)


@pytest.fixture
def transport(ledger: Ledger, registry: MessagingRegistry) -> LocalTransport:
    return LocalTransport(ledger.database, registry)


def failing(_: Any, __: Message) -> None:
    """A handler that fails."""
    raise LookupError("no such order")


def tried(message: Message, attempt: int) -> Message:
    """The message as the relay gives it when it was refused so often."""
    return msgspec.structs.replace(message, attempt=attempt)


def test_no_consumer(transport: LocalTransport) -> None:
    """A message that nobody here consumes is refused, and waits for a process that does."""
    (answer,) = transport.send([message_of()], seconds_max=SECONDS_MAX)

    assert (answer.result, answer.code) == (SendResult.REFUSED, "no_consumer")
    assert not answer.counts
    assert "order.placed" in answer.reason


def test_pauses_grow(transport: LocalTransport, registry: MessagingRegistry) -> None:
    """A handler that fails is tried again after 1, 2 and 4 seconds, as the settings say."""
    registry.consumers.add("*", failing, name="mailer")
    came = message_of()

    answers = [transport.send([tried(came, n)], seconds_max=SECONDS_MAX)[0] for n in range(3)]

    assert [answer.retry_after_seconds for answer in answers] == [1.0, 2.0, 4.0]
    assert {(answer.result, answer.code) for answer in answers} == {
        (SendResult.REFUSED, "LookupError")
    }
    assert answers[0].reason == "mailer: no such order"


def test_given_up(ledger: Ledger, transport: LocalTransport, registry: MessagingRegistry) -> None:
    """After the last retry it is in the failed table for that consumer, and dealt with."""
    registry.consumers.add("*", failing, name="mailer")
    came = tried(message_of(), registry.settings.retries_max)

    answers = transport.send([came], seconds_max=SECONDS_MAX)

    assert answers == [DELIVERED]
    (kept,) = found(ledger, registry)
    assert (kept.message_id, kept.consumer, kept.origin) == (came.id, "mailer", "local")
    assert kept.attempts == registry.settings.retries_max + 1
    assert receipts(ledger, registry) == []


def test_hopeless(ledger: Ledger, transport: LocalTransport, registry: MessagingRegistry) -> None:
    """What a handler calls hopeless is not tried again."""

    def give_up(_: Any, __: Message) -> None:
        raise Hopeless("the order was deleted")

    registry.consumers.add("*", give_up, name="mailer")

    answers = transport.send([message_of()], seconds_max=SECONDS_MAX)

    assert answers == [DELIVERED]
    assert [kept.code for kept in found(ledger, registry)] == ["hopeless"]


def test_a_target_that_is_down(
    ledger: Ledger, transport: LocalTransport, registry: MessagingRegistry
) -> None:
    """What a handler talks to is down: that is not the message's doing, however often."""

    def send(_: Any, __: Message) -> None:
        raise TargetDown("mail")

    registry.consumers.add("*", send, name="mailer")

    (answer,) = transport.send([tried(message_of(), 100)], seconds_max=SECONDS_MAX)

    assert (answer.result, answer.code) == (SendResult.UNKNOWN, "target_down")
    assert found(ledger, registry) == []


def test_one_of_two_fails(
    ledger: Ledger, transport: LocalTransport, registry: MessagingRegistry
) -> None:
    """Who has handled it does not handle it again when the other is tried again."""
    seen: list[str] = []
    registry.consumers.add("*", failing, name="mailer")
    registry.consumers.add("*", lambda _, came: seen.append(came.id), name="biller")
    came = message_of()

    first = transport.send([came], seconds_max=SECONDS_MAX)
    last = transport.send([tried(came, registry.settings.retries_max)], seconds_max=SECONDS_MAX)

    assert first[0].result is SendResult.REFUSED
    assert last == [DELIVERED]
    assert seen == [came.id]
    assert [kept.consumer for kept in found(ledger, registry)] == ["mailer"]


def test_one_fails_while_another_is_down(
    transport: LocalTransport, registry: MessagingRegistry
) -> None:
    """A failure counts, whatever the other consumer of the message had to wait for."""

    def down(_: Any, __: Message) -> None:
        raise TargetDown("mail")

    registry.consumers.add("*", down, name="mailer")
    registry.consumers.add("*", failing, name="biller")

    (answer,) = transport.send([message_of()], seconds_max=SECONDS_MAX)

    assert (answer.result, answer.code) == (SendResult.REFUSED, "LookupError")
    assert answer.counts


def test_those_behind_are_held(transport: LocalTransport, registry: MessagingRegistry) -> None:
    """Behind a message that is not delivered those of its partition wait, and no others."""
    seen: list[str] = []

    def send(_: Any, came: Message) -> None:
        if came.body == "bad":
            raise LookupError
        seen.append(came.id)

    registry.consumers.add("*", send, name="mailer")
    bad = message_of(partition="ann", body=b'"bad"')
    behind, other = message_of(partition="ann"), message_of(partition="bob")

    answers = transport.send([bad, behind, other], seconds_max=SECONDS_MAX)

    assert [(answer.result, answer.code) for answer in answers] == [
        (SendResult.REFUSED, "LookupError"),
        (SendResult.UNKNOWN, "held"),
        (SendResult.DELIVERED, ""),
    ]
    assert seen == [other.id]


def test_for_one_consumer(transport: LocalTransport, registry: MessagingRegistry) -> None:
    """A message that is for one consumer is handled by that one, and waits if it is not here."""
    seen: list[str] = []
    registry.consumers.add("*", lambda *_: seen.append("mailer"), name="mailer")
    registry.consumers.add("*", lambda *_: seen.append("biller"), name="biller")
    mine = msgspec.structs.replace(message_of(), consumer="biller")
    nobodys = msgspec.structs.replace(message_of(partition="x"), consumer="gone")

    answers = transport.send([mine, nobodys], seconds_max=SECONDS_MAX)

    assert [answer.code for answer in answers] == ["", "no_consumer"]
    assert seen == ["biller"]


def test_no_time_left(transport: LocalTransport, registry: MessagingRegistry) -> None:
    """What there was no time for is unknown, and was not begun."""
    seen: list[str] = []
    registry.consumers.add("*", lambda _, came: seen.append(came.id), name="mailer")

    (answer,) = transport.send([message_of()], seconds_max=0.0)

    assert (answer.result, answer.code) == (SendResult.UNKNOWN, "late")
    assert seen == []


def test_huge_pauses(ledger: Ledger) -> None:
    """However often and however steeply, a pause is a number of seconds within bounds."""
    registry = new_office(ledger, retries_max=1000, retry_factor=100.0)
    registry.consumers.add("*", failing, name="mailer")
    transport = LocalTransport(ledger.database, registry)

    (answer,) = transport.send([tried(message_of(), 999)], seconds_max=SECONDS_MAX)

    assert answer.retry_after_seconds == 86_400.0

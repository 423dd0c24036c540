"""The transport contract: what every way to a destination keeps, whatever it speaks.

A transport takes part by a `place` fixture that answers a `Endpoint`: the destination, made for the
test and empty, and the transport that leads there. Every transport keeps `TransportContract`. One
whose destination can say no keeps `RefusalContract` too, and one whose destination can be gone or
silent keeps `OutageContract`:

    class TestPigeons(TransportContract, RefusalContract, OutageContract):
        @pytest.fixture
        def place(self) -> Iterator[Place]: ...
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Protocol

import pytest

from ledgerstone.errors import TargetDown
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, SendResult, Transport
from ledgerstone.messaging.message import Message
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until

NAME = "order.placed"
SECONDS_MAX = WAIT_SECONDS_MAX
IMPATIENT_SECONDS = 0.5
# The time that a call may take beyond its limit: minutes, because the machine may be busy.
LATE_SECONDS_MAX = WAIT_SECONDS_MAX
THREADS = 4
BATCH = 20
BATCHES_MAX = 2000
BATCHES_BEFORE = 3


class Endpoint(Protocol):
    """A destination under test, and the transport that leads there.

    - `name` is the one that the transport was given.
    - `received` answers all that the destination keeps, in the order in which it took it, read back
      from what arrived; what came twice is there twice.
    """

    @property
    def name(self) -> str: ...

    @property
    def transport(self) -> Transport: ...

    def received(self) -> Sequence[Message]: ...


class Choosy(Endpoint, Protocol):
    """A place that does not take messages of one name, and takes all others."""

    @property
    def refused_name(self) -> str: ...


class Fragile(Endpoint, Protocol):
    """A place that can be gone, or silent.

    - `stop` makes it unreachable at once, as if its power was cut; what it kept is there again
      after `start`.
    - `pause` lets it listen and answer nothing; `resume` goes on.
    """

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def made(count: int, name: str = NAME, *, partition: str = "") -> list[Message]:
    """So many new messages, each with a body of its own."""
    now = datetime.now(UTC)
    return [
        Message(
            id=new_id(),
            name=name,
            raw=b'{"number":%d,"text":"\xc3\xa4"}' % number,
            headers={"tenant": "acme"},
            partition=partition,
            created_at=now,
        )
        for number in range(count)
    ]


def ids(messages: Sequence[Message]) -> list[str]:
    """Their ids."""
    return [message.id for message in messages]


def delivered(messages: Sequence[Message], answers: Sequence[Answer]) -> list[str]:
    """The ids of those that were answered with DELIVERED."""
    pairs = zip(messages, answers, strict=True)
    return [message.id for message, answer in pairs if answer.result is SendResult.DELIVERED]


class TransportContract:
    """In order, one answer for each, from several threads. Fixture: `place`."""

    full_batch = 200
    """Messages that one call carries at most; fewer where each of them costs a transaction."""

    def test_one_answer_for_each(self, place: Endpoint) -> None:
        """Messages are handed over in the order given, and each is answered."""
        messages = made(50)

        answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

        assert answers == [DELIVERED] * 50
        assert ids(place.received()) == ids(messages)

    def test_nothing_to_send(self, place: Endpoint) -> None:
        """No messages, no answers."""
        assert place.transport.send([], seconds_max=SECONDS_MAX) == []
        assert place.received() == []

    def test_what_arrives_is_what_was_sent(self, place: Endpoint) -> None:
        """Id, name, body, own headers, partition, key and time arrive as they were."""
        (plain,) = made(1)
        (whole,) = made(1, "order.line.added", partition="ann/1")
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        whole = Message(
            id=whole.id,
            name=whole.name,
            raw=whole.raw,
            headers={**whole.headers, **trace},
            partition=whole.partition,
            key="order 7",
            created_at=datetime(2026, 2, 3, 4, 5, 6, 789012, UTC),
        )

        answers = place.transport.send([plain, whole], seconds_max=SECONDS_MAX)

        assert answers == [DELIVERED] * 2
        for sent, came in zip([plain, whole], place.received(), strict=True):
            assert _parts(came) == _parts(sent)
            # A protocol may have headers of its own beside them.
            assert sent.headers.items() <= came.headers.items()

    def test_sent_again(self, place: Endpoint) -> None:
        """A message that is sent again is delivered under the same id, or recognised by it."""
        messages = made(2)
        place.transport.send(messages, seconds_max=SECONDS_MAX)

        answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

        assert answers == [DELIVERED] * 2
        assert set(ids(place.received())) == set(ids(messages))

    def test_many_at_once(self, place: Endpoint) -> None:
        """A full batch is carried in one call, in order."""
        messages = made(self.full_batch)

        answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

        assert answers == [DELIVERED] * self.full_batch
        assert ids(place.received()) == ids(messages)

    def test_several_threads(self, place: Endpoint) -> None:
        """Threads that send at once each get their own answers, and keep their own order."""
        parts = [made(40, partition=f"thread {number}") for number in range(THREADS)]
        barrier = threading.Barrier(THREADS)

        def send(part: list[Message]) -> list[Answer]:
            barrier.wait()
            batches = [part[:20], part[20:]]
            answers = [place.transport.send(b, seconds_max=SECONDS_MAX) for b in batches]
            return [*itertools.chain.from_iterable(answers)]

        with ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(send, parts))

        assert answers == [[DELIVERED] * 40] * THREADS
        arrived = place.received()
        for part in parts:
            mine = [came for came in arrived if came.partition == part[0].partition]
            assert ids(mine) == ids(part)

    def test_closed_and_used_again(self, place: Endpoint) -> None:
        """Close before use and twice is fine; the first send after it connects again."""
        messages = made(2)
        place.transport.close()

        first = place.transport.send(messages[:1], seconds_max=SECONDS_MAX)
        place.transport.close()
        place.transport.close()
        second = place.transport.send(messages[1:], seconds_max=SECONDS_MAX)

        assert first + second == [DELIVERED] * 2
        assert ids(place.received()) == ids(messages)


class RefusalContract:
    """A destination that says no to some. Fixture: `place`, a `Choosy` one."""

    def test_bad_messages_do_not_spoil_good_ones(self, place: Choosy) -> None:
        """Each message has its own answer: those beside a refused one are delivered, in order."""
        good = made(6)
        bad = made(6, place.refused_name)
        mixed = [*itertools.chain.from_iterable(zip(bad, good, strict=True))]

        answers = place.transport.send(mixed, seconds_max=SECONDS_MAX)

        assert delivered(mixed, answers) == ids(good)
        refused = {answer.result for answer in answers[::2]}
        assert refused <= {SendResult.REFUSED, SendResult.UNDELIVERABLE}
        assert ids(place.received()) == ids(good)

    def test_a_refusal_says_why(self, place: Choosy) -> None:
        """A refusal has words for people, and the same code as others of the same cause."""
        answers = place.transport.send(made(2, place.refused_name), seconds_max=SECONDS_MAX)

        assert all(answer.reason for answer in answers)
        (code,) = {answer.code for answer in answers}
        assert code.replace("_", "").isalnum()

    def test_after_a_refusal(self, place: Choosy) -> None:
        """The call after a refused one delivers."""
        messages = made(3)
        place.transport.send(made(3, place.refused_name), seconds_max=SECONDS_MAX)

        answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

        assert answers == [DELIVERED] * 3
        assert ids(place.received()) == ids(messages)


class OutageContract:
    """A destination that is gone, goes, or says nothing. Fixture: `place`, a `Fragile` one."""

    def test_out_of_reach(self, place: Fragile) -> None:
        """A destination that is out of reach raises TargetDown in time, with its name."""
        place.stop()
        began = time.monotonic()

        with pytest.raises(TargetDown) as down:
            place.transport.send(made(3), seconds_max=SECONDS_MAX)

        assert down.value.target == place.name
        assert time.monotonic() - began < SECONDS_MAX + LATE_SECONDS_MAX
        place.start()

    def test_back_again(self, place: Fragile) -> None:
        """When the destination is back, the next call finds it."""
        messages = made(3)
        place.transport.send(messages[:1], seconds_max=SECONDS_MAX)
        place.stop()
        # The first call may be the one that notices: then it does not know what arrived.
        first = _results(place, made(1))
        second = _results(place, made(1))
        place.start()

        answers = place.transport.send(messages[1:], seconds_max=SECONDS_MAX)

        assert first in (None, [SendResult.UNKNOWN])
        assert second is None
        assert answers == [DELIVERED] * 2
        assert ids(place.received()) == ids(messages)

    def test_gone_in_the_middle(self, place: Fragile) -> None:
        """DELIVERED messages are kept; the rest is UNKNOWN, and the next call raises."""
        sent: list[Message] = []
        answers: list[Answer] = []

        def send_until_it_is_gone() -> str:
            for _ in range(BATCHES_MAX):
                batch = made(BATCH)
                try:
                    answered = place.transport.send(batch, seconds_max=SECONDS_MAX)
                except TargetDown as down:
                    return down.target
                sent.extend(batch)
                answers.extend(answered)
            return "nobody"

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send_until_it_is_gone)
            until(lambda: len(answers) >= BATCHES_BEFORE * BATCH or sending.done())
            place.stop()
            gone = sending.result(SECONDS_MAX)
        place.start()

        assert gone == place.name
        assert {answer.result for answer in answers} <= {SendResult.DELIVERED, SendResult.UNKNOWN}
        kept = delivered(sent, answers)
        assert len(kept) >= BATCHES_BEFORE * BATCH
        assert set(kept) <= set(ids(place.received()))

    def test_silence(self, place: Fragile) -> None:
        """A message without an answer after seconds_max is UNKNOWN, and the call returns."""
        place.transport.send(made(1), seconds_max=SECONDS_MAX)
        place.pause()
        began = time.monotonic()

        answers = place.transport.send(made(5), seconds_max=IMPATIENT_SECONDS)

        took = time.monotonic() - began
        place.resume()
        assert [answer.result for answer in answers] == [SendResult.UNKNOWN] * 5
        assert took < IMPATIENT_SECONDS + LATE_SECONDS_MAX

    def test_silence_from_the_beginning(self, place: Fragile) -> None:
        """A destination that does not even greet holds no call for longer than it may take."""
        place.transport.close()
        place.pause()
        began = time.monotonic()

        results = _results(place, made(2), seconds_max=IMPATIENT_SECONDS)

        took = time.monotonic() - began
        place.resume()
        assert results in (None, [SendResult.UNKNOWN] * 2)
        assert took < IMPATIENT_SECONDS + LATE_SECONDS_MAX

    def test_after_silence(self, place: Fragile) -> None:
        """A late answer is not taken for the answer to a later message."""
        place.transport.send(made(1), seconds_max=SECONDS_MAX)
        place.pause()
        place.transport.send(made(5), seconds_max=IMPATIENT_SECONDS)
        place.resume()
        messages = made(5)

        answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

        assert answers == [DELIVERED] * 5
        assert [came for came in ids(place.received()) if came in set(ids(messages))] == ids(
            messages
        )


def _parts(message: Message) -> tuple[object, ...]:
    return (
        message.id,
        message.name,
        message.body,
        message.partition,
        message.key,
        message.created_at,
        message.content_type,
    )


def _results(
    place: Endpoint, messages: Sequence[Message], *, seconds_max: float = SECONDS_MAX
) -> list[SendResult] | None:
    """The answers; none if the place is out of reach."""
    try:
        answers = place.transport.send(messages, seconds_max=seconds_max)
    except TargetDown:
        return None
    return [answer.result for answer in answers]

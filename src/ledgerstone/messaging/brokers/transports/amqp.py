"""AMQP 0-9-1: publishes messages to an exchange of RabbitMQ, with publisher confirms.

    send ──frames──▶ ┌ session ──────────────┐ ──▶ broker
      ▲              │ tag ─▶ batch, index   │      │
      └──answers─────└───────────────────────┘ ◀────┘ ack, nack, return

All messages of a call are written at once, and confirms are processed as they arrive. To wait for
each confirm would cost a round trip and a disk write of the broker per message.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from pika import spec

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.brokers.amqp.connection import (
    CLOSE_SECONDS_MAX,
    AmqpConnection,
    Ending,
    parameters,
)
from ledgerstone.messaging.brokers.amqp.frames import published
from ledgerstone.messaging.brokers.amqp.wire import headers_of
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard, SendResult
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import DestinationSettings

NOT_FOUND = 404
HARD_ERRORS = range(501, 600)
_CODES = {
    311: "too_large",
    403: "access_refused",
    404: "no_exchange",
    405: "resource_locked",
    406: "precondition_failed",
}


class AmqpTransport:
    """Publishes to one exchange, over one connection in a thread of its own.

    - Messages are persistent and mandatory: without a bound queue the answer is UNDELIVERABLE
      (`unroutable`); a message that a queue rejects is REFUSED (`nacked`).
    - A missing exchange is REFUSED (`no_exchange`), because an operator may create it. The exchange
      is checked before the first message of a connection.
    - When the broker closes the channel because of a message, it does not name the message. Those
      without an answer are sent again one by one; the one that closes the channel again is REFUSED.
    - A message that is not confirmed at the end of the call is UNKNOWN: `blocked` if the broker has
      reported that it accepts nothing (memory or disk alarm), otherwise `timeout`.
    - After `blocked` the connection is kept. A call of which nothing was written is withdrawn and
      never sent. After `timeout` the connection is closed.
    """

    def __init__(self, name: str, settings: DestinationSettings, source: str) -> None:
        parameters(name, settings)  # Raises now if the settings are invalid.
        self._name = name
        self._settings = settings
        self._source = source
        self._lock = threading.Lock()
        self._session: _BrokerSession | None = None

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        if not messages:
            return []
        deadline = time.monotonic() + seconds_max
        try:
            session = self._shared(deadline)
        except _Refused as refused:
            return [refused.answer] * len(messages)
        batch = self._published(session, messages, deadline, heard)
        if _spoiled(batch.ending):
            self._send_singly(batch, deadline)
        return batch.final()

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _shared(self, deadline: float) -> _BrokerSession:
        """The session that all threads share; connects if there is none, or raises TargetDown."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TargetDown(self._name)
        try:
            if self._session is None or self._session.over:
                self._session = None
                self._session = self._connected(deadline)
            return self._session
        finally:
            self._lock.release()

    def _connected(self, deadline: float) -> _BrokerSession:
        try:
            session = _BrokerSession(self._name, self._settings)
        except BadInput as error:
            # The settings were valid at the start: a certificate is being replaced.
            raise TargetDown(self._name, f"{self._name} is out of reach: {error}") from error
        ending = session.start(deadline)
        if ending is None:
            return session
        if ending.code == NOT_FOUND:
            raise _Refused(_refusal(ending))
        raise TargetDown(self._name, f"{self._name} is out of reach: {ending.reason}")

    def _published(
        self,
        session: _BrokerSession,
        messages: Sequence[Message],
        deadline: float,
        heard: Heard | None = None,
    ) -> _Batch:
        batch = _Batch(messages, [self._frames(session, message) for message in messages], heard)
        session.hand_over(batch)
        if not batch.done.wait(max(0.0, deadline - time.monotonic())):
            session.give_up(batch)
        return batch

    def _frames(self, session: _BrokerSession, message: Message) -> bytes | Answer:
        settings, structured = self._settings, self._settings.format == "structured"
        try:
            return published(
                channel=session.channel,
                frame_bytes_max=session.frame_bytes_max,
                exchange=settings.exchange,
                routing_key=_or(settings.routing_key, message.name),
                content_type=cloudevents.STRUCTURED if structured else message.content_type,
                headers=headers_of(message, self._source, structured=structured),
                message_id=message.id,
                # AMQP has no timestamps before 1970.
                timestamp=max(0, int(message.created_at.timestamp())),
                name=message.name,
                app_id=self._source,
                body=cloudevents.structured(message, self._source) if structured else message.raw,
            )
        except ValueError as error:
            # A limit of AMQP, or text that is not valid UTF-8: only this message is affected.
            return Answer(SendResult.UNDELIVERABLE, "not_encodable", str(error))

    def _send_singly(self, batch: _Batch, deadline: float) -> None:
        """Finds the message that closes the channel: each is sent alone on a session."""
        session: _BrokerSession | None = None
        for index, message in enumerate(batch.messages):
            if batch.answers[index] is not None:
                continue
            if time.monotonic() >= deadline:
                break
            try:
                session = self._connected(deadline) if session is None else session
            except (TargetDown, _Refused):
                break
            alone = self._published(session, [message], deadline)
            spoiled = _spoiled(alone.ending)
            batch.answers[index] = _refusal(alone.ending) if spoiled else alone.final()[0]
            session = None if alone.ending else session
        if session is not None:
            session.close()


class _Refused(Exception):
    """The broker is reachable and accepts no message at all."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class _Batch:
    """The messages of one call: their frames, and their answers."""

    def __init__(
        self,
        messages: Sequence[Message],
        frames: Sequence[bytes | Answer],
        heard: Heard | None = None,
    ) -> None:
        self.messages = messages
        self._heard = heard
        self.frames = [made for made in frames if isinstance(made, bytes)]
        self.answers = [made if isinstance(made, Answer) else None for made in frames]
        self.left = len(self.frames)
        self.done = threading.Event()
        self.written = self.withdrawn = False
        self.ending: Ending | None = None
        self.blocked = False

    def settle(self, index: int, answer: Answer) -> None:
        self.answers[index] = answer
        if self._heard is not None:
            self._heard(index, answer)
        self.left -= 1
        if self.left == 0:
            self.done.set()

    def lose(self, ending: Ending) -> None:
        self.ending = ending
        self.done.set()

    def final(self) -> list[Answer]:
        unknown = self._unknown()
        return [answer or unknown for answer in list(self.answers)]

    def _unknown(self) -> Answer:
        if self.ending is not None:
            code = _CODES.get(self.ending.code, "connection_lost")
            return Answer(SendResult.UNKNOWN, code, self.ending.reason)
        if self.blocked:
            return Answer(SendResult.UNKNOWN, "blocked", "the broker has a memory or disk alarm")
        return Answer(SendResult.UNKNOWN, "timeout", "the broker did not confirm in time")


class _BrokerSession:
    """One connection, its thread, and the unconfirmed messages.

    A session that is `over` writes nothing more; its `ending` follows.
    """

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self.over = False
        self.ending: Ending | None = None
        self.channel = 0
        self.frame_bytes_max = 0
        self._exchange = settings.exchange
        self._connection = AmqpConnection(
            name, settings, opened=self._on_channel, unblocked=self._write_waiting
        )
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._batches: set[_Batch] = set()
        self._waiting: deque[_Batch] = deque()
        # By delivery tag; there is none below `_lowest`.
        self._pending: dict[int, tuple[_Batch, int]] = {}
        self._lowest = self._next = 1
        self._returned: dict[str, list[Answer]] = {}
        self._seconds_max = 0.0
        self._thread = threading.Thread(target=self._run, name=f"amqp {name}", daemon=True)

    def start(self, deadline: float) -> Ending | None:
        """Connects; returns why, if that failed or took too long."""
        self._seconds_max = max(0.001, deadline - time.monotonic())
        self._thread.start()
        if not self._settled.wait(self._seconds_max):
            self._connection.cut("the broker did not answer in time")
            return Ending("the broker did not answer in time")
        return self.ending

    def close(self) -> None:
        self._connection.close()
        self._thread.join(2 * CLOSE_SECONDS_MAX)

    def hand_over(self, batch: _Batch) -> None:
        if batch.left == 0:
            batch.done.set()
            return
        with self._lock:
            if self.ending is not None:
                batch.lose(self.ending)
                return
            self._batches.add(batch)
        self._connection.call(lambda: self._write(batch))

    def give_up(self, batch: _Batch) -> None:
        """Expects no more answers. Cuts the connection if the broker is silent without a reason."""
        with self._lock:
            self._batches.discard(batch)
            batch.blocked = self._connection.blocked
            batch.withdrawn = batch.blocked and not batch.written
        if batch.done.is_set():
            return
        if batch.blocked:
            self._connection.call(lambda: self._forget(batch))
        else:
            self.over = True
            self._connection.cut("the broker did not confirm in time")

    def _run(self) -> None:
        ending = self._connection.run(seconds_max=self._seconds_max)
        with self._lock:
            self.over, self.ending = True, ending
            batches, self._batches = self._batches, set()
        for batch in batches:
            batch.lose(ending)
        self._settled.set()

    # The methods below run on the thread of the connection.

    def _on_channel(self, channel: Any) -> None:
        self.channel = channel.channel_number
        self.frame_bytes_max = self._connection.frame_bytes_max
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._look(channel))

    def _look(self, channel: Any) -> None:
        if not self._exchange:
            self._settled.set()
            return
        channel.exchange_declare(
            self._exchange, passive=True, callback=lambda _: self._settled.set()
        )

    def _write(self, batch: _Batch) -> None:
        if self._connection.blocked:
            self._waiting.append(batch)
            return
        with self._lock:
            if batch.withdrawn:
                return
            batch.written = True
        for index, answer in enumerate(batch.answers):
            if answer is None:
                self._pending[self._next] = (batch, index)
                self._next += 1
        self._connection.write(b"".join(batch.frames))
        batch.frames.clear()

    def _write_waiting(self) -> None:
        while self._waiting and not self._connection.blocked:
            self._write(self._waiting.popleft())

    def _forget(self, batch: _Batch) -> None:
        # The broker may have half of a written batch: the rest follows when it accepts more.
        if batch in self._waiting:
            self._waiting.remove(batch)

    def _on_return(self, _: Any, returned: Any, properties: Any, __: bytes) -> None:
        reason = (
            f"no queue is bound for it: exchange {returned.exchange!r}, routing key"
            f" {returned.routing_key!r}: {returned.reply_code} {returned.reply_text}"
        )
        answer = Answer(SendResult.UNDELIVERABLE, "unroutable", reason)
        # The confirm of the same message follows; `_answer` then uses this answer.
        self._returned.setdefault(properties.message_id, []).append(answer)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        last = method.delivery_tag or self._next - 1
        tags: Sequence[int] = (last,)
        if method.multiple:
            tags = range(self._lowest, last + 1)
            self._lowest = last + 1
        taken = isinstance(method, spec.Basic.Ack)
        for tag in tags:
            if found := self._pending.pop(tag, None):
                batch, index = found
                batch.settle(index, self._answer(batch.messages[index], taken=taken))
                if batch.left == 0:
                    with self._lock:
                        self._batches.discard(batch)

    def _answer(self, message: Message, *, taken: bool) -> Answer:
        if self._returned and (returns := self._returned.get(message.id)):
            answer = returns.pop()
            if not returns:
                del self._returned[message.id]
            return answer
        if taken:
            return DELIVERED
        return Answer(SendResult.REFUSED, "nacked", "the broker rejected it (basic.nack)")


def _spoiled(ending: Ending | None) -> bool:
    """Whether a message ended the connection: a closed channel, or a protocol error."""
    if ending is None or ending.code == NOT_FOUND:
        return False
    return ending.code in _CODES or ending.code in HARD_ERRORS


def _refusal(ending: Ending | None) -> Answer:
    code = _CODES.get(ending.code, f"closed_{ending.code}") if ending else ""
    return Answer(SendResult.REFUSED, code, ending.reason if ending else "")


def _or(text: str | None, default: str) -> str:
    return default if text is None else text

"""AMQP 0-9-1: receives messages from a queue of RabbitMQ, and acknowledges them in groups.

    broker ──▶ deliver ──▶ handlers in other threads
      ▲                        │ ack, back
      └── sent together ◀──────┘ at the next turn of the connection's thread

The oldest deliveries that are done without a gap are acknowledged by one frame (`multiple`), the
others one by one, so that a slow handler does not use up the prefetch of others.

A stop keeps the order of the queue. It sends neither basic.cancel nor basic.nack: after a cancel
the broker activates the next consumer while messages are unacknowledged here, and nacked messages
are requeued behind others. The connection ends after the last acknowledgement is written; then the
broker requeues unacknowledged messages in their order, before it activates the next consumer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from ledgerstone.engine.backoff import Backoff
from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.messaging.brokers.amqp.connection import (
    CLOSE_SECONDS_MAX,
    AmqpConnection,
    Ending,
    parameters,
)
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.message import written
from ledgerstone.settings.messaging import SubscriptionSettings

CONNECT_SECONDS_MAX = 10.0
PAUSES = Backoff(seconds=0.1, seconds_max=30.0)
NOT_FOUND = 404

_log = logging.getLogger("ledgerstone.messaging")


class AmqpSubscription:
    """Receives from one queue, over one connection in a thread of its own.

    - If the queue does not exist or is deleted, it reconnects until the queue is back.
    - An error of `deliver` ends the connection, so that the broker redelivers the message.
    """

    def __init__(self, name: str, settings: SubscriptionSettings) -> None:
        parameters(name, settings)  # Raises now if the settings are invalid.
        self._name = name
        self._settings = settings
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._stopped = False
        self._session: _BrokerSession | None = None
        self._thread: threading.Thread | None = None
        self._trouble: str | None = "not started"
        self._said: str | None = None
        """The last logged trouble, until it is over."""

    @property
    def connected(self) -> bool:
        session = self._session
        return session is not None and session.consuming

    @property
    def trouble(self) -> str | None:
        return None if self.connected else self._trouble

    def start(self, deliver: Callable[[Delivery], None]) -> None:
        if self._thread is not None:
            raise NotAllowedNow(f"{self._name} is started already")
        self._trouble = "connecting"
        self._thread = threading.Thread(
            target=self._run, args=(deliver,), name=f"amqp {self._name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._trouble = "stopped"
            session = self._session
        if session is not None:
            session.stop()

    def close(self) -> None:
        with self._lock:
            self._stopped = True
            self._trouble = "closed"
            self._closing.set()
            session = self._session
        if session is not None:
            session.close()
        if self._thread is not None:
            self._thread.join(2 * CLOSE_SECONDS_MAX)

    def _run(self, deliver: Callable[[Delivery], None]) -> None:
        failures = 0
        # A new connection could not acknowledge deliveries of the old one.
        while not self._stopped:
            try:
                session = _BrokerSession(self._name, self._settings, deliver, self._on_consuming)
            except BadInput as error:
                # The settings were valid at the start: a certificate is being replaced.
                ending, worked = Ending(str(error)), False
            else:
                ending, worked = self._served(session), session.consumed
            with self._lock:
                self._session = None
                if not self._stopped:
                    self._trouble = self._told(ending)
                    self._say(self._trouble)
            failures = 1 if worked else failures + 1
            if self._closing.wait(PAUSES.after(failures)):
                return

    def _served(self, session: _BrokerSession) -> Ending:
        with self._lock:
            self._session = session
            if self._stopped:
                session.close()
        return session.run()

    def _say(self, trouble: str) -> None:
        """Logs the trouble once, until messages arrive again or the trouble changes."""
        words = " ".join(trouble.split())
        if words != self._said:
            _log.warning("%s receives nothing: %s", self._name, words)
        self._said = words

    def _on_consuming(self) -> None:
        if self._said is not None:
            _log.info("%s receives again", self._name)
        self._said = None

    def _told(self, ending: Ending) -> str:
        if ending.code == NOT_FOUND:
            return f"the queue {self._settings.queue} does not exist: {ending.reason}"
        return ending.reason


class _BrokerSession:
    """One connection of a subscription, and the unacknowledged deliveries of its channel.

    - `consuming` while the broker delivers; `consumed` after it has begun to.
    """

    def __init__(
        self,
        name: str,
        settings: SubscriptionSettings,
        deliver: Callable[[Delivery], None],
        on_consuming: Callable[[], None],
    ) -> None:
        self.consuming = False
        self.consumed = False
        self._settings = settings
        self._deliver = deliver
        self._told_consuming = on_consuming
        self._connection = AmqpConnection(name, settings, opened=self._on_channel)
        self._channel: Any = None
        self._stopping = False
        self._lock = threading.Lock()
        # The results that the broker has not been told: tag, and whether it is done.
        self._said: deque[tuple[int, bool]] = deque()
        self._telling = False
        # In the order of delivery; at most the prefetch count.
        self._outstanding: dict[int, None] = {}

    def run(self) -> Ending:
        """Receives until the connection ends; returns why."""
        try:
            return self._connection.run(seconds_max=CONNECT_SECONDS_MAX)
        finally:
            self.consuming = False

    def stop(self) -> None:
        """Delivers no more; the broker sends until its prefetch is used up."""
        self._stopping = True
        self.consuming = False

    def close(self) -> None:
        self.stop()
        self._connection.call(self._close)

    def say(self, tag: int, *, done: bool) -> None:
        """Notes the result of a delivery, from any thread; the next turn tells the broker."""
        with self._lock:
            self._said.append((tag, done))
            if self._telling:
                return
            self._telling = True
        self._connection.call(self._tell)

    # The methods below run on the thread of the connection.

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_cancel_callback(self._on_cancel)
        channel.basic_qos(
            prefetch_count=self._settings.prefetch, callback=lambda _: self._consume()
        )

    def _consume(self) -> None:
        if self._stopping:
            return
        self._channel.basic_consume(
            self._settings.queue, self._on_message, callback=lambda _: self._on_consuming()
        )

    def _on_consuming(self) -> None:
        self.consumed = True
        self.consuming = not self._stopping
        self._told_consuming()

    def _close(self) -> None:
        if self._channel is not None:
            self._tell()
        self._connection.drop()

    def _on_cancel(self, _: Any) -> None:
        self.consuming = False
        queue = self._settings.queue
        self._connection.cut(f"the broker ended the subscription: is the queue {queue} deleted?")

    def _on_message(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        if self._stopping:
            # The broker requeues it when the connection ends.
            return
        self._outstanding[method.delivery_tag] = None
        self._deliver(_Delivery(self, method, properties, body))

    def _tell(self) -> None:
        with self._lock:
            said, self._said = self._said, deque()
            self._telling = False
        if not self._channel.is_open:
            return
        done = {tag for tag, is_done in said if is_done and tag in self._outstanding}
        for tag, is_done in said:
            if not is_done and tag in self._outstanding:
                self._channel.basic_nack(tag, requeue=True)
                del self._outstanding[tag]
        row = list(takewhile(done.__contains__, self._outstanding))
        if row:
            self._channel.basic_ack(row[-1], multiple=len(row) > 1)
        for tag in done.difference(row):
            self._channel.basic_ack(tag)
        for tag in done:
            del self._outstanding[tag]


class _Delivery:
    """One delivery; see `Delivery`."""

    __slots__ = ("_method", "_properties", "_session", "body")

    def __init__(self, session: _BrokerSession, method: Any, properties: Any, body: bytes) -> None:
        self._session = session
        self._method = method
        self._properties = properties
        self.body = body

    @property
    def content_type(self) -> str | None:
        found: str | None = self._properties.content_type
        return found

    @property
    def headers(self) -> Mapping[str, Any]:
        return self._properties.headers or {}

    @property
    def properties(self) -> Mapping[str, str]:
        names = ("message_id", "type", "app_id", "correlation_id")
        given = {name: getattr(self._properties, name) for name in names}
        found = {name: value for name, value in given.items() if value is not None}
        if self._properties.timestamp is not None:
            found["timestamp"] = _moment(self._properties.timestamp)
        return found

    @property
    def redelivered(self) -> bool:
        return bool(self._method.redelivered)

    def ack(self) -> None:
        self._session.say(self._method.delivery_tag, done=True)

    def back(self) -> None:
        self._session.say(self._method.delivery_tag, done=False)


def _moment(seconds: int) -> str:
    try:
        return written(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        # Outside the calendar; a reader that needs a timestamp will refuse it.
        return f"{seconds} seconds"

"""The bare client, as its documents make it fast: asynchronous, with a window of confirms.

It publishes from memory: what travels with a message is made before the time begins.
"""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import pika

from bench.measure import Timing, settle_memory
from bench.messaging.broker import EXCHANGE
from bench.messaging.load import RAW, in_memory
from ledgerstone.messaging.brokers.amqp.wire import headers_of
from ledgerstone.messaging.message import Message
from ledgerstone.settings import MessagingSettings

WINDOW = 1000
"""Messages that are under way without a confirm: as many as a relay hands over at a time."""


def publish(url: str, *, warm_up: int, count: int, window: int = WINDOW) -> Timing:
    """From the first of `count` messages, after `warm_up` others, to the last confirm."""
    publisher = _Publisher(url, warm_up=warm_up, count=count, window=window)
    settle_memory()
    return publisher.run()


class _Publisher:
    """One connection, one channel, and messages that wait for their confirms."""

    def __init__(self, url: str, *, warm_up: int, count: int, window: int) -> None:
        self._properties = [_properties(message) for message in in_memory(warm_up + count)]
        self._warm_up = warm_up
        self._window = window
        self._last = warm_up
        self._next = self._lowest = 1
        self._outstanding: set[int] = set()
        self._began = self._ended = (0.0, 0.0)
        self._failure: str | None = None
        self._channel: Any = None
        self._connection: Any = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda it: it.channel(on_open_callback=self._on_channel),
            on_open_error_callback=lambda _, error: self._fail(f"cannot connect: {error}"),
            on_close_callback=lambda *_: self._connection.ioloop.stop(),
        )

    def run(self) -> Timing:
        self._connection.ioloop.start()
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return Timing(
            count=len(self._properties) - self._warm_up,
            seconds=self._ended[0] - self._began[0],
            cpu_seconds=self._ended[1] - self._began[1],
        )

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_return_callback(lambda *_: self._fail("a message came back"))
        channel.add_on_close_callback(lambda _, error: self._closed(error))
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._publish())

    def _publish(self) -> None:
        """As many as the window has room for."""
        while self._next <= self._last and len(self._outstanding) < self._window:
            self._outstanding.add(self._next)
            properties = self._properties[self._next - 1]
            self._next += 1
            self._channel.basic_publish(EXCHANGE, properties.type, RAW, properties, mandatory=True)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, pika.spec.Basic.Ack):
            self._fail("the broker did not keep a message")
            return
        tag = method.delivery_tag
        if method.multiple:
            self._outstanding.difference_update(range(self._lowest, tag + 1))
            self._lowest = tag + 1
        else:
            self._outstanding.discard(tag)
        if self._next <= self._last:
            self._publish()
        elif not self._outstanding:
            self._pass()

    def _pass(self) -> None:
        """All of one part are confirmed: begin the other, or end."""
        now = perf_counter(), process_time()
        if self._last == len(self._properties):
            self._ended = now
            self._connection.close()
            return
        self._last = len(self._properties)
        self._began = now
        self._publish()

    def _closed(self, error: BaseException) -> None:
        if not self._ended[0]:
            self._fail(f"the broker closed the channel: {error}")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._connection.ioloop.stop()


def _properties(message: Message) -> Any:
    """What our transport sends with it."""
    source = MessagingSettings().source
    return pika.BasicProperties(
        content_type=message.content_type,
        headers=headers_of(message, source, structured=False),
        delivery_mode=pika.DeliveryMode.Persistent.value,
        message_id=message.id,
        timestamp=int(message.created_at.timestamp()),
        type=message.name,
        app_id=source,
    )

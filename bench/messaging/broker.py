"""The broker that is published to: one exchange, one quorum queue that all messages lead to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pika

EXCHANGE = "events"
QUEUE = "bench"
EVERYTHING = "#"
COUNT_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.05


def renew(url: str) -> None:
    """The exchange, and the queue without a message."""
    with _channel(url) as channel:
        channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(QUEUE, EXCHANGE, EVERYTHING)


def kept(url: str, expected: int) -> int:
    """How many messages the queue keeps; it counts late, so it is given time for as many."""
    deadline = monotonic() + COUNT_SECONDS_MAX
    with _channel(url) as channel:
        while True:
            count: int = channel.queue_declare(QUEUE, passive=True).method.message_count
            if count >= expected or monotonic() > deadline:
                return count
            sleep(LOOK_SECONDS)


def described(url: str) -> dict[str, str]:
    """What the broker says of itself."""
    with _channel(url) as channel:
        said: Any = channel.connection._impl.server_properties  # noqa: SLF001 - it has no other way
        return {"broker": f"RabbitMQ {said['version']}", "queue": "quorum"}


@contextmanager
def _channel(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()

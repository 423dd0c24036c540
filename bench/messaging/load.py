"""The messages that are carried, and the settings of those who carry them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Literal

from bench.messaging.broker import EXCHANGE, QUEUE
from ledgerstone.ids import new_id
from ledgerstone.messaging import NewMessage
from ledgerstone.messaging.message import Message
from ledgerstone.settings import DestinationSettings, MessagingSettings, SubscriptionSettings
from ledgerstone.store.sql.json_body import encode

NAME = "bench.made"
DESTINATION = "broker"
SUBSCRIPTION = "queue"
BODY_BYTES = 1024
PARTITIONS = 1000

Mode = Literal["competing", "ordered"]

_FRAME_BYTES = len(encode({"text": ""}, bytes_max=BODY_BYTES))
BODY = {"text": "x" * (BODY_BYTES - _FRAME_BYTES)}
RAW = encode(BODY, bytes_max=BODY_BYTES).encode()


def settings(broker: str, mode: Mode = "competing") -> MessagingSettings:
    """Everything goes to the broker; defaults but for the mode of the destination."""
    return MessagingSettings(
        destinations={DESTINATION: DestinationSettings(url=broker, mode=mode, exchange=EXCHANGE)},
        routes={NAME: [DESTINATION]},
        subscriptions={SUBSCRIPTION: SubscriptionSettings(url=broker, queue=QUEUE)},
    )


def new_messages(partitions: int) -> Iterator[NewMessage]:
    """Messages to be published, without end, to one partition after the other."""
    for number in count():
        partition = f"partition-{number % partitions}" if partitions else ""
        yield NewMessage(name=NAME, body=BODY, partition=partition)


def in_memory(count: int) -> list[Message]:
    """Messages as a relay has them when it hands them over."""
    now = datetime.now(UTC)
    return [Message(id=new_id(), name=NAME, raw=RAW, created_at=now) for _ in range(count)]

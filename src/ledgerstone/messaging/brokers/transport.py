"""The contract of a transport, which sends messages to one destination.

Implementations lie under `transports/`. A transport does not use the database: it is given messages
and answers for each whether the destination has it. The relay decides what that means for the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from ledgerstone.messaging.message import Message


class SendResult(Enum):
    """The result of sending a message."""

    DELIVERED = "delivered"
    """The destination confirmed that it stored the message."""
    REFUSED = "refused"
    """The destination refused the message, or did not answer for this one alone; retry later."""
    UNDELIVERABLE = "undeliverable"
    """The destination refused the message permanently, for example because no queue is bound."""
    UNKNOWN = "unknown"
    """No answer: it may have arrived. It is sent again, and that does not count as an attempt."""


MISSING = frozenset({"unroutable", "no_exchange", "no_stream", "no_responders"})
"""Codes of a missing target in the destination. An operator may create it: the policy `block`
retries such a message for ever, and partitions that were parked for it are resumed when one
delivers again."""
PAUSE_SECONDS_MAX = 3600.0
"""The longest pause that one answer of a destination can cause."""


class Answer(msgspec.Struct, frozen=True):
    """The result for one message, with a reason for operators; `code` groups equal causes."""

    result: SendResult
    code: str = ""
    reason: str = ""
    retry_after_seconds: float | None = None
    """The pause that the destination asks for, at most PAUSE_SECONDS_MAX. After a refusal the pause
    is at least the back-off of the destination; the pause of a local consumer is used as it is."""
    counts: bool = True
    """Whether a refusal counts as an attempt of the message."""


DELIVERED = Answer(SendResult.DELIVERED)

Heard = Callable[[int, Answer], None]
"""Called with the index of a message and its answer."""


class Transport(Protocol):
    """Sends messages to one destination.

    - `send` hands the messages over in the given order and returns their answers in that order.
    - DELIVERED means that the destination has confirmed to store the message.
    - It returns after `seconds_max` at the latest; a message without an answer is UNKNOWN.
    - It raises TargetDown if the destination is unreachable; no message is to blame for that. If an
      outage begins during the call, unconfirmed messages are UNKNOWN and the next call raises.
    - A bad message does not affect others: each has its own answer.
    - Several threads may send at the same time.
    - It may call `heard` with an answer before it returns, from any thread, so that a slow message
      delays no other partition. The returned answers are the same.
    - The first `send` connects, and so does the first one after `close`.
    """

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]: ...

    def close(self) -> None: ...

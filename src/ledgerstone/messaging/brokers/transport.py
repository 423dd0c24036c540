"""What carries messages to one destination. One file each under `transports/`.

A transport knows nothing of the database: it is given messages and answers for each whether its
destination has it. What that means for the row in the outbox is the relay's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from ledgerstone.messaging.message import Message


class SendResult(Enum):
    """What became of a message that was handed over."""

    DELIVERED = "delivered"
    """The destination has confirmed that it keeps it."""
    REFUSED = "refused"
    """The destination said no, or nothing to this one alone; it may be taken later."""
    UNDELIVERABLE = "undeliverable"
    """The destination said no, and will say so again: nobody is bound to receive it."""
    UNKNOWN = "unknown"
    """No answer came: it may have arrived. It is sent again, and that is not its own doing."""


MISSING = frozenset({"unroutable", "no_exchange", "no_stream", "no_responders"})
"""Codes that say that the place in the destination is missing. Somebody may make it: under `block`
such a message is tried for ever, and what was parked for it goes on when one gets through again."""
PAUSE_SECONDS_MAX = 3600.0
"""What a destination may ask for: a message waits no longer because of one answer."""


class Answer(msgspec.Struct, frozen=True):
    """A verdict, and for people why; `code` groups what has the same cause."""

    verdict: SendResult
    code: str = ""
    reason: str = ""
    retry_after_seconds: float | None = None
    """The pause that the destination asks for, at most PAUSE_SECONDS_MAX of it. After a refusal it
    is no shorter than the back-off of the destination; what handlers say themselves is taken."""
    counts: bool = True
    """Whether a refusal is the message's own doing, and counts as an attempt."""


DELIVERED = Answer(SendResult.DELIVERED)

Heard = Callable[[int, Answer], None]
"""Told the answer for the message at this index."""


class Transport(Protocol):
    """Carries messages to one destination.

    - `send` hands the messages over in the order given and answers for each, in that order.
    - DELIVERED is only what the destination has confirmed to keep.
    - It answers after `seconds_max` at the latest; what has no answer by then is UNKNOWN.
    - A destination that is out of reach raises TargetDown: no message is to blame for that. If it
      went away in the middle, what was not confirmed is UNKNOWN and the next call raises.
    - Bad messages do not spoil good ones: each has its own answer.
    - Several threads may send at once.
    - `heard` may be told of an answer before the call returns, from any thread: then a message that
      takes long keeps no other partition waiting. What is returned is the same.
    - The first `send` connects; so does the first one after `close`.
    """

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]: ...

    def close(self) -> None: ...

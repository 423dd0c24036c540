"""What a command or projector says: events, wishes, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.tables import KEY_CHARS_MAX, NAME_CHARS_MAX
from ledgerstone.store.sql.names import check_name


class Reason(msgspec.Struct, frozen=True, order=True):
    """What an event waits for: a key of a kind, for example ("key", "k-17")."""

    type: str
    key: str

    def check(self) -> None:
        check_name(self.type, "the type of a reason", chars_max=NAME_CHARS_MAX)
        check_name(self.key, "the key of a reason", chars_max=KEY_CHARS_MAX)


class Blocked(NotAllowedNow):
    """Raise it in a projector: the event waits until one comes that unblocks what it names."""

    code = "blocked"

    def __init__(self, *reasons: Reason | tuple[str, str]) -> None:
        made = [each if isinstance(each, Reason) else Reason(*each) for each in reasons]
        if not made:
            raise BadInput("an event is blocked by something: name a reason")
        for reason in made:
            reason.check()
        # The same one named twice is one.
        self.reasons = tuple(dict.fromkeys(made))
        named = ", ".join(f"{each.type} {each.key}" for each in self.reasons)
        super().__init__(f"it waits for {named}")


class IncomingRemove(msgspec.Struct, frozen=True):
    """Take an item out of `incoming`."""

    incoming_id: int


class OutgoingEnqueue(msgspec.Struct, frozen=True):
    """Send bytes to an address."""

    blob: bytes
    address: str = ""


class DeferredEnqueue(msgspec.Struct, frozen=True):
    """Apply an envelope later, after those of its partition that were deferred before."""

    envelope: Envelope
    partition: str
    key: str | None = None
    delay_seconds: float = 0.0


class BlobAppendSlice(msgspec.Struct, frozen=True):
    """Keep a slice of a file; one with a `total_size` begins the file if it is not there."""

    file_id: str
    slice_no: int
    offset: int
    data: bytes
    total_size: int | None = None


Intent = IncomingRemove | OutgoingEnqueue | DeferredEnqueue | BlobAppendSlice
INTENTS = (IncomingRemove, OutgoingEnqueue, DeferredEnqueue, BlobAppendSlice)
"""The wishes that a command may have; everything else happens by events."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a command wants: it changes nothing itself.

    - `envelopes` are applied in order, in the command's transaction.
    - `per_item` are envelopes made of items of `incoming`, which they replace.
    - `intents` are the wishes of `INTENTS`.
    - `answer` is for the caller; with an idempotency key it is kept, and answered again.
    - `again_seconds` says when a job comes again, in place of its usual pause.
    """

    envelopes: Sequence[Envelope] = ()
    per_item: Sequence[tuple[int, Envelope]] = ()
    intents: Sequence[Intent] = ()
    answer: Mapping[str, Any] = {}
    again_seconds: float | None = None

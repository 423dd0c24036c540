"""The relay to the ledger: requests that ended become messages of its outbox, at least once.

A request that ends leaves a marker in the same write. The marker is removed when the outbox says
that it has the message already, so never before the message was committed:

    marker ──publish──▶ outbox: created    the marker stays: the commit is still to come
    marker ──publish──▶ outbox: existing   the marker is removed

The key of a message is made of the store's id and of all that the message says: however often it
is published, the outbox keeps one message. A request that ends once more, in a store that was
restored from an earlier moment, is another message; it does not hold the others up as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ledgerstone.failpoints import hit
from ledgerstone.signing.bincode import encode
from ledgerstone.signing.hashes import payload_hash
from ledgerstone.signing.life.outgoing import FinishedRequest, list_outgoing, remove_outgoing
from ledgerstone.signing.store import Store

NAME_PREFIX = "signing."
KEY_CHARS = 32


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the outbox; amounts and moments are decimal text, since they have 64 bits."""

    name: str
    """`signing.finalized` or `signing.rejected`."""
    body: dict[str, str | None]
    partition: str
    key: str


Publish = Callable[[Sequence[Announcement]], Sequence[bool]]
"""Publishes messages; answers for each whether the outbox had it before, and committed."""


def announce(store_id: str, finished: FinishedRequest) -> Announcement:
    """The message of a request that ended: the same one each time."""
    identity = store_id.encode() + encode(finished)
    final_tx_id = finished.final_tx_id
    return Announcement(
        name=NAME_PREFIX + finished.status,
        body={
            "request_id": finished.request_id,
            "group_id": finished.group_id.hex(),
            "event_hash": finished.event_hash.hex(),
            "event_id": _without_nul(finished.event_id),
            "status": finished.status,
            "reason": _without_nul(finished.reason),
            "destination_address": _without_nul(finished.destination_address),
            "amount_sompi": str(finished.amount_sompi),
            "final_tx_id": None if final_tx_id is None else final_tx_id.hex(),
            "at_nanos": str(finished.at_nanos),
        },
        partition=f"signing-{finished.group_id.hex()}",
        key=f"signing-{payload_hash(identity).hex()[:KEY_CHARS]}",
    )


def _without_nul(text: str) -> str:
    """The text without NUL, which no database keeps in a document."""
    return text.replace("\0", "\ufffd")


def relay_step(store: Store, store_id: str, publish: Publish, *, rows_max: int) -> int:
    """Publish the first requests that wait; how many of them were new to the outbox."""
    waiting = list_outgoing(store, rows_max=rows_max)
    if not waiting:
        return 0
    known = publish([announce(store_id, each) for each in waiting])
    hit("signing.published")
    committed = [each for each, before in zip(waiting, known, strict=True) if before]
    if committed:
        store.run(lambda tx: remove_outgoing(tx, committed))
    return len(waiting) - len(committed)

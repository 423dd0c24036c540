"""Events: accepted once, however often and in whatever spelling their source sends them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ledgerstone.errors import BadInput, EventReplayed, TooLarge
from ledgerstone.signing import hashes
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.kaspa import derivation_index
from ledgerstone.signing.keys import EventIdKey, EventKey, EventUseKey
from ledgerstone.signing.life import records
from ledgerstone.signing.life.event_use import (
    EventLink,
    EventUse,
    accept,
    find_foreign_use,
    is_accepted,
)
from ledgerstone.signing.values import EventHash, SigningEvent, Stored

EVENT_ID_BYTES_MAX = 256
METADATA_ENTRIES_MAX = 64
METADATA_NAME_BYTES_MAX = 64
METADATA_VALUE_BYTES_MAX = 2048
METADATA_BYTES_MAX = 16 * 1024
SOURCE_BYTES_MAX = 4096
SIGNATURE_BYTES_MAX = 64 * 64


class InsertedEvent(NamedTuple):
    """The hash of an event, and whether it was new."""

    event_hash: EventHash
    stored: Stored


def insert_event(tx: Transaction, event: SigningEvent) -> InsertedEvent:
    """Accept an event.

    - The same event again is SAME, and nothing is written.
    - EventReplayed if its source gave the same id to an event with other content: the second one
      could be the first one, to be paid twice. Also if its request was archived with signatures.
    """
    event_hash = hashes.event_hash(event)  # Refuses values that do not fit their fields.
    check_event(event)
    records.lock(tx, EventLink, EventIdKey(source_hash=hashes.source_hash(event)))
    known = is_accepted(tx, event, event_hash)
    use = records.lock(tx, EventUse, EventUseKey(event_hash=event_hash))
    if use is not None and use.spent:
        raise EventReplayed(f"the event had the request {use.request_id!r}")
    stored = records.insert(tx, EventKey(event_hash=event_hash), event, "event with this hash")
    if not known:
        _take_over(tx, event_hash, use, stored)
        accept(tx, event, event_hash)
    return InsertedEvent(event_hash, stored)


def _take_over(
    tx: Transaction, event_hash: EventHash, use: EventUse | None, stored: Stored
) -> None:
    """Note the request of an event that another program stored."""
    foreign = find_foreign_use(tx, event_hash) if stored is Stored.SAME and use is None else None
    if foreign is not None:
        records.save(tx, EventUseKey(event_hash=event_hash), foreign)


def check_event(event: SigningEvent) -> None:
    """BadInput or DerivationPathInvalid unless the event can be accepted."""
    derivation_index(event.derivation_path, event.derivation_index)
    if not 0 < _bytes(event.event_id) <= EVENT_ID_BYTES_MAX:
        raise BadInput(f"an event id has 1 to {EVENT_ID_BYTES_MAX} bytes")
    sizes = [(_bytes(name), _bytes(value)) for name, value in event.metadata.items()]
    limits = {
        f"at most {METADATA_ENTRIES_MAX} entries of metadata": len(sizes) <= METADATA_ENTRIES_MAX,
        f"names of at most {METADATA_NAME_BYTES_MAX} bytes": all(
            name <= METADATA_NAME_BYTES_MAX for name, _ in sizes
        ),
        f"values of at most {METADATA_VALUE_BYTES_MAX} bytes": all(
            value <= METADATA_VALUE_BYTES_MAX for _, value in sizes
        ),
        f"metadata of at most {METADATA_BYTES_MAX} bytes": (
            sum(name + value for name, value in sizes) <= METADATA_BYTES_MAX
        ),
        f"a source of at most {SOURCE_BYTES_MAX} bytes": (
            sum(map(_bytes, msgspec.structs.astuple(event.event_source))) <= SOURCE_BYTES_MAX
        ),
        f"signatures of at most {SIGNATURE_BYTES_MAX} bytes": (
            len(event.signature or b"") <= SIGNATURE_BYTES_MAX
        ),
    }
    broken = [limit for limit, kept in limits.items() if not kept]
    if broken:
        raise TooLarge(f"an event has {', '.join(broken)}")


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def get_event(reader: Reader, event_hash: EventHash) -> SigningEvent:
    """The event, or NotFound."""
    key = EventKey(event_hash=event_hash)
    return records.load(reader, SigningEvent, key, f"event {event_hash.hex()}")


def find_by_source(reader: Reader, event: SigningEvent) -> SigningEvent | None:
    """The event to which its source gave the same id; None if it is new, or was deleted."""
    link = records.find(reader, EventLink, EventIdKey(source_hash=hashes.source_hash(event)))
    if link is None:
        return None
    return records.find(reader, SigningEvent, EventKey(event_hash=link.event_hash))

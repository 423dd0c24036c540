"""Seen messages: each message of a peer is delivered once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ledgerstone.errors import Malformed
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import SeenKey
from ledgerstone.signing.values import PeerId, SessionId

NUMBER_BYTES = 8
_SEEN = SeenKey.family


class OldMessages(NamedTuple):
    """Keys of old entries, and behind which key to go on; None at the end.

    `errors` are of damaged entries, by their keys.
    """

    keys: list[bytes]
    after: bytes | None
    errors: Mapping[str, Malformed]


class CleanedUp(NamedTuple):
    """How many entries were deleted, and behind which key to go on; None at the end.

    `errors` are of damaged entries, by their keys: they stay, and stop no other.
    """

    deleted: int
    after: bytes | None
    errors: Mapping[str, Malformed] = {}


def mark_seen_message(
    tx: Transaction, peer_id: PeerId, session_id: SessionId, seq_no: int, *, now_nanos: int
) -> bool:
    """Whether the message is seen for the first time; the moment is by our clock.

    The number comes from `sequence_number`: a peer that was restarted sends with a new epoch.
    """
    key = SeenKey(peer_id=peer_id, session_id=session_id, seq_no=seq_no).encode()
    if tx.get_for_update(_SEEN, key) is not None:
        return False
    tx.put(_SEEN, key, now_nanos.to_bytes(NUMBER_BYTES, "big"))
    return True


def cleanup_seen_messages(
    tx: Transaction, *, older_than_nanos: int, after: bytes | None = None, rows_max: int
) -> CleanedUp:
    """Delete entries that were made before a moment, among the next `rows_max` rows."""
    old = find_old_messages(tx, older_than_nanos=older_than_nanos, after=after, rows_max=rows_max)
    for key in old.keys:
        tx.delete(_SEEN, key)
    return CleanedUp(len(old.keys), old.after, old.errors)


def find_old_messages(
    reader: Reader, *, older_than_nanos: int, after: bytes | None = None, rows_max: int
) -> OldMessages:
    """The entries that were made before a moment, among the next `rows_max` rows."""
    page = reader.page(_SEEN, SeenKey.prefix, after=after, rows_max=rows_max)
    keys: list[bytes] = []
    errors: dict[str, Malformed] = {}
    for key, value in page.rows:
        try:
            if _moment(key, value) < older_than_nanos:
                keys.append(key)
        except Malformed as error:
            errors[repr(key)] = error
    return OldMessages(keys, page.after, errors)


def _moment(key: bytes, value: bytes) -> int:
    if len(value) != NUMBER_BYTES:
        raise Malformed(f"the value of {key!r} has {len(value)} bytes")
    return int.from_bytes(value, "big")

"""Volume: what was paid on each UTC day, and what approved requests have reserved.

The limit of a day holds for the sum of what was paid today and of everything reserved. An approval
adds to the reserved sum under its lock; finalizing moves the amount to the day on which it happens,
by our clock; a request that ends otherwise gives it back. So the volume of no day exceeds the
limit, also if a request is approved before midnight and finalized after it.
"""

from __future__ import annotations

from ledgerstone.errors import Malformed, StoreCorrupt
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.kaspa import add_saturating
from ledgerstone.signing.keys import ReservedKey, VolumeKey, day_start_nanos
from ledgerstone.signing.life import records

RESERVED_BYTES = 16
"""The reserved sum is exact: it is taken from again, so it must not saturate."""
_RESERVED = ReservedKey().encode()


def volume_of_day(reader: Reader, now_nanos: int) -> int:
    """The sompi that were paid on the UTC day of a moment."""
    return reader.volume(VolumeKey(day_start_nanos=day_start_nanos(now_nanos)).encode())


def volume_since(reader: Reader, since_nanos: int) -> int:
    """The sompi that were paid since the beginning of the UTC day of a moment."""
    start = day_start_nanos(since_nanos)
    before = VolumeKey(day_start_nanos=start - 1).encode() if start else None
    found = records.rows(reader, VolumeKey.family, VolumeKey.prefix, after=before)
    return add_saturating(*(reader.volume(key) for key, _ in found))


def reserved(reader: Reader) -> int:
    """The sompi that approved requests have reserved."""
    return _reserved(reader.get(ReservedKey.family, _RESERVED))


def lock_reserved(tx: Transaction) -> int:
    """The same, which no other transaction can change until the end."""
    return _reserved(tx.get_for_update(ReservedKey.family, _RESERVED))


def reserve(tx: Transaction, amount_sompi: int) -> None:
    """Add to what is reserved."""
    _write_reserved(tx, lock_reserved(tx) + amount_sompi)


def release(tx: Transaction, amount_sompi: int) -> None:
    """Take from what is reserved."""
    _write_reserved(tx, lock_reserved(tx) - amount_sompi)


def settle(tx: Transaction, *, reserved_sompi: int, paid_sompi: int, now_nanos: int) -> None:
    """Turn a reservation into volume of the day, in one step."""
    release(tx, reserved_sompi)
    tx.add_volume(VolumeKey(day_start_nanos=day_start_nanos(now_nanos)).encode(), paid_sompi)


def _write_reserved(tx: Transaction, amount: int) -> None:
    if amount < 0:
        raise StoreCorrupt("a request gives back more volume than is reserved")
    tx.put(ReservedKey.family, _RESERVED, amount.to_bytes(RESERVED_BYTES, "big"))


def _reserved(value: bytes | None) -> int:
    if value is not None and len(value) != RESERVED_BYTES:
        raise Malformed(f"the reserved volume has {RESERVED_BYTES} bytes, here {len(value)}")
    return int.from_bytes(value or b"", "big")

"""Daily volumes: big-endian numbers of eight bytes that saturate.

A stored value is one number, or the operands that the original merged, one after the other: their
sum is the volume (`docs/decisions/rocksdb.md` says why RocksDB does not add them up). A value of
any other length is damaged: it is reported, and never replaced.
"""

from __future__ import annotations

from ledgerstone.errors import BadInput, StoreCorrupt

NUMBER_BYTES = 8
VOLUME_MAX = 2**64 - 1


def volume_of(value: bytes | None, key: bytes = b"") -> int:
    """The volume that a stored value says; 0 where there is none."""
    if value is None:
        return 0
    if not value or len(value) % NUMBER_BYTES:
        raise StoreCorrupt(f"the volume under {key!r} has {len(value)} bytes, not 8 or a multiple")
    numbers = (value[at : at + NUMBER_BYTES] for at in range(0, len(value), NUMBER_BYTES))
    return min(sum(int.from_bytes(number, "big") for number in numbers), VOLUME_MAX)


def volume_value(volume: int) -> bytes:
    """The stored value of a volume."""
    if not 0 <= volume <= VOLUME_MAX:
        raise BadInput(f"a volume is from 0 to {VOLUME_MAX}, not {volume}")
    return volume.to_bytes(NUMBER_BYTES, "big")


def added(volume: int, amount: int) -> int:
    """The volume with the amount added, at most `VOLUME_MAX`."""
    if not 0 <= amount <= VOLUME_MAX:
        raise BadInput(f"an amount is from 0 to {VOLUME_MAX}, not {amount}")
    return min(volume + amount, VOLUME_MAX)

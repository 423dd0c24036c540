"""The ten column families of signing, and which keys belong into which."""

from __future__ import annotations

from ledgerstone.signing.keys import Family, kind_of
from ledgerstone.signing.rocksdb import FamilyOptions

MIB = 1024 * 1024
_SMALL = FamilyOptions(write_buffer_bytes=MIB, cache_bytes=MIB)
_LARGE = FamilyOptions()

OPTIONS: dict[str, FamilyOptions] = {
    # Volumes were merged in the default family, before they had one of their own.
    Family.DEFAULT: FamilyOptions(write_buffer_bytes=MIB, cache_bytes=MIB, appends=True),
    Family.GROUP: _SMALL,
    Family.EVENT: _LARGE,
    Family.REQUEST: _LARGE,
    Family.PROPOSAL: FamilyOptions(write_buffer_bytes=16 * MIB, cache_bytes=16 * MIB),
    Family.REQUEST_INPUT: _LARGE,
    Family.SIGNER_ACK: _LARGE,
    Family.PARTIAL_SIG: _LARGE,
    Family.VOLUME: FamilyOptions(write_buffer_bytes=MIB, cache_bytes=MIB, appends=True),
    Family.SEEN: _LARGE,
}
"""How each family is kept; buffers and caches together take at most about 150 MiB."""


def family_of(key: bytes) -> Family | None:
    """The family that a key belongs into; None for the default one and for keys of others."""
    kind = kind_of(key)
    return None if kind is None or kind.family is Family.DEFAULT else kind.family

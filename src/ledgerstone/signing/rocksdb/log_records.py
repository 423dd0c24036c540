"""The records of RocksDB's logs (`*.log`, `MANIFEST-*`): torn by a crash, or damaged.

    file    blocks of 32 KiB; the last one may be shorter
    block   records, then fewer than 7 bytes that nothing uses
    record  CRC (4 bytes), length of the payload (2), type (1), payload

RocksDB compares the CRC of each record that it reads. At three headers it compares none, takes the
header for the end of a log that a crash has torn, and drops the rows behind it without an error:

- the payload is longer than what is left of a last block that is shorter than 32 KiB;
- type and length are zero, as in space that was allocated and never written;
- the type is that of a record in a reused log file, and the log number in the record differs from
  the number of this log.

A flipped bit in the header of a good record makes each of them. So these headers, and only these,
are looked at here: RocksDB reports any other damage, and the walk over a large log stays cheap.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from ledgerstone.errors import StoreCorrupt

BLOCK_BYTES = 32 * 1024
CURRENT = "CURRENT"
"""The file by which RocksDB recognises a database; it names the manifest."""

SEARCHED_BYTES_MAX = 4 * 1024 * 1024
"""How much is compared with CRCs while a complete record is looked for behind a torn one: the bytes
of a value may look like many headers."""

_LENGTH_AND_TYPE = struct.Struct("<HB")
_CRC_BYTES = 4
_HEADER_BYTES = 7
_PLAIN_TYPES = range(1, 5)
"""A whole record; the first, a middle and the last part of one."""
_REUSED_TYPES = frozenset({5, 6, 7, 8, 11, 131})
"""Types of records that hold the number of their log, also those of newer versions."""
_REUSED_HEADER_BYTES = 11
_CRC_MASK = 0xA282EAD8


def check_logs(folder: Path) -> None:
    """StoreCorrupt if RocksDB would take damage in a log of the database for a torn end."""
    for file in (_manifest(folder), *sorted(folder.glob("*.log"))):
        at = _damage(file)
        if at is not None:
            raise StoreCorrupt(
                f"{file}: the record at byte {at} is damaged, and rows behind it would be lost",
                hint="restore a checkpoint or a backup into a new folder",
            )


def _manifest(folder: Path) -> Path:
    try:
        name = (folder / CURRENT).read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        name = ""
    # RocksDB reports a name that is damaged; it may be any text.
    return folder / name if name.startswith("MANIFEST-") and "\0" not in name else folder / CURRENT


def _damage(file: Path) -> int | None:
    try:
        with file.open("rb") as log:
            return damaged_at(log)
    except FileNotFoundError:
        # The process that has it open replaced it, or it is missing: opening says which.
        return None


def damaged_at(log: BinaryIO) -> int | None:
    """The position of a damaged header at which RocksDB would end without an error.

    A process may be writing the log: nothing is read behind a block that was short.
    """
    start = 0
    last = False
    while not last:
        block = log.read(BLOCK_BYTES)
        last = len(block) < BLOCK_BYTES
        at = _unread(block)
        if at is not None:
            if start == at == 0 and _is_of_reused_log(block):
                # The rest of its former use follows: nothing tells it from damage.
                return None
            rest = block[at:] if last else block[at:] + log.read()
            return None if _is_torn(rest, last=last) else start + at
        start += len(block)
    return None


def _unread(block: bytes) -> int | None:
    """The position of the header at which RocksDB stops to read the block and compares no CRC."""
    size = len(block)
    last = size - _HEADER_BYTES
    at = 0
    while at <= last:
        length, kind = _LENGTH_AND_TYPE.unpack_from(block, at + _CRC_BYTES)
        if kind in _REUSED_TYPES or (kind == 0 == length):
            return at
        following = at + _HEADER_BYTES + length
        if following > size:
            # In a whole block RocksDB reports it.
            return at if size < BLOCK_BYTES else None
        at = following
    return None


def _is_of_reused_log(block: bytes) -> bool:
    length, kind = _LENGTH_AND_TYPE.unpack_from(block, _CRC_BYTES)
    size = _REUSED_HEADER_BYTES + length
    return kind in _REUSED_TYPES and _complete(block, 0, sizes=range(size, size + 1))


def _is_torn(rest: bytes, *, last: bool) -> bool:
    """Whether the rest of a file is what a crash leaves: the begin of one record, or zeros.

    - A record that is complete is damaged: its CRC fits with another length.
    - A complete record behind it shows the same.
    """
    length, kind = _LENGTH_AND_TYPE.unpack_from(rest, _CRC_BYTES)
    if kind == 0 == length:
        return not rest[_CRC_BYTES:].strip(b"\0")
    if kind in _REUSED_TYPES or not last:
        return False
    if _complete(rest, 0, sizes=range(_HEADER_BYTES, len(rest) + 1)):
        return False
    left = SEARCHED_BYTES_MAX
    for at in range(1, len(rest) - _HEADER_BYTES + 1):
        length, kind = _LENGTH_AND_TYPE.unpack_from(rest, at + _CRC_BYTES)
        size = _HEADER_BYTES + length
        if kind in _PLAIN_TYPES and at + size <= len(rest) and left > 0:
            left -= size
            if _complete(rest, at, sizes=range(size, size + 1)):
                return False
    return True


def _complete(data: bytes, at: int, *, sizes: range) -> bool:
    """Whether the CRC of the record at `at` fits, if the record has one of these sizes."""
    masked = int.from_bytes(data[at : at + _CRC_BYTES], "little")
    rotated = (masked - _CRC_MASK) & 0xFFFFFFFF
    # The CRC before its bits are inverted at the end.
    wanted = ~(rotated >> 17 | rotated << 15) & 0xFFFFFFFF
    crc = 0xFFFFFFFF
    table = _CRC_TABLE
    first = at + sizes.start
    for position, byte in enumerate(data[at + _CRC_BYTES + 2 : at + sizes[-1]], at + _HEADER_BYTES):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        if crc == wanted and position >= first:
            return True
    return False


def _crc_table() -> tuple[int, ...]:
    """Of CRC-32C (Castagnoli)."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE = _crc_table()

"""Contents for tests of files: bytes that differ everywhere, and their hash."""

from __future__ import annotations

import hashlib
import random


def content(size: int, seed: int = 1) -> bytes:
    """So many bytes, the same for the same seed."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - it keeps no secret


def mixed(slices: list[tuple[int, bytes]], seed: int) -> list[tuple[int, bytes]]:
    """The slices in another order, the same for the same seed."""
    return random.Random(seed).sample(slices, len(slices))  # noqa: S311 - it keeps no secret


def hash_of(data: bytes) -> str:
    """The id of a file with this content."""
    return hashlib.sha256(data).hexdigest()


def cut(data: bytes, size: int) -> list[tuple[int, bytes]]:
    """The slices of a content, by number."""
    return [(at // size, data[at : at + size]) for at in range(0, len(data), size)]

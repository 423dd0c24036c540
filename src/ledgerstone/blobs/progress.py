"""How far an upload is: slices, bytes, percent, rate and the time that is left."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A blob at one moment.

    - `total_size` is None while the size of what is appended is not known.
    - `slice_size` is the size of each slice but the last; None: slices are appended in order.
    - `elapsed_ms` is the time since its upload began, or since this process continued it.
    """

    file_id: str
    total_size: int | None
    mime: str | None = None
    slice_size: int | None = None
    slices: int = 0
    bytes: int = 0
    completed: bool = False
    elapsed_ms: int = 0

    @property
    def slices_total(self) -> int | None:
        """How many slices it has when it is whole, where that is known."""
        if self.slice_size is None or self.total_size is None:
            return None
        return slices_of(self.total_size, self.slice_size)

    @property
    def whole(self) -> bool:
        """Whether every byte is there; only a completed one was compared with its hash."""
        return self.completed or self.bytes == self.total_size

    @property
    def percent(self) -> float | None:
        """How much of it is there, where its size is known."""
        if self.completed or self.total_size == 0:
            return 100.0
        return None if self.total_size is None else 100 * self.bytes / self.total_size

    @property
    def bytes_per_second(self) -> float | None:
        """How fast it came; None before any time has passed."""
        return self.bytes * 1000 / self.elapsed_ms if self.elapsed_ms > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate, where that can be told."""
        rate = self.bytes_per_second
        if self.total_size is None or not rate:
            return None
        return 0.0 if self.completed else (self.total_size - self.bytes) / rate


def slices_of(total_size: int, slice_size: int) -> int:
    """How many slices a content has."""
    return -(-total_size // slice_size)

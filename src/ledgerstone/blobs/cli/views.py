"""Files as people and programs see them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table

from ledgerstone.blobs.progress import Progress
from ledgerstone.console import output
from ledgerstone.console.output import Text

SHOWN_CHARS = 16


def facts(blob: Progress) -> dict[str, object]:
    """A file for programs."""
    found = msgspec.structs.asdict(blob)
    rate = {"bytes_per_second": blob.bytes_per_second, "seconds_left": blob.seconds_left}
    return found | {"percent": blob.percent} | rate


def one(blob: Progress) -> RenderableType:
    """A file for people."""
    return output.pairs(
        {
            "file": Text(blob.file_id),
            "size": Text(decimal(blob.bytes)),
            "type": Text(blob.mime or "not said"),
            "state": Text(_state(blob)),
        }
    )


def table(found: Sequence[Progress]) -> Table:
    """Files, one in a row, by the beginnings of their ids: a whole one does not fit in a line."""
    made = output.table("Files", "file", "size", "state", "left", "type", numbers=("size", "left"))
    for blob in found:
        left = blob.seconds_left if not blob.completed else None
        size = blob.total_size if blob.total_size is not None else blob.bytes
        made.add_row(
            Text(blob.file_id[:SHOWN_CHARS]),
            decimal(size),
            _state(blob),
            "" if left is None else output.lasting(left * 1000),
            Text(blob.mime or ""),
        )
    return made


def verdict(checked: int, damaged: Sequence[str]) -> RenderableType:
    """What was found when files were compared with their hashes."""
    if not damaged:
        return Text(f"{checked:,} checked, all as their hashes say")
    lines = [f"{len(damaged):,} of {checked:,} files are damaged; restore them from a backup:"]
    return Text("\n".join([*lines, *damaged]))


def _state(blob: Progress) -> str:
    if blob.completed:
        return "complete"
    if blob.percent is None:
        return f"{decimal(blob.bytes)} so far"
    return f"{blob.percent:.0f} %"

"""The picture of signing's results: inserts side by side, reads as they spread."""

from __future__ import annotations

from pathlib import Path

from bench.pictures import OTHERS, OURS, bars, boxes, picture
from bench.report import Report


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    rates = [m for m in found.measurements if m.unit == "1/s"]
    reads = [m for m in found.measurements if m.unit == "ms"]
    names = [m.case.removeprefix("insert ") for m in rates]
    colors = [OTHERS if name == "driver" else OURS for name in names]
    with picture(path, inches=(11, 3.2)) as (left, right):
        bars(left, rates, names, colors)
        left.set_title("Acknowledged inserts a second: median and range")
        boxes(right, reads, [m.case for m in reads])
        right.set_title("Quartiles, 1st to 99th percentile")

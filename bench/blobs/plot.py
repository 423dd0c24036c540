"""The picture of the results of files: what is written and read a second."""

from __future__ import annotations

from pathlib import Path

from bench.pictures import OTHERS, OURS, bars, picture
from bench.report import Report


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    with picture(path, inches=(11, 3.2)) as both:
        for axes, verb in zip(both, ("write", "read"), strict=True):
            rates = [m for m in found.measurements if m.unit == "MiB/s" and m.case.startswith(verb)]
            names = [m.case.removeprefix(f"{verb} ") for m in rates]
            bars(axes, rates, names, [OTHERS if name == "driver" else OURS for name in names])
            axes.set_title(f"MiB {verb}, a second: median and range")

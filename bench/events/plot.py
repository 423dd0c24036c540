"""The picture of the results of events: how many are imported, applied and appended a second."""

from __future__ import annotations

from pathlib import Path

from bench.pictures import OTHERS, OURS, bars, picture
from bench.report import Report

CASES = ("ingest", "per item")


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    with picture(path, inches=(11, 3.2)) as both:
        for axes, case in zip(both, CASES, strict=True):
            rates = [
                each
                for each in found.measurements
                if each.unit == "events/s" and each.case.startswith(case)
            ]
            names = [each.case.removeprefix(f"{case} ") for each in rates]
            bars(axes, rates, names, [OURS if name == "ledger" else OTHERS for name in names])
            axes.set_title(f"{case}, events a second: median and range")

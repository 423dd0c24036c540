"""The picture of messaging's results: rates and head lookups side by side."""

from __future__ import annotations

from pathlib import Path

from bench.pictures import OTHERS, OURS, bars, boxes, picture
from bench.report import Measurement, Report

THEIRS = ("client", "faststream-outbox")


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    rates = [m for m in found.measurements if m.unit == "1/s"]
    looks = [m for m in found.measurements if m.unit == "ms"]
    with picture(path, inches=(13, 5)) as (left, right):
        bars(left, rates, [m.case for m in rates], [_color(m) for m in rates])
        left.set_xlabel("messages a second")
        left.set_title("Ours in color: median and range")
        boxes(right, looks, [m.case.removeprefix("heads ") for m in looks])
        right.set_title("Claim and read heads: quartiles, 1 % to 99 %")


def _color(measurement: Measurement) -> str:
    return OTHERS if any(name in measurement.case for name in THEIRS) else OURS

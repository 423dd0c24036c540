"""The picture of the job ledger's results: drain rates, conditions and latencies side by side."""

from __future__ import annotations

from pathlib import Path

from bench.pictures import OTHERS, OURS, bars, boxes, picture
from bench.report import Measurement, Report


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    rates = [m for m in found.measurements if m.unit == "1/s"]
    waits = [m for m in found.measurements if _is_latency(m)]
    with picture(path, inches=(13, 6)) as (left, right):
        bars(left, rates, [f"{m.database}: {m.case}" for m in rates], [_color(m) for m in rates])
        left.set_xlabel("jobs a second")
        left.set_title("Ours in color: median and range")
        boxes(right, waits, [f"{m.database}: {m.case.removeprefix('latency ')}" for m in waits])
        right.set_title("Enqueue to start: quartiles, 1 % to 99 %")


def _color(measurement: Measurement) -> str:
    case = measurement.case
    return OURS if " ours" in case or case.startswith("condition") else OTHERS


def _is_latency(measurement: Measurement) -> bool:
    """One since the call; since the commit some are negative, which no such axis can show."""
    return measurement.unit == "ms" and not measurement.case.endswith("committed")

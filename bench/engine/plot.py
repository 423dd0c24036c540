"""The picture of the engine's results: drain rates side by side, wake-ups as they spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pictures import OTHERS, OURS, boxes, picture
from bench.report import Measurement, Report

COLORS = {"driver": OTHERS, "pump": OURS}
WIDTH = 0.36


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    wakes = [m for m in found.measurements if m.case.startswith("wake")]
    with picture(path, inches=(11, 4.2)) as (left, right):
        _draw_rates(left, [m for m in found.measurements if m.unit == "1/s"])
        boxes(right, wakes, [f"{m.database}, {m.case.removeprefix('wake ')}" for m in wakes])
        right.set_title("Idle wake-up: quartiles, 1st to 99th percentile")


def _draw_rates(axes: Any, measurements: list[Measurement]) -> None:
    databases = list(dict.fromkeys(m.database for m in measurements))
    for measurement in measurements:
        side = measurement.case.removeprefix("drain ")
        spread = measurement.spread
        at = databases.index(measurement.database) + (WIDTH / 2 if side == "pump" else -WIDTH / 2)
        axes.bar(at, spread.median, WIDTH, color=COLORS[side])
        reach = [[spread.median - spread.least], [spread.most - spread.median]]
        axes.errorbar(at, spread.median, yerr=reach, color="#333333", capsize=4)
    axes.set_xticks(range(len(databases)), databases)
    axes.set_ylabel("chores a second")
    axes.set_title("Drain: the bare driver (grey) and the pump, median and range")

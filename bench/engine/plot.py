"""The picture of the engine's results: drain rates side by side, wake-ups as they spread."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.report import Measurement, Report

COLORS = {"driver": "#9aa5b1", "pump": "#1f6f8b"}
WIDTH = 0.36
DOTS_PER_INCH = 110


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    # Only the benchmarks have it, so the checks cannot know its types.
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (rates, wakes) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    _draw_rates(rates, [m for m in found.measurements if m.unit == "1/s"])
    _draw_wakes(wakes, [m for m in found.measurements if m.case.startswith("wake")])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


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


def _draw_wakes(axes: Any, measurements: list[Measurement]) -> None:
    names = [f"{m.database}, {m.case.removeprefix('wake ')}" for m in measurements]
    axes.boxplot(
        [m.values for m in measurements], vert=False, tick_labels=names, whis=(1, 99), sym=""
    )
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds, logarithmic")
    axes.set_title("Idle wake-up: quartiles, 1st to 99th percentile")

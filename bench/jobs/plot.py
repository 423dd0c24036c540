"""The picture of the job ledger's results: drain rates, conditions and latencies side by side."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.report import Measurement, Report

OURS, OTHERS = "#1f6f8b", "#9aa5b1"
DOTS_PER_INCH = 110
TICKS_MAX = 6


def draw(found: Report, path: Path) -> None:
    """Write the picture."""
    # Only the benchmarks have it, so the checks cannot know its types.
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (rates, latencies) = pyplot.subplots(1, 2, figsize=(13, 6), layout="constrained")
    _draw_rates(rates, [m for m in found.measurements if m.unit == "1/s"])
    _draw_latencies(latencies, [m for m in found.measurements if _is_latency(m)])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def _draw_rates(axes: Any, measurements: list[Measurement]) -> None:
    names = [f"{m.database}: {m.case}" for m in measurements]
    spreads = [m.spread for m in measurements]
    colors = [_color(m) for m in measurements]
    reach = [[s.median - s.least for s in spreads], [s.most - s.median for s in spreads]]
    axes.barh(names, [s.median for s in spreads], color=colors)
    axes.errorbar(
        [s.median for s in spreads], names, xerr=reach, fmt="none", color="#333333", capsize=3
    )
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=TICKS_MAX)
    axes.set_xlabel("jobs a second")
    axes.set_title("Ours in color: median and range")


def _color(measurement: Measurement) -> str:
    case = measurement.case
    return OURS if " ours" in case or case.startswith("condition") else OTHERS


def _is_latency(measurement: Measurement) -> bool:
    """One since the call; since the commit some are negative, which no such axis can show."""
    return measurement.unit == "ms" and not measurement.case.endswith("committed")


def _draw_latencies(axes: Any, measurements: list[Measurement]) -> None:
    names = [f"{m.database}: {m.case.removeprefix('latency ')}" for m in measurements]
    axes.boxplot(
        [m.values for m in measurements], vert=False, tick_labels=names, whis=(1, 99), sym=""
    )
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds, logarithmic")
    axes.set_title("Enqueue to start: quartiles, 1 % to 99 %")

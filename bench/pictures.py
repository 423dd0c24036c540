"""What the pictures of all rooms are drawn with."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.report import Measurement

OURS, OTHERS = "#1f6f8b", "#9aa5b1"
DOTS_PER_INCH = 110
TICKS_MAX = 6


@contextmanager
def picture(path: Path, *, inches: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """Two pairs of axes side by side, written as a picture at the end of the block."""
    # Only the benchmarks have it, so the checks cannot know its types.
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, 2, figsize=inches, layout="constrained")
    yield axes[0], axes[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def bars(
    axes: Any, measurements: Sequence[Measurement], names: Sequence[str], colors: Sequence[str]
) -> None:
    """Medians as bars from left to right, the first on top, each with its range."""
    spreads = [m.spread for m in measurements]
    medians = [spread.median for spread in spreads]
    reach = [[s.median - s.least for s in spreads], [s.most - s.median for s in spreads]]
    axes.barh(names, medians, color=colors)
    axes.errorbar(medians, names, xerr=reach, fmt="none", color="#333333", capsize=3)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=TICKS_MAX)


def boxes(axes: Any, measurements: Sequence[Measurement], names: Sequence[str]) -> None:
    """Milliseconds as boxes from left to right, the first on top; nothing for none."""
    if not measurements:
        return
    axes.boxplot(
        [m.values for m in measurements], vert=False, tick_labels=names, whis=(1, 99), sym=""
    )
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds, logarithmic")

"""The command line of a room: measure, show, write down."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench import prepare, report
from bench.report import Report

WIDTH_MIN = 140

Say = Callable[[str], None]
Measured = Callable[[float, Sequence[str], Say], Report]
"""Measures some of the parts at a scale, and says how it goes."""


def run(
    room: str,
    *,
    parts: Sequence[str],
    measured: Measured,
    words: str,
    draw: Callable[[Report, Path], None],
) -> None:
    """Measure what is asked for; a whole run at full scale replaces the section in RESULTS.md."""
    parser = argparse.ArgumentParser(prog=f"bench.{room}", description=__doc__)
    parser.add_argument("--scale", type=report.scale, default=1.0, help="0.1 is ten times smaller")
    parser.add_argument("--only", choices=parts, action="append", help="measure only this one")
    parser.add_argument("--json", type=Path, default=report.FOLDER / "results" / f"{room}.json")
    parser.add_argument("--plot", type=Path, help="draw the picture there, whatever the scale")
    arguments = parser.parse_args()
    prepare.ensure()
    chosen = arguments.only or list(parts)
    found = measured(arguments.scale, chosen, Console(stderr=True).print)
    report.write_json(found, arguments.json)
    if arguments.plot is not None:
        draw(found, arguments.plot)
    if arguments.scale >= report.SCALE_RECORDED_MIN and chosen == list(parts):
        plot = report.PLOTS / f"{room}.png"
        draw(found, plot)
        report.write_section(found, words, plot)
    # A table that is cut to the width of a pipe nobody can read.
    report.show(found, Console(width=max(Console().width, WIDTH_MIN)))

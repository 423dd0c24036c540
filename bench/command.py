"""The command line of a room: measure, show, write down."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench import prepare, report
from bench.machine import ROOT
from bench.report import Report

WIDTH_MIN = 140
SMALLER = ROOT / ".leftovers" / "bench"
"""The results of runs that are too small, or too few parts, to be recorded."""

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
    """Measure what is asked for; a whole run at full scale replaces what is recorded of the room.

    That is its section in RESULTS.md, its picture and its JSON. The JSON of another run goes to
    `SMALLER`.
    """
    parser = argparse.ArgumentParser(prog=f"bench.{room}", description=__doc__)
    parser.add_argument("--scale", type=report.scale, default=1.0, help="0.1 is ten times smaller")
    parser.add_argument("--only", choices=parts, action="append", help="measure only this one")
    parser.add_argument("--json", type=Path, help="write the JSON there")
    parser.add_argument("--plot", type=Path, help="draw the picture there, whatever the scale")
    arguments = parser.parse_args()
    prepare.ensure()
    chosen = arguments.only or list(parts)
    found = measured(arguments.scale, chosen, Console(stderr=True).print)
    recorded = is_recorded(found, chosen, parts)
    to = arguments.json or (report.FOLDER / "results" if recorded else SMALLER) / f"{room}.json"
    report.write_json(found, to)
    Console(stderr=True).print(f"the results are in {to}")
    if arguments.plot is not None:
        draw(found, arguments.plot)
    if recorded:
        plot = report.PLOTS / f"{room}.png"
        draw(found, plot)
        report.write_section(found, words, plot)
    # A table that is cut to the width of a pipe nobody can read.
    report.show(found, Console(width=max(Console().width, WIDTH_MIN)))


def is_recorded(found: Report, chosen: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a run replaces what is recorded: one of all parts that has measured enough."""
    return found.scale >= report.SCALE_RECORDED_MIN and list(chosen) == list(parts)

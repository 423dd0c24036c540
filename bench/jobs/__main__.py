"""`python -m bench.jobs --scale 1`: measure, show, write down."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from bench import prepare, report
from bench.jobs.databases import PLACES
from bench.jobs.plot import draw
from bench.jobs.run import WORDS, Plan, measured

WIDTH_MIN = 140


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="bench.jobs", description=__doc__)
    parser.add_argument("--scale", type=report.scale, default=1.0, help="0.1 is ten times smaller")
    parser.add_argument("--only", choices=PLACES, action="append", help="measure only this one")
    parser.add_argument("--json", type=Path, default=report.FOLDER / "results" / "jobs.json")
    parser.add_argument("--plot", type=Path, help="draw the picture there, whatever the scale")
    arguments = parser.parse_args()
    prepare.ensure()
    chosen = arguments.only or list(PLACES)
    console = Console(stderr=True)
    found = measured(Plan.of(arguments.scale), chosen, say=console.print)
    report.write_json(found, arguments.json)
    if arguments.plot is not None:
        draw(found, arguments.plot)
    if arguments.scale >= report.SCALE_RECORDED_MIN and chosen == list(PLACES):
        plot = report.PLOTS / "jobs.png"
        draw(found, plot)
        report.write_section(found, WORDS, plot)
    out = Console()
    # A table that is cut to the width of a pipe nobody can read.
    report.show(found, Console(width=max(out.width, WIDTH_MIN)))


if __name__ == "__main__":
    main()

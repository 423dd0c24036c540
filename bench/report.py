"""What a benchmark leaves behind: a table, its figures, a JSON file, a section of RESULTS.md.

The section of a room stands between two marks and is written anew; the rest of the page is kept.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.machine import Commit, Machine, this_commit, this_machine
from bench.measure import Spread

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "RESULTS.md"
PLOTS = FOLDER / "plots"
RESULTS_HEAD = """\
# Results

Written by `make bench ROOM=…` at scale 1 or larger; each section says on which machine and commit.
Both sides of a ratio were measured in turn on one machine; numbers of different runs do not
compare.
"""

SCALE_MAX = 1000.0
SCALE_RECORDED_MIN = 1.0
"""A smaller run is too rough to replace a real one in RESULTS.md."""


def scale(text: str) -> float:
    """The scale that a command line gives."""
    number = float(text)
    if not 0 < number <= SCALE_MAX:
        message = f"a scale is more than 0 and at most {SCALE_MAX:g}"
        raise argparse.ArgumentTypeError(message)
    return number


class Unit(Enum):
    """What a figure counts; the unit also says on which side of its bound it should be."""

    RATIO = "ratio"
    """Of ours to theirs: at least its bound."""
    MS = "ms"
    """Milliseconds: at most its bound."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number that is promised, and its bound."""

    unit: Unit
    name: str
    value: float
    bound: float

    @property
    def line(self) -> str:
        """As it is printed: `ratio NAME VALUE` or `ms NAME VALUE`."""
        return f"{self.unit.value} {self.name} {self.value:.3f}"

    @property
    def met(self) -> bool:
        at_least = self.unit is Unit.RATIO
        return self.value >= self.bound if at_least else self.value <= self.bound

    @property
    def promise(self) -> str:
        return f"{'at least' if self.unit is Unit.RATIO else 'at most'} {self.bound:g}"


class AtMost(Figure, frozen=True, kw_only=True):
    """A ratio that should be small: of times, not of rates."""

    @property
    def met(self) -> bool:
        return self.value <= self.bound

    @property
    def promise(self) -> str:
        return f"at most {self.bound:g}"


class Observed(Figure, frozen=True, kw_only=True):
    """A ratio that is told and of which nothing is promised."""

    bound: float = 0.0

    @property
    def promise(self) -> str:
        return "nothing"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One case that was measured, with every value of it."""

    database: str
    case: str
    unit: str
    values: list[float]
    note: str = ""

    @property
    def spread(self) -> Spread:
        return Spread.of(self.values)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run of a benchmark found."""

    room: str
    scale: float
    date: str
    commit: Commit
    machine: Machine
    versions: dict[str, str]
    databases: dict[str, dict[str, str]]
    settings: dict[str, Any]
    figures: list[Figure]
    measurements: list[Measurement]


def report(
    *,
    room: str,
    scale: float,
    versions: dict[str, str],
    databases: dict[str, dict[str, str]],
    settings: dict[str, Any],
    figures: list[Figure],
    measurements: list[Measurement],
) -> Report:
    """A report of here and now."""
    return Report(
        room=room,
        scale=scale,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=this_commit(),
        machine=this_machine(),
        versions=versions,
        databases=databases,
        settings=settings,
        figures=figures,
        measurements=measurements,
    )


COLUMNS = ("database", "case", "unit", "median", "range", "p99", "count", "note")


def show(found: Report, console: Console) -> None:
    """The table, then the figures, one a line and nothing after them."""
    table = Table(title=f"{found.room} at scale {found.scale:g}, commit {found.commit}")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in _WORDS else "right")
    for measurement in found.measurements:
        table.add_row(*_cells(measurement))
    console.print(table)
    for figure in found.figures:
        # Not through the console: a figure is one line, however narrow the terminal.
        print(figure.line)


_WORDS = {"database", "case", "unit", "note"}


def _cells(measurement: Measurement) -> tuple[str, ...]:
    spread = measurement.spread
    return (
        measurement.database,
        measurement.case,
        measurement.unit,
        _written(spread.median),
        f"{_written(spread.least)} to {_written(spread.most)}",
        _written(spread.p99),
        str(spread.count),
        measurement.note,
    )


def _written(number: float) -> str:
    """Three digits that say something."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004


def write_json(found: Report, path: Path) -> None:
    """Everything, every single value included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def write_section(found: Report, words: str, plot: Path, page: Path = RESULTS) -> None:
    """Put the room's section into RESULTS.md, in the place of the one that was there."""
    begin, end = f"<!-- {found.room}: begin -->", f"<!-- {found.room}: end -->"
    section = "\n".join([begin, _section(found, words, plot.relative_to(page.parent)), end])
    text = page.read_text() if page.exists() else RESULTS_HEAD
    old = re.compile(re.escape(begin) + ".*?" + re.escape(end), flags=re.DOTALL)
    if old.search(text):
        text = old.sub(lambda _: section, text)
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    page.write_text(text)


def _section(found: Report, words: str, plot: Path) -> str:
    parts = [
        f"## {found.room}",
        words,
        f"{found.date}, commit {found.commit}, scale {found.scale:g}.",
        f"- {found.machine}, {_listed(found.versions)}",
        *(f"- {name}: {_listed(facts)}" for name, facts in found.databases.items()),
        _markdown(
            ("figure", "value", "promised", "kept"),
            [
                (f"`{f.name}`", f"{f.value:.3f}", f.promise, "yes" if f.met else "**no**")
                for f in found.figures
            ],
        ),
        f"![{found.room}]({plot.as_posix()})",
        _markdown(COLUMNS, [_cells(measurement) for measurement in found.measurements]),
    ]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ")


def _listed(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Where the time of a run goes: per file, per fixture and per start of a server.

    make test-times

A plugin (`-p tests.harness.times`). The processor time of a test is that of its pytest process and
of everything below it; what a server does that all workers share is in the last table.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ledgerstone.testing.server import STARTED

ROWS_MAX = 40
WHOLE = Path(__file__).resolve().parents[2] / ".leftovers" / "times.tsv"
"""All rows: kind, name, how often, seconds, processor seconds."""
TICKS = os.sysconf("SC_CLK_TCK")
NAME = "ledgerstone_times"


class Spent(NamedTuple):
    """How often, and how long by the clock and by the processor."""

    times: int = 0
    seconds: float = 0.0
    processor: float = 0.0

    def plus(self, other: Spent) -> Spent:
        times, seconds, processor = other
        return Spent(self.times + times, self.seconds + seconds, self.processor + processor)


Table = dict[str, Spent]


class Times:
    """What one process measured; the worker of a distributed run hands it to the first process."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {
            title: defaultdict(Spent) for title in ("file", "test", "fixture", "server start")
        }

    def add(self, title: str, row: str, spent: Spent) -> None:
        table = self.tables[title]
        table[row] = table.get(row, Spent()).plus(spent)

    def merge(self, tables: dict[str, dict[str, list[float]]]) -> None:
        for title, table in tables.items():
            for row, spent in table.items():
                self.add(title, row, Spent(int(spent[0]), spent[1], spent[2]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with_children = _stopwatch(_processor_seconds)
        answer = yield
        spent = with_children()
        self.add("file", item.nodeid.partition("::")[0], spent)
        self.add("test", item.nodeid, spent)
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        elapsed = _stopwatch(time.process_time)
        answer = yield
        self.add("fixture", fixturedef.argname, elapsed())
        return answer

    def emit(self, record: logging.LogRecord) -> bool:
        """A filter of the logger that tells of servers; it sees every record and keeps it."""
        if record.msg is STARTED:
            name, seconds = record.args  # type: ignore[misc]
            self.add("server start", str(name), Spent(1, float(str(seconds)), 0.0))
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            # A worker sends plain lists and numbers only.
            output[NAME] = {
                title: {row: list(spent) for row, spent in table.items()}
                for title, table in self.tables.items()
            }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.merge(getattr(node, "workeroutput", {}).get(NAME, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        WHOLE.parent.mkdir(exist_ok=True)
        WHOLE.write_text(
            "".join(
                f"{title}\t{row}\t{times}\t{seconds:.2f}\t{processor:.2f}\n"
                for title, table in self.tables.items()
                for row, (times, seconds, processor) in sorted(table.items())
            )
        )
        for title, table in self.tables.items():
            total = Spent()
            for spent in table.values():
                total = total.plus(spent)
            terminalreporter.section(f"time per {title}")
            terminalreporter.line(_row(title, "times", "seconds", "processor"))
            ordered = sorted(table.items(), key=lambda row: -max(row[1].processor, row[1].seconds))
            for row, spent in [*ordered[:ROWS_MAX], ("all", total)]:
                figures = (f"{spent.seconds:.1f}", f"{spent.processor:.1f}")
                terminalreporter.line(_row(row, str(spent.times), *figures))


def pytest_configure(config: pytest.Config) -> None:
    """Measure this process."""
    times = Times()
    config.pluginmanager.register(times, NAME)
    logger = logging.getLogger("ledgerstone.testing")
    logger.setLevel(logging.INFO)
    logger.addFilter(times.emit)


def _stopwatch(processor: Callable[[], float]) -> Callable[[], Spent]:
    began, used = time.monotonic(), processor()
    return lambda: Spent(1, time.monotonic() - began, processor() - used)


def _processor_seconds() -> float:
    """Of this process and all below it, ended or not."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(int(entry.name))
        # utime, stime, and those of the children that were waited for.
        used[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS
    unvisited, total = [os.getpid()], 0.0
    while unvisited:
        pid = unvisited.pop()
        total += used.get(pid, 0.0)
        unvisited += children[pid]
    return total


def _row(name: str, *figures: str) -> str:
    return f"{name:<60}" + "".join(f"{figure:>12}" for figure in figures)

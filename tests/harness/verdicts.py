"""The verdict table of `make torture`: each test, how long it took and whether it passed."""

from __future__ import annotations

import pytest

MARK = "torture"


class Verdicts:
    """Collects what the tests report, in the process that the user looks at."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._figures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._seconds[test] = self._seconds.get(test, 0.0) + report.duration
        if report.failed:
            self._failed.add(test)
        if report.user_properties:
            self._figures[test] = ", ".join(
                f"{value} {name}" for name, value in report.user_properties
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("verdicts")
        for test, seconds in sorted(self._seconds.items()):
            verdict = "BROKEN" if test in self._failed else "kept"
            figures = self._figures.get(test, "")
            terminalreporter.line(
                f"{verdict:<8}{seconds:>8.1f} s  {test.removeprefix('tests/')}  {figures}",
                red=test in self._failed,
            )
        kept = len(self._seconds) - len(self._failed)
        terminalreporter.line(f"{kept} of {len(self._seconds)} kept their promises")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the whole run."""
    config.pluginmanager.register(Verdicts(), "ledgerstone_verdicts")

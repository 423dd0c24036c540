"""What is logged of slow statements and of outages: little, however much happens."""

from __future__ import annotations

import logging

import pytest

from ledgerstone.errors import StoreUnavailable
from ledgerstone.store.connections.outage import CALM_SECONDS, Outage
from ledgerstone.store.sql.measure import SLOW_LOG_SECONDS, SLOW_NAMES_MAX, Measure


class CallWatch:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> CallWatch:
    return CallWatch()


def test_slow_statements_are_collected(watch: CallWatch, caplog: pytest.LogCaptureFixture) -> None:
    """The first slow statement is logged at once, all others of a minute in one line."""
    measure = Measure(slow_ms=50, monotonic=watch)

    for second in range(int(SLOW_LOG_SECONDS) + 1):
        watch.now = second
        measure.note("jobs.claim", 0.1 + second / 1000, read=second)
        measure.note("jobs.settle", 0.02)
        measure.note("jobs.extend", 0.06)

    assert said(caplog) == [
        "slow statements (more than 50 ms): jobs.claim took 100 ms (0 read, 0 written)",
        (
            "slow statements (more than 50 ms):"
            " jobs.claim 60 times, up to 160 ms (60 read, 0 written);"
            " jobs.extend 60 times, up to 60 ms (0 read, 0 written)"
        ),
    ]


def test_what_was_undone_is_not_counted(watch: CallWatch) -> None:
    """Rows that a savepoint has undone count no longer as written."""
    measure = Measure(slow_ms=50, monotonic=watch)

    measure.note("jobs.settle", 0.01, written=5)
    measure.take_back("jobs.settle", written=3)

    assert measure.by_name()["jobs.settle"].written == 2


def test_what_is_left_is_logged_at_the_end(
    watch: CallWatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is logged when the database is closed; a line names only so many statements."""
    measure = Measure(slow_ms=50, monotonic=watch)

    for number in range(SLOW_NAMES_MAX + 4):
        measure.note(f"statement.{number}", 0.1 + number)
    measure.log_slow()
    measure.log_slow()

    first, rest = said(caplog)
    assert "statement.0 took" in first
    assert rest.count("statement.") == SLOW_NAMES_MAX
    assert rest.endswith("; and 3 other statements")


def test_an_outage_is_two_lines(watch: CallWatch, caplog: pytest.LogCaptureFixture) -> None:
    """One line when it begins, one when it is over, also if some calls succeed meanwhile."""
    outage = Outage("mysql://ann:***@db/shop", watch)
    outage.failed(StoreUnavailable("was never reached"))
    outage.succeeded()

    for _ in range(20):
        outage.failed(StoreUnavailable("connection\n refused"))
        outage.succeeded()
        watch.now += CALM_SECONDS / 2
    watch.now += CALM_SECONDS / 2
    outage.succeeded()
    outage.succeeded()

    assert said(caplog) == [
        "mysql://ann:***@db/shop is out of reach: connection refused",
        "mysql://ann:***@db/shop is back after 10.5 s; 20 calls failed",
    ]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

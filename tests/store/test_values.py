"""Values of the store that need no server: deadlines, outages, hooks, names, moments, groups."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import create_engine

from ledgerstone.errors import BadInput
from ledgerstone.store.connections import deadlines
from ledgerstone.store.connections.commit_hooks import CommitHooks, hooks_of
from ledgerstone.store.connections.deadlines import Deadline, keepalives
from ledgerstone.store.connections.outage import CALM_SECONDS, Outage
from ledgerstone.store.dialects.mysql.groups import size_of
from ledgerstone.store.dialects.postgres.wire import wired
from ledgerstone.store.sql.names import check_text
from ledgerstone.store.sql.timestamps import moment_at, moment_of
from ledgerstone.testing.clock import ManualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_worker_that_stops_twice(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first end counts, unless a later call asks for a sooner one; no wait is below zero."""
    monkeypatch.setattr(deadlines, "monotonic", clock.monotonic)
    deadline = Deadline(30)
    waits = [deadline.within(60)]

    for seconds in (10, 60, 5):
        deadline.end_within(seconds)
        waits.append(deadline.within(60))
    clock.advance(6)
    waits.append(deadline.within(60))

    assert waits == pytest.approx([60, 10, 10, 5, 0])
    assert deadline.over
    assert deadline.passed(clock.monotonic())


def test_how_long_a_call_may_take(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends when it takes longer than the setting says, and not at that moment."""
    monkeypatch.setattr(deadlines, "monotonic", clock.monotonic)
    deadline, began = Deadline(30), clock.monotonic()

    clock.advance(30)
    just = deadline.passed(began)
    clock.advance(0.01)

    assert (just, deadline.passed(began), deadline.over) == (False, True, False)


def test_keepalives_of_the_url() -> None:
    """The URL's own keepalives stay, and the others are ours."""
    found = keepalives({"keepalives_idle": "99", "host": "x"})

    assert "keepalives_idle" not in found
    assert set(found) == set(keepalives({})) - {"keepalives_idle"}


def test_one_line_for_an_outage(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """One line when it begins and one when it is over; a short success ends nothing."""
    outage = Outage("the store", clock.monotonic)
    told = []
    with caplog.at_level(logging.WARNING):
        outage.failed(OSError("never reached"))
        told.append(len(caplog.records))
        outage.succeeded()
        for _ in range(3):
            outage.failed(OSError("gone"))
        told.append(len(caplog.records))
        outage.succeeded()
        told.append(len(caplog.records))
        clock.advance(CALM_SECONDS)
        outage.succeeded()
        outage.succeeded()

    words = [record.getMessage() for record in caplog.records]
    assert told == [0, 1, 1]
    assert words == [
        "the store is out of reach: gone",
        "the store is back after 1.0 s; 3 calls failed",
    ]


def test_hooks_of_a_transaction() -> None:
    """The first hook of a name runs, once; a rollback forgets hooks and notes."""
    ran: list[str] = []
    hooks = CommitHooks()
    for words in ("first", "second"):
        hooks.add("order", lambda words=words: ran.append(words))  # type: ignore[misc]

    hooks.finish()
    hooks.finish()

    assert ran == ["first"]
    with create_engine("sqlite://").connect() as connection:
        joined = hooks_of(connection)
        connection.begin()
        joined.notes["places"] = [1]
        joined.add("order", lambda: ran.append("undone"))
        connection.rollback()
        forgotten = dict(hooks_of(connection).notes)
        connection.begin()
        connection.commit()
    assert forgotten == {}
    assert ran == ["first"]


@pytest.mark.parametrize("words", ["a\ud800", "\udfff", "\ud83d\udd25", "a\0b"])
def test_half_a_character(words: str) -> None:
    """Half of a surrogate pair is no text, from the first of them to the last; nor is NUL."""
    with pytest.raises(BadInput, match="characters that are no text"):
        check_text(words, "a name")

    check_text("\ud7ff\ue000", "a name")


def test_moments() -> None:
    """Whatever zone a database answers in, the moment is the same, and it is within bounds."""
    zone = timezone(timedelta(hours=5, minutes=30))
    answers: list[datetime | str] = [
        NOON,
        NOON.astimezone(zone),
        NOON.replace(tzinfo=None),
        "2026-01-01 12:00:00",
    ]

    assert [moment_of(each) for each in answers] == [NOON] * 4
    assert {moment_of(each).tzinfo for each in answers} == {UTC}
    assert moment_at(round(NOON.timestamp() * 1000)) == NOON
    assert (moment_at(2**62).year, moment_at(-(2**62)).year) == (9999, 1)


def test_what_is_written_for_postgresql() -> None:
    """Parameters are numbered by their names, per cent signs single; NUL is left to the driver."""
    text = "SELECT %(b)s, %(a)s, %(b)s, '100 %%'"

    assert wired(text, {"a": True, "b": None}) == (
        b"SELECT $1, $2, $1, '100 %'",
        [None, b"true"],
    )
    assert wired("SELECT %(a)s", {"a": "x\0y"}) is None
    assert wired("SELECT %(a)s", {"a": object()}) is None


@pytest.mark.parametrize(
    ("groups", "rows_max", "size"), [(9, 100, 1), (10, 50, 10), (10, 49, 1), (250, 10_000, 100)]
)
def test_groups_of_one_statement(groups: int, rows_max: int, size: int) -> None:
    """A statement reads as many groups as there are, and no more rows than it may."""
    assert size_of([("p", 5)] * groups, rows_max=rows_max) == size

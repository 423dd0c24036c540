"""`ledgerstone schedules`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from ledgerstone.jobs.schedules.rows import job_schedule
from ledgerstone.jobs.schedules.schedules import Schedules
from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from tests.cli.program import COLUMNS, Program

NAME = "nightly"


def put(ledger: Ledger, name: str = NAME, cron: str = "30 2 1 1 *", **options: Any) -> None:
    options = {"time_zone": "Europe/Berlin"} | options
    ledger.run(lambda tx: Schedules(tx, ledger.kinds).put(name, "report", cron, **options))


def test_it_lists_them(program: Program, home: Home, ledger: Ledger) -> None:
    """Next and last runs are told by the clocks of the zone and by how far away they are."""
    put(ledger)
    put(ledger, "paused")
    with ledger.transaction() as tx:
        Schedules(tx, ledger.kinds).trigger(NAME)
        Schedules(tx, ledger.kinds).pause("paused")
        hour_ago = job_schedule.c.last_at_ms - 3 * 3_600_000
        tx.execute(update(job_schedule).values(last_at_ms=hour_ago))

    shown = program.run("--url", home.url, "schedules")
    told = program.run("--url", home.url, "schedules", "--json").json

    assert shown.code == 0
    assert "-01-01 02:30" in shown.out
    assert "CET" in shown.out
    for words in ("3 h ago", "in ", "paused", "never", "30 2 1 1 *", "Europe/Berlin", "report"):
        assert words in shown.out
    one, other = told["schedules"]
    assert one["schedule"]["name"] == NAME
    assert one["next"].endswith("-01-01T02:30:00+01:00")
    assert one["schedule"]["next_at"].endswith("-01-01T01:30:00Z")
    assert one["next_in_ms"] > 0
    assert one["last_ms_ago"] >= 3 * 3_600_000
    assert (other["next"], other["last"]) == (None, None)
    assert other["paused_ms_ago"] >= 0


def test_it_fits_a_narrow_terminal(program: Program, home: Home, ledger: Ledger) -> None:
    """No line is wider than 80 columns, with long names and zones; markup in a name is text."""
    put(ledger, "[red]" + "x" * 180, time_zone="America/Argentina/Buenos_Aires")

    shown = program.run("--url", home.url, "schedules")

    assert max(map(len, shown.out.splitlines())) <= COLUMNS
    assert "[red]" in shown.out


def test_it_lists_page_by_page(program: Program, home: Home, ledger: Ledger) -> None:
    """A cursor leads from one page to the next."""
    for name in ("a", "b", "c"):
        put(ledger, name)
    arguments = ("--url", home.url, "schedules", "list", "--limit", "2", "--json")

    first = program.run(*arguments).json
    second = program.run(*arguments, "--cursor", first["next"]).json

    names = [found["schedule"]["name"] for page in (first, second) for found in page["schedules"]]
    assert names == ["a", "b", "c"]
    assert second["next"] is None


def test_the_cursor_stays_in_one_piece(program: Program, home: Home, ledger: Ledger) -> None:
    """However long it is, it can be copied from one line."""
    for name in ("n" * 100, "o" * 100):
        put(ledger, name)

    shown = program.run("--url", home.url, "schedules", "list", "--limit", "1")
    (cursor,) = re.findall(r"^more: the same with --cursor (\S+)$", shown.out, re.MULTILINE)
    rest = program.run("--url", home.url, "schedules", "list", "--cursor", cursor, "--json").json

    assert [found["schedule"]["name"] for found in rest["schedules"]] == ["o" * 100]


def test_there_are_none(program: Program, home: Home, ledger: Ledger) -> None:
    """Without schedules it says so."""
    assert not ledger.kinds.all()
    assert program.run("--url", home.url, "schedules").out == "there are no schedules\n"
    assert program.run("--url", home.url, "schedules", "--json").json["schedules"] == []


def test_pause_and_resume(program: Program, home: Home, ledger: Ledger) -> None:
    """Paused, it has no next moment; resumed, it is told."""
    put(ledger)

    paused = program.run("--url", home.url, "schedules", "pause", NAME, "--json").json
    shown = program.run("--url", home.url, "schedules", "pause", NAME)
    resumed = program.run("--url", home.url, "schedules", "resume", NAME)

    assert paused["next"] is None
    assert paused["schedule"]["paused_at"] is not None
    assert shown.out == "nightly is paused\n"
    assert resumed.out.startswith("nightly is resumed; next ")


def test_trigger(program: Program, home: Home, ledger: Ledger) -> None:
    """Triggered, its job is enqueued, with who did it on record."""
    put(ledger)

    told = program.run("--url", home.url, "schedules", "trigger", NAME, "--by", "ann", "--json")
    shown = program.run("--url", home.url, "schedules", "trigger", NAME)

    with ledger.reading() as tx:
        job = tx.jobs.get(told.json["job_id"])
    assert (told.json["name"], job.type, job.requested_by) == (NAME, "report", "ann")
    assert shown.out.startswith("nightly is triggered: job ")


def test_remove(program: Program, home: Home, ledger: Ledger) -> None:
    """Removed, it is gone; a second time there is nothing to remove: exit 1."""
    put(ledger)

    first = program.run("--url", home.url, "schedules", "remove", NAME)
    second = program.run("--url", home.url, "schedules", "remove", NAME, "--json")

    assert (first.code, first.out) == (0, "nightly is removed\n")
    assert second.code == 1
    assert second.json["error"]["code"] == "not_found"


def test_a_zone_that_is_not_known_here(program: Program, home: Home, ledger: Ledger) -> None:
    """It is listed all the same, in UTC, and what is wrong is told."""
    put(ledger)
    with ledger.transaction() as tx:
        tx.execute(update(job_schedule).values(time_zone="Mars/Olympus"))

    shown = program.run("--url", home.url, "schedules")

    assert shown.code == 0
    assert "no time zone 'Mars/Olympus' is known here; told in UTC" in " ".join(shown.out.split())


def test_preview(program: Program) -> None:
    """The next moments of an expression are shown by the clocks of a zone, without a database."""
    arguments = ("schedules", "preview", "30 6 * * *", "--time-zone", "Asia/Tokyo")

    told = program.run(*arguments, "--count", "3", "--json").json
    shown = program.run(*arguments)

    moments = [datetime.fromisoformat(moment) for moment in told["moments"]]
    assert [moment.strftime("%H:%M %z") for moment in moments] == ["06:30 +0900"] * 3
    assert moments[2] - moments[0] == timedelta(days=2)
    assert timedelta() < moments[0] - datetime.now(UTC) + timedelta(minutes=5)
    assert shown.out.count("06:30 JST") == 5
    assert list(program.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("30 25 * * *",), "the hour of the cron expression '30 25 * * *' is wrong: '25'"),
        (("* * * *",), "a cron expression has 5 fields, '* * * *' has 4"),
        (("* * * * *", "--time-zone", "Mars"), "no time zone 'Mars' is known here"),
        (("* * * * *", "--count", "0"), "the number of moments is 1 to 1000, not 0"),
    ],
)
def test_a_bad_preview(program: Program, arguments: tuple[str, ...], words: str) -> None:
    """What is wrong is named; exit 1."""
    ended = program.run("schedules", "preview", *arguments)

    assert ended.code == 1
    assert f"error: {words}\n" in ended.err


def test_looking_makes_no_file(program: Program) -> None:
    """A database that is not there is not made by looking at its schedules."""
    ended = program.run("schedules")

    assert ended.code == 1
    assert "hint: run `ledgerstone migrate`" in ended.err
    assert list(program.folder.iterdir()) == []

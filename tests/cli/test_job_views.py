"""Jobs as people see them: the newest of a long history, narrow terminals, watching."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest

from ledgerstone.console import output
from ledgerstone.jobs import Job, Status, history
from ledgerstone.jobs.cli.views import Fitted
from ledgerstone.jobs.history import NEWEST_MAX
from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.cli.program import Program

REPORTS = 150
LINES = 16
ORGS = [f"{n}1111111-2222-3333-4444-55555555555{n}" for n in range(3)]


def declare(ledger: Ledger) -> None:
    @ledger.job("mail.send", max_attempts=1)
    def send(job: Job, to: str = "ann", lines: list[str] | None = None) -> None:
        for i in range(REPORTS):
            job.progress(i / REPORTS, f"line {i}")
        message = f"no letter box: {to}, {len(lines or [])} lines"
        raise ValueError(message)

    @ledger.job("note")
    def note(job: Job) -> dict[str, str]:
        job.progress(0.5, "halfway")
        return {"said": "done"}


def enqueued(ledger: Ledger, name: str, **options: Any) -> str:
    with ledger.transaction() as tx:
        return tx.jobs.enqueue(name, **options).id


def test_a_long_history_hides_no_end(program: Program, home: Home, ledger: Ledger) -> None:
    """Of a job with many reports its end and where it failed are shown; the reports are one row."""
    declare(ledger)
    job_id = enqueued(ledger, "mail.send")
    ledger.worker().tick()

    shown = program.run("--url", home.url, "jobs", "show", job_id)
    told = program.run("--url", home.url, "jobs", "show", job_id, "--json").json

    words = " ".join(shown.out.split())
    assert f"{REPORTS} reports from 0 %: attempt 1, 99 %, line {REPORTS - 1}" in words
    assert "failed → dead_letter" in words
    assert shown.out.rstrip().endswith("ValueError: no letter box: ann, 0 lines")
    assert len(told["events"]) == REPORTS + 4
    assert (told["earlier"], told["failed"]["next_status"]) == (0, "failed")


def test_what_came_earlier_is_counted(program: Program, home: Home, ledger: Ledger) -> None:
    """The newest are shown, the others counted, and the last error whatever came after it."""
    declare(ledger)
    job_id = enqueued(ledger, "mail.send")
    ledger.worker().tick()
    with ledger.transaction() as tx:
        tx.jobs.retry(job_id)
        told = [(job_id, history.detail(attempt=1, reason=f"no. {i}")) for i in range(600)]
        history.record(tx, told, Status.RUNNING, Status.RUNNING)

    shown = program.run("--url", home.url, "jobs", "show", job_id)
    facts = program.run("--url", home.url, "jobs", "show", job_id, "--json").json

    assert len(facts["events"]) == NEWEST_MAX
    assert facts["earlier"] == REPORTS + 4 + 1 + 600 - NEWEST_MAX
    assert facts["failed"]["detail"]["error"]["code"] == "ValueError"
    earlier = facts["earlier"] + NEWEST_MAX - 100
    assert f"{earlier} came earlier: `ledgerstone jobs events` lists all" in shown.out
    assert "no. 599" in shown.out
    assert "no. 499" not in shown.out
    assert "Traceback (most recent call last)" in shown.out


@pytest.mark.slow
def test_without_a_terminal_only_news_are_written(program: Program, embedded: Ledger) -> None:
    """Watching one job into a pipe tells it once, then what happens, then how it came out."""
    declare(embedded)
    job_id = enqueued(embedded, "note")

    with program.start("jobs", "watch", job_id) as watching:
        watching.says("queued; `ledgerstone jobs explain`")
        embedded.worker().tick()
        code = watching.ended()

    assert code == 0
    assert watching.said.count(f"job        {job_id}") == 1
    assert watching.said.count("Timeline") == 1
    assert watching.said.count("queued → running") == 1
    assert watching.said.count("running → succeeded") == 1
    assert re.search(r'result +\{ *\n +"said": "done"', watching.said)


def test_a_small_terminal_shows_the_newest(program: Program, embedded: Ledger) -> None:
    """Where not everything fits, the beginning of the job stays in sight, and the end of all."""
    declare(embedded)
    lines = [f"line {i}" for i in range(30)]
    job_id = enqueued(embedded, "mail.send", payload={"to": "bob", "lines": lines})
    embedded.worker().tick()

    with program.show("jobs", "watch", job_id, LINES=str(LINES)) as watching:
        code = watching.ended()

    # Before it is drawn a second time the cursor goes up.
    above, _, below = watching.said.partition("\x1b[1A")[0].partition("…")
    assert code == 1
    assert (above + below).count("\n") < LINES
    assert "dead_letter" in above
    assert "ValueError: no letter box: bob, 30 lines" in below


@pytest.mark.parametrize(
    ("head", "tail", "above", "below"),
    [(3, 3, 3, 3), (20, 3, 6, 3), (3, 20, 3, 6), (20, 20, 5, 4)],
    ids=["both fit", "a long head", "a long tail", "both long"],
)
def test_a_screen_is_filled(head: int, tail: int, above: int, below: int) -> None:
    """The beginning of the first part and the end of the second share the height there is."""
    file = StringIO()
    console = output.console(file=file, force_terminal=True, width=40, height=11, no_color=True)
    first = [f"a{i}" for i in range(head)]
    second = [f"b{i}" for i in range(tail)]

    console.print(Fitted("\n".join(first), "\n".join(second)))

    lines = [line.strip() for line in file.getvalue().splitlines()]
    cut = 0 if head + tail == above + below else 1
    assert lines[:above] == first[:above]
    assert lines[above + cut :] == second[-below:]
    assert len(lines) == above + cut + below <= 10


@pytest.mark.slow
def test_what_is_watched_follows_the_job(program: Program, embedded: Ledger) -> None:
    """On a terminal the screen is drawn again as the job goes on, and ends with it."""
    declare(embedded)
    job_id = enqueued(embedded, "note")

    with program.show("jobs", "watch", job_id) as watching:
        watching.says("queued")
        embedded.worker().tick()
        code = watching.ended()

    assert code == 0
    until(lambda: "succeeded" in watching.said)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [160, 100, 80, 64, 52, 40])
def test_a_list_is_readable_on_a_narrow_terminal(
    program: Program, embedded: Ledger, columns: int
) -> None:
    """With organisations and errors: ids and states in one piece, no line wider than it may be."""
    declare(embedded)
    ids = [enqueued(embedded, "mail.send", org=org) for org in ORGS]
    ids.append(enqueued(embedded, "note", delay_seconds=3600))
    embedded.worker().tick()

    shown = program.run("jobs", "list", COLUMNS=str(columns))

    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert all(any(job_id in line for line in lines) for job_id in ids)
    assert shown.out.count("dead_letter") == 3
    assert all(org in shown.out or f"…{org[-8:]}" in shown.out for org in ORGS)
    assert ("mail.send" in shown.out) is (columns != 52)
    assert ("ValueError" in shown.out) is (columns not in {52, 64})

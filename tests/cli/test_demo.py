"""`ledgerstone demo`: nothing is lost, nothing is done twice, nothing stays behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy import func, select

from ledgerstone.cli import demo
from ledgerstone.cli.demo_worker import TYPE
from ledgerstone.jobs.tables import job, job_event, job_key
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.store.schema.tables import worker
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.cli.program import COLUMNS, Program, Running

ITEMS = 600

pytestmark = pytest.mark.slow


def workers_of(program: Program, url: str = "") -> list[int]:
    """The worker processes of this test that still run."""
    marks = (url or str(program.folder), "ledgerstone.cli.demo_worker")
    commands = [
        (process.pid, " ".join(process.info["cmdline"] or ()))
        for process in psutil.process_iter(["cmdline"])
    ]
    return [pid for pid, command in commands if all(mark in command for mark in marks)]


@contextmanager
def stopped_at(program: Program, step: int) -> Iterator[Running]:
    """The demonstration, stopped after this step: a signal arrives before it goes on."""
    with program.start("demo", LEDGERSTONE_FAILPOINTS=f"demo.step=stop@{step}") as running:
        process = psutil.Process(running.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, what=f"step {step}")
        yield running


def test_it_tells_a_story(program: Program) -> None:
    """For people: every step, the numbers, one item's history, on 80 columns; exit 0."""
    ended = program.run("demo", "--items", ITEMS)

    assert ended.code == 0, ended.err
    assert f"1. {ITEMS} jobs were accepted" in ended.out
    assert "worker 1 was killed with -9" in ended.out
    assert "the lease of worker" in ended.out
    assert "20 waited; when all had come, 20 could be read, each once" in ended.out
    assert "nothing lost, nothing done twice" in ended.out
    assert max(map(len, ended.out.splitlines())) <= COLUMNS
    assert list(program.folder.iterdir()) == []
    assert workers_of(program) == []


def test_its_numbers_are_right(program: Program, home: Home) -> None:
    """Only numbers with --json; nothing lost or doubled; the given database is left as it was."""
    program.run("--url", home.url, "migrate")

    ended = program.run("demo", "--url", home.url, "--items", ITEMS, "--json")

    numbers = ended.json
    assert ended.code == 0, ended.err
    assert numbers["accepted"] == numbers["done"] == ITEMS
    assert numbers["duplicates_answered"] == ITEMS // 20
    assert numbers["conflicts_refused"] == 1
    assert numbers["rescued_after_kill"] > 0
    assert numbers["rescued_after_pause"] > 0
    assert numbers["late_settlements_refused"] > 0
    assert numbers["lost"] == numbers["done_twice"] == 0
    with Ledger(settings=Settings.load(url=home.url, environ={})) as ledger, ledger.reading() as tx:
        left = [
            tx.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (job, job_event, job_key, worker)
        ]
    assert left == [0, 0, 0, 0]
    assert workers_of(program, home.url) == []


def test_what_is_kept_can_be_looked_at(program: Program) -> None:
    """--keep keeps the file and says how to look at it."""
    ended = program.run("demo", "--items", 500, "--keep")
    url = ended.out.rpartition("--url ")[2].split()[0]

    told = program.run("--url", url, "status", "--json").json

    listed = program.run("--url", url, "jobs", "list", "--limit", 1000, "--json").json
    assert [each["status"] for each in listed["jobs"]] == ["succeeded"] * 500
    assert sorted(worker["state"] for worker in told["workers"])[-2:] == ["stopped", "stopped"]


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_ctrl_c_leaves_nothing(program: Program, step: int) -> None:
    """Ctrl-C at any step: exit 130, no process and no file stays."""
    with stopped_at(program, step) as running:
        running.interrupt()
        running.resume()
        code = running.ended()

    assert code == 130
    assert f"{step}. " in running.said
    assert "Traceback" not in running.said
    assert list(program.folder.iterdir()) == []
    until(lambda: workers_of(program) == [], what="the end of the workers")


def test_a_start_is_not_interrupted_half_way() -> None:
    """Ctrl-C while processes are started is obeyed when all of them are known."""
    started = []

    def start() -> None:
        with demo._uninterrupted():
            signal.raise_signal(signal.SIGINT)
            started.append("one")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["one"]


def test_sigterm_leaves_nothing(program: Program) -> None:
    """SIGTERM: exit 143, no process and no file stays."""
    with stopped_at(program, 3) as running:
        running.terminate()
        running.resume()
        code = running.ended()

    assert code == 143
    assert list(program.folder.iterdir()) == []
    until(lambda: workers_of(program) == [], what="the end of the workers")


def test_it_does_not_touch_work_of_others(program: Program) -> None:
    """Jobs of the database, also of the type of the demonstration, stay as they are."""
    url = f"sqlite:///{program.folder}/mine.db"
    with Ledger(settings=Settings.load(url=url, environ={})) as ledger:
        with ledger.transaction() as tx:
            ids = [tx.jobs.enqueue(name, key=name).id for name in ("mine", TYPE)]

        ended = program.run("demo", "--url", url, "--items", 500)

        assert ended.code == 0, ended.err
        with ledger.reading() as tx:
            rows = {row.id: (row.status.value, row.attempt) for row in tx.jobs.find().rows}
    assert rows == dict.fromkeys(ids, ("queued", 0))

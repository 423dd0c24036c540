"""`ledgerstone demo`: nothing is lost, nothing is done twice, nothing stays behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy import inspect

from ledgerstone import chores
from ledgerstone.cli import demo
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.cli.program import COLUMNS, Program, Running

ITEMS = 600

pytestmark = pytest.mark.slow


def workers_of(program: Program, url: str = "") -> list[int]:
    """The worker processes of this test that still run."""
    marks = (url or str(program.folder), "ledgerstone.testing.work")
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
    assert f"1. {ITEMS} items were accepted" in ended.out
    assert "worker 1 was killed with -9" in ended.out
    assert "the lease of worker" in ended.out
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
        assert not inspect(tx.connection).has_table("chore")
    assert workers_of(program, home.url) == []


def test_what_is_kept_can_be_looked_at(program: Program) -> None:
    """--keep keeps the file and says how to look at it."""
    ended = program.run("demo", "--items", 500, "--keep")
    url = ended.out.rpartition("--url ")[2].split()[0]

    told = program.run("--url", url, "status", "--json").json

    assert told["chores"]["done"] == 500
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
    """A database with chores to be done is refused, and its chores stay."""
    url = f"sqlite:///{program.folder}/mine.db"
    with Ledger(settings=Settings.load(url=url, environ={})) as ledger:
        chores.install(ledger.database)
        with ledger.transaction() as tx:
            tx.chores.enqueue("mine")

        ended = program.run("demo", "--url", url)

        assert ended.code == 1
        assert "error: there are 1 chores to be done in this database" in ended.err
        with ledger.reading() as tx:
            assert tx.chores.counts()[chores.Status.QUEUED] == 1

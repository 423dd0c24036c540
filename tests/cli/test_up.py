"""`ledgerstone up`: it starts, works, says what it does, and stops as it is told."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from sqlalchemy import select

from ledgerstone.cli.up import SAMPLE, TRY
from ledgerstone.jobs import JobRow
from ledgerstone.jobs import Status as JobStatus
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.store.schema.tables import leases
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import free_port
from ledgerstone.testing.servers import PrivatePostgres
from ledgerstone.testing.waiting import until
from tests import chores
from tests.chores import Chores, Status
from tests.cli.program import ROOT, Program

SAMPLE_FILE = ".ledgerstone/sample.db"
STARTED = "SIGTERM stops it"
SAMPLE_SOURCES = ["jobs:default", "outbox:local", "outbox:retry"]

SHOP = """
from ledgerstone import Ledger

ledger = Ledger("{url}")


@ledger.job("order.ship")
def ship(order: int) -> str:
    return f"shipped {{order}}"
"""

ENDLESS = """
import sys
from ledgerstone import Ledger
from tests import chores
from ledgerstone.console import logs
from ledgerstone.console.serving import serve
from ledgerstone.engine.source import Handler
from tests.chores.work import endless

def handle(claim):
    print("begun", flush=True)
    endless(claim)

logs.to_stderr(level="INFO")
with Ledger(sys.argv[1]) as ledger:
    serve(ledger, [chores.ChoreSource(Handler(handle))])
"""
"""What `up` does, with a handler that says that it has begun and does not end by itself."""


@contextmanager
def ledger_on(url: str) -> Iterator[Ledger]:
    with Ledger(settings=Settings.load(url=url, environ={})) as ledger:
        yield ledger


def job_of(ledger: Ledger, job_id: str) -> JobRow:
    with ledger.reading() as tx:
        return tx.jobs.get(job_id)


def lease_of(ledger: Ledger) -> str | None:
    """A duty that a worker has done."""
    with ledger.reading() as tx:
        found: str | None = tx.execute(select(leases.c.lease)).scalars().first()
    return found


def standing(ledger: Ledger, chore_id: str) -> chores.Chore:
    with ledger.reading() as tx:
        return Chores(tx).get(chore_id)


@pytest.mark.slow
def test_it_runs_your_code(program: Program, home: Home, ledger: Ledger) -> None:
    """With -A a job of the application is run, that is said; SIGTERM ends it with exit 0."""
    (program.folder / "shop.py").write_text(SHOP.format(url=home.url))
    with program.start("up", "-A", "shop:ledger") as running:
        running.says(STARTED)
        with ledger.transaction() as tx:
            job_id = tx.jobs.enqueue("order.ship", {"order": 7}).id
        until(lambda: job_of(ledger, job_id).status is JobStatus.SUCCEEDED)
        running.says("done 1, failed 0")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert job_of(ledger, job_id).result == "shipped 7"
    assert "stopped after" in running.said
    assert "Traceback" not in running.said


@pytest.mark.slow
def test_it_handles_nothing_by_itself(program: Program, home: Home, ledger: Ledger) -> None:
    """Without -A no job and no message of the database is handled, and how to do it is said."""
    with ledger.transaction() as tx:
        job_id = tx.jobs.enqueue("order.ship", {"order": 7}).id
        chore_id = Chores(tx).enqueue("mine").id

    with program.start("--url", home.url, "up") as running:
        running.says("no handler runs here: name your code")
        running.says(STARTED)
        running.says("does schedules and retention")
        until(lambda: lease_of(ledger) is not None, what="the duties of a worker")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert "nothing was done" in running.said
    assert job_of(ledger, job_id).status is JobStatus.QUEUED
    assert standing(ledger, chore_id).status is Status.QUEUED


@pytest.mark.slow
def test_the_sample_shows_what_happens(program: Program) -> None:
    """Where nothing is named, what a second terminal enqueues and publishes is seen to happen."""
    with program.start("up") as running:
        running.says(STARTED)
        for words in TRY:
            ended = program.run(*shlex.split(words))
            assert ended.code == 0, ended.err
        running.says("hello, Ada")
        running.says('order.placed: {"order":7}')
        running.says("hello, customer")
        running.terminate()
        code = running.ended()

    told = running.said
    assert code == 0
    assert all(words in told for words in TRY)
    assert sorted(each.name for each in (program.folder / ".ledgerstone").glob("*.db")) == [
        "sample.db"
    ]


@pytest.mark.slow
def test_the_commands_of_the_sample_can_be_run(program: Program) -> None:
    """Also where it was started as `python -m ledgerstone`, each printed command is one."""
    program.be_a_module()
    with program.start("up") as running:
        running.says(STARTED)
        lines = [line for line in running.said.splitlines() if " -A " in line]
        commands = [line[line.index(sys.executable) :] for line in lines]
        for command in commands:
            program.command = shlex.split(command)
            ended = program.run()
            assert ended.code == 0, ended.err
        running.terminate()

    assert len(commands) == len(TRY)


@pytest.mark.slow
def test_a_ledger_at_the_default_is_not_the_samples(program: Program) -> None:
    """What lies in the database of the default settings is never handled by the sample."""
    program.run("migrate")
    program.run("jobs", "enqueue", "greeting.send", "--args", '{"name": "Ada"}')

    with program.start("up") as running:
        running.says("no handler runs here")
        running.says(STARTED)
        running.terminate()
        running.ended()

    (job,) = program.run("jobs", "list", "--json").json["jobs"]
    assert job["status"] == "queued"
    assert not (program.folder / SAMPLE_FILE).exists()


@pytest.mark.slow
def test_it_needs_nothing(program: Program) -> None:
    """Without any setting it makes an embedded database, readable by its owner only."""
    with program.start("up") as running:
        running.says(STARTED)
        running.interrupt()
        code = running.ended()

    assert code == 0
    assert (program.folder / SAMPLE_FILE).stat().st_mode & 0o777 == 0o600
    assert program.run("-A", SAMPLE, "migrate", "--check").code == 0


def test_it_signs_off(program: Program) -> None:
    """After a clean stop the worker is shown as stopped."""
    with program.start("up") as running:
        running.says(STARTED)
        running.interrupt()
        running.ended()

    told = program.run("-A", SAMPLE, "status", "--json").json

    assert [one["state"] for one in told["workers"]] == ["stopped"]


def test_it_ends_with_one_document(program: Program) -> None:
    """With --json, log lines go to stderr and the last word is one JSON document."""
    with program.start("up", "--json") as running:
        running.says(STARTED)
        running.terminate()
        code = running.ended()

    document = running.said[running.said.index("\n{") :]
    facts = msgspec.json.decode(document)
    assert code == 0
    assert (facts["state"], facts["done"], facts["sources"]) == ("stopped", 0, SAMPLE_SOURCES)


def test_it_logs_as_the_settings_say(program: Program) -> None:
    """With log.json every line is one JSON object."""
    with program.start("up", LEDGERSTONE_LOG_JSON="true") as running:
        running.says(STARTED)
        running.terminate()
        running.ended()

    lines = [msgspec.json.decode(line) for line in running.said.splitlines()]
    assert {line["level"] for line in lines} == {"INFO"}
    assert any(STARTED in line["message"] for line in lines)


@pytest.mark.slow
def test_it_has_a_screen(program: Program) -> None:
    """On a terminal it shows a live screen and still ends with exit 0."""
    with program.show("up") as running:
        running.says("Ctrl-C stops it", times=2)
        running.interrupt()
        code = running.ended()

    assert code == 0
    assert "stopped" in running.said
    assert STARTED not in running.said


@pytest.mark.slow
def test_the_second_signal_does_not_wait(program: Program, home: Home, ledger: Ledger) -> None:
    """The first signal waits for a handler, the second returns its chore, the attempt refunded."""
    program.command = [sys.executable, "-c", ENDLESS]
    program.environment["PYTHONPATH"] += f":{ROOT}"
    with ledger.transaction() as tx:
        chore_id = Chores(tx).enqueue("endless").id

    with program.start(home.url, LEDGERSTONE_ENGINE_GRACE_SECONDS="3600") as running:
        running.says("begun")
        running.interrupt()
        running.says("stopping: 1 running, for at most 3600 s")
        assert standing(ledger, chore_id).status is Status.RUNNING
        running.interrupt()
        code = running.ended()

    after = standing(ledger, chore_id)
    assert code == 0
    assert (after.status, after.attempt) == (Status.QUEUED, 0)
    assert "returned 1" in running.said


@pytest.mark.slow
def test_the_grace_period_has_an_end(program: Program, home: Home, ledger: Ledger) -> None:
    """A handler that outlasts the grace period is interrupted without a second signal."""
    program.command = [sys.executable, "-c", ENDLESS]
    program.environment["PYTHONPATH"] += f":{ROOT}"
    with ledger.transaction() as tx:
        chore_id = Chores(tx).enqueue("endless").id

    with program.start(home.url, LEDGERSTONE_ENGINE_GRACE_SECONDS="0.2") as running:
        running.says("begun")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert standing(ledger, chore_id).status is Status.QUEUED


@pytest.mark.slow
def test_a_server_is_migrated_only_if_allowed(program: Program, home: Home) -> None:
    """Where it may not migrate it refuses and says what to run; where it may, it starts."""
    refused = program.run("--url", home.url, "up", LEDGERSTONE_STORE_AUTO_MIGRATE="never")

    with program.start("--url", home.url, "up", LEDGERSTONE_STORE_AUTO_MIGRATE="always") as running:
        running.says(STARTED)
        running.terminate()
        code = running.ended()

    assert refused.code == 1
    assert "hint: run `ledgerstone migrate`" in refused.err
    assert code == 0


def test_two_may_start_at_once(program: Program, home: Home) -> None:
    """Two that start on the same empty database both come up."""
    always = {"LEDGERSTONE_STORE_AUTO_MIGRATE": "always"}

    with (
        program.start("--url", home.url, "up", **always) as one,
        program.start("--url", home.url, "up", **always) as other,
    ):
        for running in (one, other):
            running.says(STARTED)
        for running in (one, other):
            running.terminate()
        codes = [running.ended() for running in (one, other)]

    assert codes == [0, 0]


def test_a_database_out_of_reach_ends_the_start(program: Program) -> None:
    """Without a database it does not start: exit 4, for a supervisor to try again."""
    ended = program.run("--url", f"postgresql://127.0.0.1:{free_port()}/there", "up")

    assert ended.code == 4
    assert ended.err.startswith("error: ")


@pytest.mark.postgres
@pytest.mark.slow
def test_it_survives_its_database(program: Program) -> None:
    """One line says that the database is away, one that it is back; then work goes on."""
    with PrivatePostgres() as server:
        program.run("--url", server.url, "migrate")
        (program.folder / "shop.py").write_text(SHOP.format(url=server.url))
        with program.start("up", "-A", "shop:ledger") as running:
            running.says(STARTED)
            server.kill()
            running.says(" is out of reach: ")
            server.restart()
            running.says(" is back after ")
            with ledger_on(server.url) as ledger:
                with ledger.transaction() as tx:
                    job_id = tx.jobs.enqueue("order.ship", {"order": 7}).id
                until(lambda: job_of(ledger, job_id).status is JobStatus.SUCCEEDED)
            running.terminate()
            code = running.ended()

    assert code == 0

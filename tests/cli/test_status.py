"""`ledgerstone status`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import update

from ledgerstone.engine.source import Handler
from ledgerstone.engine.worker import Worker
from ledgerstone.engine.worker_rows import WorkerReport, sign_in
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger
from ledgerstone.store import leases
from ledgerstone.store.schema import revisions
from ledgerstone.store.schema.tables import worker
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from ledgerstone.testing.waiting import until
from tests import chores
from tests.chores.work import nothing
from tests.cli.program import COLUMNS, Program
from tests.harness.threads import signaled
from tests.harness.workers import started

PASSWORD = "hunter2"
WORKERS_MANY = 40
REPORT = WorkerReport(sources={}, running=0, waiting=0, prompt=True, duties={})


def idle_worker(ledger: Ledger) -> Worker:
    return ledger.worker(chores.ChoreSource(Handler(nothing)))


def test_it_shows_who_works(program: Program, home: Home, ledger: Ledger) -> None:
    """A living worker, its duties' leases and the jobs are shown; afterwards it is stopped."""
    with ledger.transaction() as tx:
        tx.jobs.enqueue("later", delay_seconds=3600)
    working = idle_worker(ledger)
    working.start()

    alive = program.run("--url", home.url, "status", "--json").json
    shown = program.run("--url", home.url, "status")
    working.stop()
    stopped = program.run("--url", home.url, "status", "--json").json

    (one,) = alive["workers"]
    assert (one["id"], one["state"]) == (working.id, "alive")
    assert [alive["jobs"][name] for name in ("queued", "running", "dead_letters")] == [1, 0, 0]
    assert alive["schema"]["current"] == revisions.newest()
    assert shown.code == 0
    assert f"…{working.id[-8:]}" in shown.out
    assert "alive" in shown.out
    assert stopped["workers"][0]["state"] == "stopped"


@pytest.mark.slow
def test_it_shows_abandoned_handlers(program: Program, home: Home, ledger: Ledger) -> None:
    """A handler that does not stop is counted with its worker until it ends, and not afterwards."""
    go = threading.Event()

    @ledger.job("stuck", timeout_seconds=0.05, max_attempts=1)
    def stuck() -> None:
        signaled(go)

    with ledger.transaction() as tx:
        tx.jobs.enqueue("stuck")
    engine = msgspec.structs.replace(ledger.settings.engine, notice_seconds=0.05, abandoned_max=8)
    working = Worker(ledger.database, [ledger.job_source()], engine)
    with started(working):
        counters = working.pumps[0].counters
        until(lambda: counters.abandoned == 1, what="the abandoned handler")
        ledger.run(lambda tx: sign_in(tx, working.id, working.report()))
        told = program.run("--url", home.url, "status", "--json").json
        shown = program.run("--url", home.url, "status").out
        go.set()
        until(lambda: counters.abandoned == 0, what="its end")
        ledger.run(lambda tx: sign_in(tx, working.id, working.report()))
        after = program.run("--url", home.url, "status").out

    assert [one["abandoned"] for one in told["workers"]] == [1]
    assert [one["running"] for one in told["workers"]] == [0]
    assert "abandoned" in shown
    assert "abandoned" not in after


def test_it_fits_a_narrow_terminal(program: Program, home: Home, ledger: Ledger) -> None:
    """No line is wider than 80 columns, with many workers and a long name of a lease."""
    with ledger.transaction() as tx:
        leases.acquire(tx, "a-lease-with-a-rather-long-name:" + "x" * 60, "owner", seconds=60)
        for _ in range(WORKERS_MANY):
            sign_in(tx, new_id(), REPORT)

    shown = program.run("--url", home.url, "status")
    told = program.run("--url", home.url, "status", "--json").json

    assert max(map(len, shown.out.splitlines())) <= COLUMNS
    assert "more (--json shows them)" in shown.out
    assert len(told["workers"]) == WORKERS_MANY


def test_a_worker_that_is_not_heard_of_is_silent(
    program: Program, home: Home, ledger: Ledger
) -> None:
    """One that was not seen for longer than a lease, and did not sign off, is silent."""
    with ledger.transaction() as tx:
        sign_in(tx, new_id(), REPORT)
        tx.execute(update(worker).values(seen_at_ms=worker.c.seen_at_ms - 3_600_000))

    told = program.run("--url", home.url, "status", "--json").json

    assert told["workers"][0]["state"] == "silent"
    assert told["workers"][0]["seen_ms_ago"] >= 3_600_000


def test_without_a_schema_it_says_what_to_do(program: Program, home: Home) -> None:
    """A database that was never migrated: exit 1 and what to run; nothing is changed."""
    if home.server is None:
        Path(home.url.removeprefix("sqlite:///")).touch()

    plain = program.run("--url", home.url, "status")
    machine = program.run("--url", home.url, "status", "--json")

    assert plain.code == 1
    first, hint = plain.err.splitlines()
    assert first == "error: Ledgerstone's tables are not in this database"
    assert hint.startswith("hint: run `ledgerstone migrate` with --url ")
    assert machine.json["error"]["code"] == "schema_missing"
    assert program.run("--url", home.url, "migrate", "--check").code == 3


def test_it_makes_no_file(program: Program) -> None:
    """A file that is not there is not made by looking at it."""
    ended = program.run("status")

    assert ended.code == 1
    assert "error: there is no file .ledgerstone/ledgerstone.db\n" in ended.err
    assert list(program.folder.iterdir()) == []


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_told(program: Program) -> None:
    """In a folder that cannot be written the error says so; no traceback."""
    program.run("--url", "sqlite:///ledger.db", "migrate")
    program.obey_modes()
    for path in program.folder.iterdir():
        path.chmod(0o400)
    program.folder.chmod(0o500)

    ended = program.run("--url", "sqlite:///ledger.db", "status")
    program.folder.chmod(0o700)

    assert ended.code == 1
    assert ended.err == (
        "error: cannot open ledger.db: Permission denied\nhint: name a file that can be written\n"
    )


@pytest.fixture(scope="module")
def locked_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that asks for passwords."""
    with PrivatePostgres(fsync=False) as server:
        server.psql("CREATE ROLE someone LOGIN PASSWORD 'right'")
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text("host all someone all scram-sha-256\n" + rules.read_text())
        server.psql("SELECT pg_reload_conf()")
        yield server


@pytest.mark.postgres
def test_a_wrong_password_is_not_printed(
    program: Program, locked_postgres: PrivatePostgres
) -> None:
    """A wrong password is refused as such, and shown nowhere, by no command."""
    url = f"postgresql://someone:{PASSWORD}@127.0.0.1:{locked_postgres.port}/postgres"

    ended = [
        program.run("--url", url, *arguments)
        for arguments in (["status"], ["-v", "status"], ["doctor"], ["up"], ["migrate", "--json"])
    ]

    assert [one.code for one in ended] == [1] * 5
    assert all("password authentication failed" in one.out + one.err for one in ended)
    assert all(PASSWORD not in one.out + one.err for one in ended)


@pytest.mark.postgres
def test_a_right_password_is_masked(program: Program, locked_postgres: PrivatePostgres) -> None:
    """The URL is shown with stars for its password."""
    url = f"postgresql://someone:right@127.0.0.1:{locked_postgres.port}/postgres"
    locked_postgres.psql("GRANT CREATE ON SCHEMA public TO someone")
    locked_postgres.psql("GRANT CREATE ON DATABASE postgres TO someone")
    program.run("--url", url, "migrate")

    plain = program.run("--url", url, "status")
    machine = program.run("--url", url, "status", "--json")

    assert plain.code == 0
    assert f"someone:***@127.0.0.1:{locked_postgres.port}/postgres" in plain.out
    assert machine.json["url"] == url.replace("right", "***")


@pytest.mark.mysql
def test_a_wrong_password_of_mariadb_is_not_printed(
    program: Program, quick_mariadb: PrivateMariaDB
) -> None:
    """As on PostgreSQL."""
    url = quick_mariadb.url.replace("root@", f"root:{PASSWORD}@")

    plain = program.run("--url", url, "status")
    verbose = program.run("--url", url, "-v", "doctor")

    assert (plain.code, verbose.code) == (1, 1)
    assert "Access denied" in plain.err
    assert PASSWORD not in plain.err + verbose.out + verbose.err


@pytest.mark.slow
def test_it_watches(program: Program) -> None:
    """--watch shows the screen again every second until Ctrl-C, which is exit 130."""
    program.run("migrate")

    with program.start("status", "--watch") as watching:
        watching.says(f"schema    {revisions.newest()}", times=2)
        watching.interrupt()
        code = watching.ended()

    assert code == 130
    assert "Traceback" not in watching.said


def test_it_watches_on_a_terminal(program: Program) -> None:
    """On a terminal the screen is drawn over itself, and stays when it ends."""
    program.run("migrate")

    with program.show("status", "--watch") as watching:
        watching.says("up to date", times=2)
        watching.interrupt()
        code = watching.ended()

    assert code == 130

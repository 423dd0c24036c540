"""`ledgerstone doctor`."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from ledgerstone.cli import checks
from ledgerstone.engine.worker_rows import WorkerReport, sign_in
from ledgerstone.ids import new_id
from ledgerstone.jobs.tables import job_event
from ledgerstone.ledger import Ledger
from ledgerstone.room import CheckStatus
from ledgerstone.store.dialects.sqlite import dialect as sqlite
from ledgerstone.store.leases import acquire
from ledgerstone.store.schema.tables import leases, worker
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import free_port
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePgBouncer, PrivatePostgres
from tests.cli.program import COLUMNS, Ended, Program

EVERYWHERE = {"settings", "server", "database", "wake-ups", "schema", "clock", "workers"}
ONLY_ON = {
    "sqlite": {"driver", "folder", "disk", "file", "journal_mode", "synchronous", "auto_vacuum"},
    "postgres": {"pooler", "fsync", "synchronous_commit", "isolation"},
    "mysql": {"innodb_flush_log_at_trx_commit", "sql_mode", "isolation", "max_allowed_packet"},
}
# The servers of quick tests do not wait for the disk, and a doctor must notice.
CARELESS = {
    "sqlite": {},
    "postgres": {"fsync": "problem", "synchronous_commit": "warning"},
    "mysql": {"innodb_flush_log_at_trx_commit": "warning"},
}
REPORT = WorkerReport(sources={}, running=0, waiting=0, prompt=True, duties={})
HOUR_MS = 3_600_000


def found(ended: Ended) -> dict[str, Any]:
    return {check["name"]: check for check in ended.json["checks"]}


@pytest.mark.usefixtures("ledger")
def test_it_looks_at_everything(program: Program, home: Home) -> None:
    """Each database is checked for what matters on it; what is careless is found, no more."""
    ended = program.run("--url", home.url, "doctor", "--json")

    names = found(ended)
    amiss = {name: one["verdict"] for name, one in names.items() if one["verdict"] != "ok"}
    assert EVERYWHERE | ONLY_ON[home.kind] | {"round trip"} <= set(names)
    assert amiss == CARELESS[home.kind]
    assert all(names[name]["todo"] for name in amiss)
    assert ended.code == ("problem" in amiss.values())


def test_it_says_what_to_do(program: Program) -> None:
    """For people: a verdict, what was found, what to do, on 80 columns; all ok is exit 0."""
    program.run("migrate")
    file = program.folder / ".ledgerstone" / "ledgerstone.db"

    sound = program.run("doctor")
    file.chmod(0o644)
    careless = program.run("doctor")

    assert (sound.code, careless.code) == (0, 0)
    assert "warnings 0, problems 0" in sound.out
    assert "mode 644: others can get at it" in careless.out
    assert "→ chmod 600 .ledgerstone/ledgerstone.db" in careless.out
    assert "warnings 1, problems 0" in careless.out
    assert max(map(len, careless.out.splitlines())) <= COLUMNS


def test_a_database_without_schema_is_a_problem(program: Program, home: Home) -> None:
    """A database that was never migrated is a problem, exit 1, and stays as it is."""
    if home.server is None:
        Path(home.url.removeprefix("sqlite:///")).touch()

    ended = program.run("--url", home.url, "doctor", "--json")

    assert ended.code == 1
    assert found(ended)["schema"]["verdict"] == "problem"
    assert found(ended)["schema"]["todo"].startswith("run `ledgerstone migrate` with --url ")
    assert program.run("--url", home.url, "migrate", "--check").code == 3


def test_it_makes_no_file(program: Program) -> None:
    """A file that is not there is a problem and is not made."""
    ended = program.run("doctor", "--json")

    assert ended.code == 1
    assert found(ended)["database"]["verdict"] == "problem"
    assert list(program.folder.iterdir()) == []


def test_a_server_out_of_reach_is_a_problem(program: Program) -> None:
    """What cannot be reached is one problem, and ends the examination."""
    ended = program.run("--url", f"postgresql://127.0.0.1:{free_port()}/there", "doctor", "--json")

    assert ended.code == 1
    assert [check["verdict"] for check in ended.json["checks"]] == ["ok", "problem"]
    assert ended.json["checks"][1]["todo"] == "check that the database is running and reachable"


def test_every_problem_of_the_settings_is_one(program: Program) -> None:
    """Settings that cannot be loaded are told problem by problem."""
    (program.folder / "ledgerstone.toml").write_text("[engine]\nlease_seconds = 0\nspeed = 9\n")

    ended = program.run("doctor", "--json")

    assert ended.code == 1
    assert ended.json["problems"] == 2
    assert "lease_seconds: 0" in ended.json["checks"][0]["found"]
    assert "speed: unknown" in ended.json["checks"][1]["found"]


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_a_problem(program: Program) -> None:
    """A folder without the right to write is found before the database is tried."""
    program.run("--url", "sqlite:///ledger.db", "migrate")
    program.obey_modes()
    program.folder.chmod(0o500)

    ended = program.run("--url", "sqlite:///ledger.db", "doctor", "--json")
    program.folder.chmod(0o700)

    assert ended.code == 1
    assert found(ended)["folder"]["verdict"] == "problem"


@pytest.mark.slow
def test_a_sqlite_that_can_corrupt_is_found(program: Program) -> None:
    """Without pysqlite3 the standard library's SQLite is judged by its version."""
    program.run("migrate")
    program.hide("pysqlite3")

    ended = program.run("doctor", "--json")

    sound = sqlite3.sqlite_version_info >= sqlite.VERSION_SOUND
    assert found(ended)["driver"]["verdict"] == ("ok" if sound else "warning")
    assert sqlite3.sqlite_version in found(ended)["driver"]["found"]
    assert ended.err.startswith("" if sound else "warning: SQLite ")
    assert "Traceback" not in ended.err


def test_a_file_that_never_shrinks_is_found(program: Program) -> None:
    """A file made by another program without incremental vacuum is a warning."""
    connection = sqlite3.connect(program.folder / "old.db")
    connection.execute("CREATE TABLE something (id INTEGER)")
    connection.close()
    program.run("--url", "sqlite:///old.db", "migrate")

    ended = program.run("--url", "sqlite:///old.db", "doctor", "--json")

    assert found(ended)["auto_vacuum"]["verdict"] == "warning"


def test_the_round_trip_leaves_nothing(program: Program, home: Home, ledger: Ledger) -> None:
    """The job that is tried is gone afterwards, and others are as they were."""
    with ledger.transaction() as tx:
        job_id = tx.jobs.enqueue("mine", key="mine").id

    ended = program.run("--url", home.url, "doctor", "--json")

    with ledger.reading() as tx:
        rows = tx.jobs.find().rows
        events = tx.execute(select(func.count()).select_from(job_event)).scalar_one()
    assert found(ended)["round trip"]["verdict"] == "ok"
    assert [(row.id, row.status.value, row.attempt) for row in rows] == [(job_id, "queued", 0)]
    assert events == 1


def test_work_without_workers_is_a_warning(program: Program, home: Home, ledger: Ledger) -> None:
    """Jobs that wait while no worker is alive: what to run is told."""
    with ledger.transaction() as tx:
        tx.jobs.enqueue("work")

    checked = found(program.run("--url", home.url, "doctor", "--json"))

    assert checked["workers"]["verdict"] == "warning"
    assert checked["workers"]["todo"] == "run `ledgerstone work -A MODULE:LEDGER` with your code"


def test_a_silent_worker_is_a_warning(program: Program, home: Home, ledger: Ledger) -> None:
    """A worker that was not heard of for an hour and did not sign off is told."""
    with ledger.transaction() as tx:
        sign_in(tx, new_id(), REPORT)
        tx.execute(update(worker).values(seen_at_ms=worker.c.seen_at_ms - HOUR_MS))

    checked = found(program.run("--url", home.url, "doctor", "--json"))

    assert checked["workers"]["verdict"] == "warning"
    assert checked["workers"]["found"] == "0 alive, 1 silent, 0 stopped"


def test_a_duty_that_nobody_does_is_a_warning(program: Program, home: Home, ledger: Ledger) -> None:
    """There is a worker, and yet the lease of a duty has been free for an hour."""
    with ledger.transaction() as tx:
        sign_in(tx, new_id(), REPORT)
        acquire(tx, "duty:something", "someone", seconds=60)
        tx.execute(update(leases).values(expires_at_ms=leases.c.expires_at_ms - HOUR_MS))

    checked = found(program.run("--url", home.url, "doctor", "--json"))

    assert checked["workers"]["verdict"] == "ok"
    assert checked["duties"]["found"] == "nobody does duty:something"


def test_a_clock_that_is_off_is_a_warning(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a second between the database's clock and this machine's is told."""
    look = checks._LOOKS["clock"]
    real = time.time

    right = list(look(ledger.database, ledger.settings))
    # Nobody knows when between two looks at the one clock the other was read.
    moment = real()
    monkeypatch.setattr("ledgerstone.cli.checks.time.time", lambda: moment - 5)
    (wrong,) = look(ledger.database, ledger.settings)

    assert [check.verdict for check in right] == [CheckStatus.OK]
    assert wrong.verdict is CheckStatus.WARNING
    seconds, _, rest = wrong.found.partition(" ")
    assert rest == "s from that of this machine"
    assert 4.9 <= float(seconds) <= 5 + real() - moment


@pytest.mark.pgbouncer
@pytest.mark.postgres
def test_a_pooler_is_noticed(program: Program, quick_postgres: PrivatePostgres) -> None:
    """Behind a pooler it is said, and that work is found by polling."""
    url = quick_postgres.create_database("pooled")
    program.run("--url", url, "migrate")

    with PrivatePgBouncer(quick_postgres) as pooler:
        checked = found(
            program.run("--url", f"{pooler.url.rpartition('/')[0]}/pooled", "doctor", "--json")
        )
    quick_postgres.drop_database("pooled")

    assert checked["pooler"]["found"].startswith("yes")
    assert checked["wake-ups"]["found"] == "by polling"


@pytest.mark.postgres
@pytest.mark.mysql
@pytest.mark.slow
@pytest.mark.parametrize("kind", [PrivatePostgres, PrivateMariaDB])
def test_a_careful_server_is_in_order(
    program: Program, kind: type[PrivatePostgres | PrivateMariaDB]
) -> None:
    """A server with its own defaults has nothing amiss."""
    with kind() as server:
        program.run("--url", server.url, "migrate")
        ended = program.run("--url", server.url, "doctor", "--json")

    assert (ended.code, ended.json["warnings"], ended.json["problems"]) == (0, 0, 0)


@pytest.mark.mysql
def test_bodies_fit_into_a_packet(program: Program, quick_mariadb: PrivateMariaDB) -> None:
    """A limit of the server that the largest allowed body would meet is told."""
    url = quick_mariadb.create_database("packets")
    program.run("--url", url, "migrate")

    fits = found(program.run("--url", url, "doctor", "--json"))
    large = {"LEDGERSTONE_STORE_BODY_BYTES_MAX": "8388608"}
    larger = program.run("--url", url, "doctor", "--json", **large)
    quick_mariadb.drop_database("packets")

    assert fits["max_allowed_packet"]["verdict"] == "ok"
    told = found(larger)["max_allowed_packet"]
    assert told["verdict"] == "warning"
    assert told["todo"] == "set it to 33,554,432, or store.body_bytes_max to 4,194,304"

"""`ledgerstone migrate`."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.store.schema import revisions
from ledgerstone.store.schema.columns import VERSION_TABLE
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import free_port
from ledgerstone.testing.servers import PrivatePostgres
from tests.cli.program import Program

UNKNOWN_REVISION = "9999"
DROPS = {
    "sqlite": ("DROP TRIGGER tg_job__moves", "DROP INDEX idx_job__due"),
    "postgres": ("DROP TRIGGER tg_job__moves ON job", "DROP INDEX idx_job__due"),
    "mysql": ("DROP TRIGGER tg_job__moves", "DROP INDEX idx_job__due ON job"),
}
_numbers = itertools.count(1)


def test_it_brings_the_schema_up_to_date(program: Program, home: Home) -> None:
    """From nothing to the newest revision, each step told; then there is nothing to do."""
    first = program.run("--url", home.url, "migrate")
    second = program.run("--url", home.url, "migrate")

    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith(f"nothing → {revisions.newest()}; applied:\n")
    assert "0001  ground floor\n" in first.out
    assert second.out == f"at {revisions.newest()}, nothing to do\n"


def test_it_tells_programs_what_it_did(program: Program, home: Home) -> None:
    """With --json it answers where the schema stood, where it is, and what was applied."""
    first = program.run("--url", home.url, "migrate", "--json").json
    second = program.run("--url", home.url, "migrate", "--json").json

    newest = revisions.newest()
    assert first["before"] is None
    assert first["after"] == newest
    assert newest in first["applied"]
    assert second == {"before": newest, "after": newest, "applied": [], "missing": [], "set_up": []}


def test_check_changes_nothing(program: Program, home: Home) -> None:
    """--check tells what is pending and is exit 3, again and again; after migrate it is exit 0."""
    checks = [program.run("--url", home.url, "migrate", "--check") for _ in range(2)]
    program.run("--url", home.url, "migrate")
    after = program.run("--url", home.url, "migrate", "--check")

    assert [check.code for check in checks] == [3, 3]
    assert all("0001  ground floor" in check.out for check in checks)
    assert (after.code, after.out) == (0, f"at {revisions.newest()}, up to date\n")


@pytest.mark.slow
def test_a_half_present_schema(program: Program, home: Home) -> None:
    """An index and a trigger that were dropped are named by --check and doctor, and made again."""
    program.run("--url", home.url, "migrate")
    _execute(home.url, *DROPS[home.kind])

    check = program.run("--url", home.url, "migrate", "--check")
    doctor = program.run("--url", home.url, "doctor", "--json")
    status = program.run("--url", home.url, "status")
    again = program.run("--url", home.url, "migrate")
    after = program.run("--url", home.url, "migrate", "--check")

    assert (check.code, doctor.code, again.code, after.code) == (3, 1, 0, 0)
    (schema,) = [one for one in doctor.json["checks"] if one["name"] == "schema"]
    for name in ("idx_job__due", "tg_job__moves"):
        assert f"\n  {name}\n" in check.out
        assert name in schema["found"]
        assert f"\n  {name}\n" in again.out
    assert "run `ledgerstone migrate`" in check.out
    assert "run `ledgerstone migrate`" in schema["todo"]
    assert status.code == 0 or "hint: run `ledgerstone migrate`" in status.err


@pytest.mark.slow
def test_a_table_that_was_dropped(program: Program, home: Home) -> None:
    """What commands advise leads to its name; --check, doctor and migrate say the same."""
    program.run("--url", home.url, "migrate")
    _execute(home.url, "DROP TABLE outbox_lane")

    status = program.run("--url", home.url, "status")
    doctor = program.run("--url", home.url, "doctor", "--json")
    told = [program.run("--url", home.url, "migrate", *rest) for rest in (["--check"], [])]

    assert "names the tables that were dropped" in status.err
    (schema,) = [one for one in doctor.json["checks"] if one["name"] == "schema"]
    assert schema["found"].endswith("has no outbox_lane")
    assert all("has no outbox_lane" in each.err for each in told)
    assert all(f"hint: {schema['todo']}" in each.err for each in told)


def test_check_makes_no_file(program: Program) -> None:
    """--check on an embedded database that is not there yet does not make it."""
    ended = program.run("migrate", "--check", "--json")

    assert ended.code == 3
    assert ended.json["current"] is None
    assert ended.json["pending"]
    assert list(program.folder.iterdir()) == []


def test_a_newer_schema_is_refused(program: Program, home: Home) -> None:
    """A database that a newer version migrated is left alone by every command."""
    program.run("--url", home.url, "migrate")
    _pretend_newer(home.url)

    for arguments in (["migrate"], ["migrate", "--check"], ["status"], ["up"]):
        ended = program.run("--url", home.url, *arguments)
        assert ended.code == 1
        assert f"the database is at revision {UNKNOWN_REVISION}" in ended.err
        assert "hint: update Ledgerstone\n" in ended.err
    doctor = program.run("--url", home.url, "doctor", "--json")
    assert doctor.code == 1
    (schema,) = [check for check in doctor.json["checks"] if check["name"] == "schema"]
    assert (schema["verdict"], schema["todo"]) == ("problem", "update Ledgerstone")


def _pretend_newer(url: str) -> None:
    _execute(url, f"UPDATE {VERSION_TABLE} SET version_num = '{UNKNOWN_REVISION}'")  # noqa: S608


def _execute(url: str, *statements: str) -> None:
    settings = Settings.load(url=url, environ={})
    with Ledger(settings=settings) as ledger, ledger.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_sql_connects_to_nothing(program: Program, kind: str) -> None:
    """--sql prints the migrations of any dialect, whatever the URL, without connecting."""
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere"

    plain = program.run("--url", url, "migrate", "--sql", "--dialect", kind)
    machine = program.run("--url", url, "migrate", "--sql", "--dialect", kind, "--json")

    assert plain.code == 0
    assert "CREATE TABLE IF NOT EXISTS leases" in plain.out
    assert machine.json == {"kind": kind, "since": None, "sql": plain.out}


def test_sql_is_for_the_database_of_the_url(program: Program) -> None:
    """Without --dialect the SQL is that of the URL's database."""
    assert "ENGINE=InnoDB" in program.run("--url", "mysql://there/db", "migrate", "--sql").out
    assert "UUID" in program.run("--url", "postgresql://there/db", "migrate", "--sql").out
    assert list(program.folder.iterdir()) == []


def test_sql_does_the_same_as_migrate(program: Program) -> None:
    """A database made from the printed SQL is up to date."""
    script = program.run("migrate", "--sql").out
    file = program.folder / "by_hand.db"
    with sqlite3.connect(file) as connection:
        connection.executescript(script)
    connection.close()

    ended = program.run("--url", f"sqlite:///{file}", "migrate", "--check")

    assert (ended.code, ended.out) == (0, f"at {revisions.newest()}, up to date\n")


def test_sql_since_a_revision(program: Program) -> None:
    """--since leaves out what was applied up to it; an unknown revision is refused."""
    rest = program.run("migrate", "--sql", "--since", revisions.newest())
    unknown = program.run("migrate", "--sql", "--since", UNKNOWN_REVISION)

    assert rest.code == 0
    assert "CREATE TABLE" not in rest.out
    assert unknown.code == 1
    assert unknown.err.startswith(
        f"error: no revision is called {UNKNOWN_REVISION}\nhint: known: 0001"
    )


def test_a_folder_that_cannot_be_made_is_told(program: Program) -> None:
    """Where the file cannot be made, the error names it; exit 1, no traceback."""
    (program.folder / "file").write_text("")

    ended = program.run("--url", f"sqlite:///{Path('file') / 'ledger.db'}", "migrate")

    assert ended.code == 1
    assert ended.err.startswith("error: cannot open file/ledger.db: ")
    assert "Traceback" not in ended.err


def test_what_is_no_database_is_told(program: Program) -> None:
    """A file that is something else is refused and left as it is."""
    file = program.folder / "letter.db"
    words = "Dear reader, this is a letter and not a database. " * 20
    file.write_text(words)

    ended = program.run("--url", f"sqlite:///{file}", "migrate")

    assert ended.code == 1
    assert ended.err.startswith("error: file is not a database\n")
    assert file.read_text() == words


@pytest.mark.postgres
def test_rls_keeps_organisations_apart(
    program: Program, quick_postgres: PrivatePostgres, shop: str
) -> None:
    """--rls migrates, separates and lets the role in; again it finds it done and says the same."""
    url = quick_postgres.create_database(shop)
    quick_postgres.psql(f"CREATE ROLE {shop}")

    first = program.run("--url", url, "migrate", "--rls", "--role", shop)
    second = program.run("--url", url, "migrate", "--rls", "--json")

    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith(f"nothing → {revisions.newest()}; applied:\n")
    assert "organisations are kept apart in job, " in first.out
    assert f"{shop} may act for one organisation at a time" in first.out
    assert second.json["applied"] == []
    assert "job_event" in second.json["separated"]["tables"]
    assert (second.json["separated"]["role"], second.json["separated"]["apart"]) == (None, [shop])


@pytest.mark.postgres
def test_rls_needs_a_role_that_is_there(
    program: Program, quick_postgres: PrivatePostgres, shop: str
) -> None:
    """A role that is not there is told, and how to make it, before anything is migrated."""
    url = quick_postgres.create_database(shop)

    ended = program.run("--url", url, "migrate", "--rls", "--role", shop)
    schema = program.run("--url", url, "migrate", "--check", "--json").json

    assert schema["current"] is None
    assert ended.code == 1
    assert ended.err.startswith(
        f"error: there is no role '{shop}'\nhint: make it first: CREATE ROLE"
    )


@pytest.fixture
def shop(quick_postgres: PrivatePostgres) -> Iterator[str]:
    """A name for a database and a role, both gone at the end."""
    name = f"shop_cli_{os.getpid()}_{next(_numbers)}"
    yield name
    quick_postgres.drop_database(name)
    quick_postgres.psql(f"DROP ROLE IF EXISTS {name}")


def test_rls_is_printed_too(program: Program) -> None:
    """With --sql the statements follow the migrations."""
    url = "postgresql://there/db"

    ended = program.run("--url", url, "migrate", "--sql", "--rls", "--role", "shop")

    migrations, _, further = ended.out.rpartition("BEGIN;\n")
    assert ended.code == 0
    assert migrations == program.run("--url", url, "migrate", "--sql").out
    assert "ALTER TABLE job ENABLE ROW LEVEL SECURITY;\n" in further
    assert 'GRANT SELECT, INSERT ON job_event TO "shop";\n' in further
    assert further.endswith("COMMIT;\n\n")


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
def test_rls_elsewhere_is_refused(program: Program, kind: str) -> None:
    """Where there is no row-level security it is told so, and nothing is migrated."""
    printed = program.run("migrate", "--rls", "--sql", "--dialect", kind)
    run = program.run("migrate", "--rls")

    assert (printed.code, run.code) == (1, 1)
    assert printed.err.startswith(f"error: row-level security is PostgreSQL's: {kind} has nothing")
    assert run.err.startswith("error: row-level security is PostgreSQL's: sqlite has nothing")
    assert list(program.folder.iterdir()) == []


@pytest.mark.parametrize(
    "options", [("--role", "shop"), ("--rls", "--check"), ("--check", "--sql")], ids=" ".join
)
def test_options_that_do_not_go_together(program: Program, options: tuple[str, ...]) -> None:
    """What makes no sense together is wrong usage: exit 2."""
    assert program.run("migrate", *options).code == 2

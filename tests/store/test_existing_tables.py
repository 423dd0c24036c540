"""What is in a database before a ledger is migrated there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, inspect, text
from sqlalchemy.exc import DBAPIError

from ledgerstone import Ledger, errors
from ledgerstone.room import Room
from ledgerstone.settings import Settings
from ledgerstone.store.schema import existing_tables, parts, revisions
from ledgerstone.store.schema.ddl import DdlStep
from ledgerstone.testing.fixtures import Home

PAUSE = (
    "outbox_pause (queue_name VARCHAR(9), paused_at_ms BIGINT, who VARCHAR(9),"
    " house INTEGER NOT NULL)"
)
VERSIONS = "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)"
EVERYTHING = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'",
    "postgresql": (  # noqa: S608 - no value of a user
        "SELECT 'table', relname, '' FROM pg_class WHERE relkind = 'r' AND relnamespace = {0}"
        " UNION SELECT 'index', relname, pg_get_indexdef(oid) FROM pg_class"
        " WHERE relkind = 'i' AND relname LIKE 'idx%' AND relnamespace = {0}"
        " UNION SELECT 'trigger', tgname, pg_get_triggerdef(pg_trigger.oid)"
        " FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
        " WHERE relnamespace = {0} AND NOT tgisinternal"
        " UNION SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc"
        " WHERE pronamespace = {0}"
    ).format("to_regnamespace(quote_ident(:place))"),
    "mysql": (
        "SELECT 'table', TABLE_NAME, '' FROM information_schema.TABLES WHERE TABLE_SCHEMA = :place"
        " UNION SELECT 'index', INDEX_NAME, GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX)"
        " FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = :place AND INDEX_NAME LIKE 'idx%' GROUP BY INDEX_NAME"
        " UNION SELECT 'trigger', TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS"
        " WHERE TRIGGER_SCHEMA = :place"
    ),
}
"""What a database has, by its own word and without the constraints."""


ASKING: Room[None, None] = Room(name="asking", tables=("asked",), migrations="asking.migrations")
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "asking_0001", None

def upgrade():
    if not sa.inspect(op.get_bind()).has_table("asked"):
        op.create_table("asked", sa.Column("id", sa.Integer, primary_key=True))
"""


@pytest.fixture
def bare(home: Home) -> Iterator[Ledger]:
    """A ledger on an empty database, which does not migrate by itself."""
    with never_migrating(home) as ledger:
        yield ledger


def never_migrating(home: Home, *rooms: Room[None, None]) -> Ledger:
    settings = Settings.load(url=home.url, environ={}, store={"auto_migrate": "never"})
    return Ledger(home.url, settings=settings, rooms=rooms)


def execute(ledger: Ledger, *statements: str) -> None:
    with ledger.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def occupy(ledger: Ledger, table: str) -> None:
    """A table of others, where those of the ledger are to lie."""
    own = ledger.database.namespace.own
    with ledger.database.engine.begin() as connection:
        ledger.database.dialect.make_place(connection, ledger.database.namespace)
        connection.execute(text(f"CREATE TABLE {own}.{table}"))


def tables(ledger: Ledger) -> set[str]:
    return set(inspect(ledger.database.engine).get_table_names())


def created(ledger: Ledger) -> dict[str, DdlStep]:
    """The parts of the newest revision."""
    database = ledger.database
    kind = database.url.get_backend_name()
    return parts.created(revisions.script(kind, database.namespace, rooms=database.rooms))


def looked_at(ledger: Ledger) -> revisions.Schema:
    database = ledger.database
    with database.engine.connect() as connection:
        return revisions.look_closely(connection, database.namespace, database.rooms)


def everything(ledger: Ledger) -> dict[tuple[str, str], str]:
    """The definition of every table, index, trigger and function."""
    kind = ledger.database.url.get_backend_name()
    place = {"place": ledger.database.namespace.own}
    query = text(EVERYTHING[kind])
    with ledger.database.engine.connect() as connection:
        rows = connection.execute(query, place if ":place" in query.text else {})
        return {(row[0], row[1]): row[2] for row in rows}


def drop(ledger: Ledger, name: str, step: DdlStep) -> bool:
    """Whether it was dropped: MySQL keeps an index that a foreign key needs."""
    own = ledger.database.namespace.own
    kind = ledger.database.url.get_backend_name()
    table = next(iter(step.sql.partition(" ON ")[2].split()), "")
    if step.words == "function":
        execute(ledger, f"DROP FUNCTION {own}.{name} CASCADE")
    elif step.words == "trigger" and kind == "postgresql":
        execute(ledger, f"DROP TRIGGER IF EXISTS {name} ON {own}.{table}")
    elif step.words == "index" and kind == "mysql":
        try:
            execute(ledger, f"DROP INDEX {name} ON {own}.{table}")
        except DBAPIError as error:
            return "needed in a foreign key" not in str(error)
    else:
        execute(ledger, f"DROP {step.words} {own}.{name}")
    return True


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("worker (id INTEGER PRIMARY KEY, name VARCHAR(20))", "no column host"),
        ("leases (lease VARCHAR(9), owner VARCHAR(9), expires_at_ms BIGINT)", "no column token"),
        (PAUSE, "a column house"),
        ("job (id INTEGER PRIMARY KEY, title VARCHAR(20))", "no column attempt"),
    ],
)
def test_a_table_of_others(bare: Ledger, table: str, column: str) -> None:
    """A table that has one of our names is refused by it, before anything is created."""
    name = table.partition(" ")[0]
    occupy(bare, table)

    with pytest.raises(errors.NotAllowedNow, match=f"the table {name} is there .* {column}"):
        bare.migrate()

    assert tables(bare) == {name}


def test_a_table_of_others_later(bare: Ledger) -> None:
    """So is one whose name is needed only by a later revision, at a ledger that is older."""
    revisions.migrate(bare.database, to="0003")
    before = tables(bare)
    occupy(bare, "outbox_lane (id INTEGER PRIMARY KEY)")

    with pytest.raises(errors.NotAllowedNow, match="the table outbox_lane is there already"):
        bare.migrate()

    assert tables(bare) == before | {"outbox_lane"}


def test_what_an_interrupted_run_left(bare: Ledger) -> None:
    """A table of ours that is there is kept: where DDL commits by itself a run may have ended."""
    execute(
        bare,
        "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)",
    )

    bare.migrate()

    assert bare.run(lambda tx: tx.jobs.enqueue("a")).created


def test_tables_that_were_dropped(bare: Ledger) -> None:
    """A ledger that lacks tables which its revision says are there is told which."""
    bare.migrate()
    execute(bare, "DROP TABLE outbox_pause", "DROP TABLE job_schedule")

    with pytest.raises(errors.SchemaMissing, match="has no job_schedule, outbox_pause"):
        bare.migrate()


def test_tables_of_a_room_that_were_dropped(bare: Ledger) -> None:
    """The same for the tables of a room with migrations of its own, before anything is made."""
    bare.migrate()
    execute(bare, "DROP TABLE blob_owners")

    with pytest.raises(errors.SchemaMissing, match="has no blob_owners"):
        bare.migrate()
    with pytest.raises(errors.SchemaMissing, match="has no blob_owners"):
        looked_at(bare)


@pytest.mark.slow
def test_every_part_that_was_dropped(bare: Ledger) -> None:
    """Each index, trigger and function of the migrations is missed by name, and made again."""
    bare.migrate()
    before = everything(bare)
    ours = {name: step for name, step in created(bare).items() if step.words != parts.TABLE}

    dropped = {name for name, step in ours.items() if drop(bare, name, step)}
    found = looked_at(bare)
    again = bare.migrate()

    assert (found.up_to_date, set(found.missing)) == (False, dropped)
    assert again.missing == found.missing
    assert dropped >= {"tg_job__moves", "idx_job__due"}
    assert looked_at(bare).up_to_date
    assert everything(bare) == before
    assert bare.run(lambda tx: tx.jobs.enqueue("a", key="k")).created


def test_no_part_is_unknown(bare: Ledger) -> None:
    """The parts that are missed are those that the migrations have made."""
    revisions.migrate(bare.database)

    made = {(step.words, name) for name, step in created(bare).items()}
    assert made == everything(bare).keys()


def test_a_migration_that_asks_the_database(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be printed: parts of its room are not missed, those of other rooms are."""
    folder = tmp_path / "asking" / "migrations"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").touch()
    (folder / "0001_asked.py").write_text(MIGRATION, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("asking", "asking.migrations"):
        # That of a test before lay elsewhere.
        monkeypatch.delitem(sys.modules, package, raising=False)
    with never_migrating(home) as without:
        step = created(without)["tg_job__moves"]
    with never_migrating(home, ASKING) as ledger:
        ledger.migrate()

        drop(ledger, "tg_job__moves", step)
        again = ledger.migrate()

        assert again.missing == ("tg_job__moves",)
        assert looked_at(ledger).up_to_date


def test_types_that_were_left(bare: Ledger) -> None:
    """Where all tables were dropped, as Alembic does it, the types that are left are in no way."""
    bare.migrate()
    dropped = MetaData()
    dropped.reflect(bare.database.engine)
    dropped.drop_all(bare.database.engine)

    bare.migrate()

    assert bare.run(lambda tx: tx.jobs.enqueue("a")).created


def test_what_revisions_create(bare: Ledger) -> None:
    """The list of tables, revisions and columns is what the revisions do."""
    made: dict[str, existing_tables.CreatedTable] = {}
    for revision in revisions.titles():
        revisions.migrate(bare.database, to=revision)
        found = inspect(bare.database.engine)
        for table in set(found.get_table_names()) - made.keys():
            columns = " ".join(column["name"] for column in found.get_columns(table))
            made[table] = existing_tables.CreatedTable(revision, columns)

    for ours in ("ledgerstone_revision", "history_guard"):
        made.pop(ours, None)
    assert made == existing_tables.CREATED

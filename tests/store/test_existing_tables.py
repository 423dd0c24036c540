"""What is in a database before a ledger is migrated there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import MetaData, inspect, text

from ledgerstone import Ledger, errors
from ledgerstone.settings import Settings
from ledgerstone.store.schema import existing_tables, revisions
from ledgerstone.testing.fixtures import Home

PAUSE = (
    "outbox_pause (queue_name VARCHAR(9), paused_at_ms BIGINT, who VARCHAR(9),"
    " house INTEGER NOT NULL)"
)
VERSIONS = "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)"


@pytest.fixture
def bare(home: Home) -> Iterator[Ledger]:
    """A ledger on an empty database, which does not migrate by itself."""
    settings = Settings.load(url=home.url, environ={}, store={"auto_migrate": "never"})
    with Ledger(home.url, settings=settings) as ledger:
        yield ledger


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

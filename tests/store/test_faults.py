"""Every driver's errors become Ledgerstone's, by the codes that the databases document."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pysqlite3.dbapi2 as pysqlite3
import pytest
from sqlalchemy import exc as sa_exc

from ledgerstone import errors
from ledgerstone.messaging import MessagingRegistry
from ledgerstone.settings import MessagingSettings
from ledgerstone.store.connections.faults import refused, translated


def test_postgresql() -> None:
    """SQLSTATE decides, by its code and then by its class."""
    cases = {
        psycopg.errors.SerializationFailure: errors.StoreBusy,
        psycopg.errors.DeadlockDetected: errors.StoreBusy,
        psycopg.errors.LockNotAvailable: errors.StoreBusy,
        psycopg.errors.QueryCanceled: errors.StoreBusy,
        psycopg.errors.AdminShutdown: errors.StoreUnavailable,
        psycopg.errors.CannotConnectNow: errors.StoreUnavailable,
        psycopg.errors.ConnectionFailure: errors.StoreUnavailable,
        psycopg.errors.TooManyConnections: errors.StoreUnavailable,
        psycopg.errors.DiskFull: errors.StoreFull,
        psycopg.errors.InsufficientPrivilege: errors.StoreDenied,
        psycopg.errors.ReadOnlySqlTransaction: errors.StoreDenied,
        psycopg.errors.InvalidPassword: errors.StoreDenied,
        psycopg.errors.UndefinedTable: errors.SchemaMissing,
        psycopg.errors.UniqueViolation: errors.Duplicate,
        psycopg.errors.DataCorrupted: errors.StoreCorrupt,
        psycopg.errors.NotNullViolation: errors.StoreError,
        psycopg.errors.SyntaxError: errors.StoreError,
        psycopg.OperationalError: errors.StoreUnavailable,
        psycopg.InterfaceError: errors.StoreUnavailable,
    }

    for kind, expected in cases.items():
        assert type(translated(kind("words"))) is expected, kind


def test_mysql() -> None:
    """The number of the error decides."""
    cases = {
        1213: errors.StoreBusy,
        1020: errors.StoreBusy,
        1205: errors.StoreBusy,
        1040: errors.StoreUnavailable,
        2003: errors.StoreUnavailable,
        2006: errors.StoreUnavailable,
        2013: errors.StoreUnavailable,
        1114: errors.StoreFull,
        1021: errors.StoreFull,
        1044: errors.StoreDenied,
        1045: errors.StoreDenied,
        1290: errors.StoreDenied,
        1146: errors.SchemaMissing,
        1062: errors.Duplicate,
        1034: errors.StoreCorrupt,
        1048: errors.StoreError,
    }

    for number, expected in cases.items():
        error = translated(pymysql.err.OperationalError(number, "words"))
        assert type(error) is expected, number
        assert "words" in str(error)


@pytest.mark.parametrize("driver", [sqlite3, pysqlite3], ids=["sqlite3", "pysqlite3"])
def test_sqlite(driver: object) -> None:
    """SQLite has words only."""
    cases = {
        "database is locked": errors.StoreBusy,
        "database table is locked: chore": errors.StoreBusy,
        "database or disk is full": errors.StoreFull,
        "database disk image is malformed": errors.StoreCorrupt,
        "file is not a database": errors.StoreCorrupt,
        "attempt to write a readonly database": errors.StoreDenied,
        "unable to open database file": errors.StoreUnavailable,
        "disk I/O error": errors.StoreUnavailable,
        "no such table: chore": errors.SchemaMissing,
        "UNIQUE constraint failed: chore.key": errors.Duplicate,
        "Cannot operate on a closed database.": errors.StoreUnavailable,
        "NOT NULL constraint failed: chore.body": errors.StoreError,
    }

    for words, expected in cases.items():
        error = translated(driver.OperationalError(words))  # type: ignore[attr-defined]
        assert type(error) is expected, words


def test_a_file_of_another_kind() -> None:
    """What to do about a file that is no database is said with it."""
    error = translated(sqlite3.DatabaseError("file is not a database"))

    assert isinstance(error, errors.StoreCorrupt)
    assert "name another file" in (error.hint or "")


def test_what_is_wrapped_is_unwrapped() -> None:
    """An error that SQLAlchemy has wrapped is judged by what is inside, without the parameters."""
    inner = sqlite3.IntegrityError("UNIQUE constraint failed: chore.key")
    outer = sa_exc.IntegrityError("INSERT …", {"body": "secret"}, inner)

    error = translated(outer)

    assert type(error) is errors.Duplicate
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("error", "table"),
    [
        (
            psycopg.errors.UndefinedTable('relation "purchases" does not exist\nLINE 1: …'),
            "purchases",
        ),
        (psycopg.errors.UndefinedTable('relation "public.purchases" does not exist'), "purchases"),
        (pymysql.err.ProgrammingError(1146, "Table 'shop.purchases' doesn't exist"), "purchases"),
        (sqlite3.OperationalError("no such table: purchases"), "purchases"),
        (sqlite3.OperationalError("no such table: main.purchases"), "purchases"),
    ],
    ids=["postgresql", "postgresql in a schema", "mysql", "sqlite", "sqlite in a schema"],
)
def test_a_table_of_yours_is_no_migration_of_ours(error: Exception, table: str) -> None:
    """A missing table that is not Ledgerstone's is named, and nothing is said of migrating."""
    fault = translated(error)

    assert type(fault) is errors.StoreError
    assert table in fault.message
    assert fault.hint == f"{table} is not a table of Ledgerstone: create it, or correct its name"


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.UndefinedTable('relation "job" does not exist'),
        psycopg.errors.UndefinedTable('relation "ledgerstone_revision" does not exist'),
        pymysql.err.ProgrammingError(1146, "Table 'shop.outbox_lane' doesn't exist"),
        sqlite3.OperationalError("no such table: messenger_outbox"),
    ],
    ids=str,
)
def test_a_table_of_ours_is_migrated(error: Exception) -> None:
    """A missing table of Ledgerstone's, of whichever room, is SchemaMissing."""
    MessagingRegistry(MessagingSettings())

    fault = translated(error)

    assert type(fault) is errors.SchemaMissing
    assert "ledgerstone migrate" in (fault.hint or "")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (psycopg.OperationalError('FATAL:  database "shop" does not exist'), "create the database"),
        (
            psycopg.errors.InvalidCatalogName('database "shop" does not exist'),
            "create the database",
        ),
        (pymysql.err.OperationalError(1049, "Unknown database 'shop'"), "create the database"),
        (psycopg.OperationalError('FATAL:  role "ann" does not exist'), "check user, password"),
        (
            psycopg.errors.InsufficientPrivilege(
                'new row violates row-level security policy for table "job"'
            ),
            "--org or org=",
        ),
        (
            psycopg.errors.InvalidTextRepresentation(
                'invalid input syntax for type uuid: "nonsense"'
            ),
            "ledgerstone.org_id",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_words_say_what_to_do(error: Exception, hint: str) -> None:
    """Where the database says more than its code does, the hint is about that."""
    fault = translated(error)

    assert isinstance(fault, errors.StoreError)
    assert hint in (fault.hint or "")


def test_a_full_pool_is_busy() -> None:
    """Waiting too long for a connection of our own is StoreBusy, and names the setting."""
    error = translated(sa_exc.TimeoutError("QueuePool limit"))

    assert type(error) is errors.StoreBusy
    assert "pool_size_max" in str(error)


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), errors.LeaseLost("x"), OverflowError("x")]
)
def test_everything_else_is_left_alone(error: BaseException) -> None:
    """What is not a driver's is handed back as it is."""
    assert translated(error) is error


def test_what_a_driver_could_not_send() -> None:
    """A number or text that a driver cannot even send is a StoreError too."""
    half_a_pair = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    for error in (OverflowError("too large"), half_a_pair):
        assert type(refused(error)) is errors.StoreError

"""The only place that translates driver errors into Ledgerstone errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import exc as sa_exc

from ledgerstone import errors
from ledgerstone.store.schema.columns import is_ours

if TYPE_CHECKING:
    from sqlalchemy.engine import URL
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect

_POSTGRES_EXACT: dict[str, type[errors.StoreError]] = {
    "40001": errors.StoreBusy,
    "40P01": errors.StoreBusy,
    "55P03": errors.StoreBusy,
    "57014": errors.StoreBusy,
    "53100": errors.StoreFull,
    "53300": errors.StoreUnavailable,
    "42501": errors.StoreDenied,
    "25006": errors.StoreDenied,
    "25P03": errors.StoreUnavailable,
    "25P04": errors.StoreUnavailable,
    "3D000": errors.StoreDenied,
    "42P01": errors.SchemaMissing,
    "23505": errors.Duplicate,
    "XX001": errors.StoreCorrupt,
    "XX002": errors.StoreCorrupt,
}
_POSTGRES_CLASS: dict[str, type[errors.StoreError]] = {
    "08": errors.StoreUnavailable,
    "57": errors.StoreUnavailable,
    "28": errors.StoreDenied,
}
_POSTGRES_ENDED_BEFORE = {"25P03", "25P04"}
"""The server ended the session: its transaction was idle, or open, for too long."""
# The error of a refused connection has no SQLSTATE.
_POSTGRES_DENIED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
)
_MYSQL: dict[int, type[errors.StoreError]] = {
    **dict.fromkeys((1020, 1205, 1213, 3572, 3058), errors.StoreBusy),
    **dict.fromkeys((1040, 1053, 1080, 1152, 1158, 1159, 1160, 1161), errors.StoreUnavailable),
    **dict.fromkeys((0, 1927, 2002, 2003, 2006, 2013, 2014), errors.StoreUnavailable),
    **dict.fromkeys((2045, 2055, 4031), errors.StoreUnavailable),
    **dict.fromkeys((1021, 1041, 1114), errors.StoreFull),
    **dict.fromkeys((1044, 1045, 1049, 1142, 1143), errors.StoreDenied),
    **dict.fromkeys((1227, 1290, 1698, 1792, 1836), errors.StoreDenied),
    **dict.fromkeys((1146, 1176), errors.SchemaMissing),
    **dict.fromkeys((1062, 1586), errors.Duplicate),
    **dict.fromkeys((1034, 1035, 1194, 1712), errors.StoreCorrupt),
}
_SQLITE: tuple[tuple[str, type[errors.StoreError]], ...] = (
    ("database is locked", errors.StoreBusy),
    ("database table is locked", errors.StoreBusy),
    ("database or disk is full", errors.StoreFull),
    ("malformed", errors.StoreCorrupt),
    ("not a database", errors.StoreCorrupt),
    ("readonly database", errors.StoreDenied),
    ("access permission denied", errors.StoreDenied),
    ("unable to open database", errors.StoreUnavailable),
    ("disk i/o error", errors.StoreUnavailable),
    ("no such table", errors.SchemaMissing),
    ("no such index", errors.SchemaMissing),
    ("unique constraint", errors.Duplicate),
    ("closed database", errors.StoreUnavailable),
)
MIGRATE_SOMEWHERE = "run `ledgerstone migrate` on this database"
"""The hint where the URL of the database is not known; see `migrate_hint`."""
_HINTS: dict[type[errors.StoreError], str] = {
    errors.SchemaMissing: MIGRATE_SOMEWHERE,
    errors.StoreBusy: "run the transaction again",
    errors.StoreFull: "free space on the disk of the database",
    errors.StoreUnavailable: "check that the database is running and reachable",
    errors.StoreDenied: "check user, password, rights, and whether it is read-only",
}
_HINTS_BY_WORDS = {
    "file is not a database": (
        "the file in the url is not a SQLite database, or it is damaged: name another file, or"
        " restore it from a backup"
    ),
    r"database \"[^\"]*\" does not exist|^1049 ": (
        "create the database first; `ledgerstone migrate` creates its tables"
    ),
    "partition_key|idx_outbox_|idx_[a-z0-9_]*outbox": (
        "another program has changed the outbox, for example setup() of Symfony: run `ledgerstone"
        " doctor`, then `ledgerstone messaging setup --apply`"
    ),
    "could not serialize access": (
        "run the transaction again: above READ COMMITTED it cannot change a row that another"
        " transaction changed after its snapshot"
    ),
    "has no equivalent in encoding": (
        "the encoding of the database lacks this character: create the database with ENCODING"
        " 'UTF8'"
    ),
    "row-level security policy": (
        "this connection acts for one organisation: name the same one with --org or org=,"
        " or connect as the service"
    ),
    "invalid input syntax for type uuid": (
        "set ledgerstone.org_id of the connection to the UUID of an organisation"
    ),
}
"""Hints by a pattern in the message of the database; they come before the hints by type."""
_TABLE = re.compile(
    r"relation \"(?:[^\".]*\.)?([^\"]+)\" does not exist"
    r"|Table '(?:[^'.]*\.)?([^']+)' doesn't exist"
    r"|no such table: (?:\w+\.)?(\S+)"
)
"""The name of a missing table in the messages of PostgreSQL, MySQL and SQLite."""


def migrate_hint(url: URL) -> str:
    """The hint for missing or outdated tables, with the URL of this database."""
    return f"run `ledgerstone migrate` with --url {url.render_as_string(hide_password=True)}"


def dropped_hint(url: URL) -> str:
    """The hint for a table or index that the server does not find."""
    return f"{migrate_hint(url)}: it makes what is missing, or names the tables that were dropped"


def is_of_the_call(error: BaseException, driver: DriverDialect) -> bool:
    """Whether the driver raised this error, for its arguments or for the answer of the server.

    Any other error, such as one from a signal handler, interrupted the call.
    """
    return isinstance(error, (driver.loaded_dbapi.Error, TypeError, ValueError, OverflowError))


def translated(error: BaseException) -> BaseException:
    """The Ledgerstone error for an error of a driver; any other error unchanged."""
    original = error
    if isinstance(error, sa_exc.DBAPIError) and error.orig is not None:
        original = error.orig
    elif isinstance(error, sa_exc.TimeoutError):
        return errors.StoreBusy(str(error), hint="raise store.pool_size_max")
    kind = _kind(original)
    if kind is None:
        return error
    words = " ".join(str(part) for part in original.args).strip() or type(original).__name__
    if kind is errors.SchemaMissing and (foreign := _foreign_table(words)):
        hint = f"{foreign} is not a table of Ledgerstone: create it, or correct its name"
        return errors.StoreError(words, hint=hint)
    return kind(words, hint=_hint(kind, words))


def commit_unknown(error: BaseException) -> errors.CommitUnknown | None:
    """CommitUnknown for a connection that was lost during a commit.

    None if the database refused the commit, or had ended the transaction: nothing was committed.
    """
    fault = translated(error)
    if isinstance(fault, errors.CommitUnknown) or not isinstance(fault, errors.StoreUnavailable):
        return None
    original = getattr(error, "orig", None) or error
    if getattr(original, "sqlstate", None) in _POSTGRES_ENDED_BEFORE:
        return None
    hint = "look whether it was kept; what has a key can be written again with the same key"
    return errors.CommitUnknown(f"the answer to the commit was lost: {fault.message}", hint=hint)


def _hint(kind: type[errors.StoreError], words: str) -> str | None:
    found = (hint for pattern, hint in _HINTS_BY_WORDS.items() if re.search(pattern, words))
    return next(found, _HINTS.get(kind))


def _foreign_table(words: str) -> str | None:
    """The missing table, if the message names it and it is not a table of Ledgerstone."""
    found = _TABLE.search(words)
    name = next(filter(None, found.groups())) if found else None
    return None if name is None or is_ours(name) else name


def refused(error: Exception) -> BaseException:
    """As `translated`, also for a value that the driver cannot encode."""
    if isinstance(error, OverflowError | UnicodeError):
        return errors.StoreError(f"a value cannot be written: {error}")
    return translated(error)


def _kind(error: BaseException) -> type[errors.StoreError] | None:
    # Drivers are optional, so their errors are recognised by the class names of the DB-API.
    names = {base.__name__ for base in type(error).__mro__}
    module = type(error).__module__.partition(".")[0]
    if "Error" not in names or module in {"builtins", "ledgerstone"}:
        return None
    # SQLAlchemy wraps the errors of asyncpg, which are not those of the DB-API.
    if module in {"psycopg", "psycopg2"} or "asyncpg" in type(error).__module__:
        return _postgres(error, names)
    if module in {"pymysql", "MySQLdb", "asyncmy", "aiomysql"}:
        return _mysql(error, names)
    if module in {"sqlite3", "pysqlite3", "sqlcipher3", "_sqlite3"}:
        return _sqlite(error)
    return errors.StoreError if "DatabaseError" in names else None


def _postgres(error: BaseException, names: set[str]) -> type[errors.StoreError]:
    state: str | None = getattr(error, "sqlstate", None)
    if state is None:
        words = str(error)
        if any(part in words for part in _POSTGRES_DENIED):
            return errors.StoreDenied
        lost = names & {"OperationalError", "InterfaceError"}
        return errors.StoreUnavailable if lost else errors.StoreError
    return _POSTGRES_EXACT.get(state) or _POSTGRES_CLASS.get(state[:2], errors.StoreError)


def _mysql(error: BaseException, names: set[str]) -> type[errors.StoreError]:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else None
    if number is None:
        return errors.StoreUnavailable if "InterfaceError" in names else errors.StoreError
    return _MYSQL.get(number, errors.StoreError)


def _sqlite(error: BaseException) -> type[errors.StoreError]:
    words = str(error).lower()
    for part, kind in _SQLITE:
        if part in words:
            return kind
    return errors.StoreError

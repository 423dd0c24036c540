"""Parts of the schema: tables, indexes, triggers and functions, and which of them are missing.

A database may have the newest revision and lack a part: it was dropped, or left out of a copy. The
migrations as a script tell which parts there are, and how each is created: by the last statement
that creates it, and the blocks (DO) after it that change it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import text

from ledgerstone.store.schema.ddl import DdlStep

if TYPE_CHECKING:
    from sqlalchemy import Connection

TABLE = "table"
_CREATES = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|TRIGGER|FUNCTION) (?:IF NOT EXISTS )?\W?(\w+)"
)
_BLOCK_CREATES = re.compile(r"DO .*?CREATE OR REPLACE (FUNCTION) (\w+)", re.DOTALL)
_DROPS = re.compile(r"DROP (?:TABLE|INDEX|TRIGGER|FUNCTION) (?:IF EXISTS )?\W?(\w+)")
_THERE = {
    "sqlite": "SELECT name FROM sqlite_master WHERE COALESCE(:place, 'main') = 'main'",
    "postgresql": (
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(:place))"
        " UNION ALL SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
        " WHERE relnamespace = to_regnamespace(quote_ident(:place))"
        " UNION ALL SELECT proname FROM pg_proc"
        " WHERE pronamespace = to_regnamespace(quote_ident(:place))"
    ),
    "mysql": (
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = :place"
        " UNION ALL SELECT INDEX_NAME FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = :place"
        " UNION ALL SELECT TRIGGER_NAME FROM information_schema.TRIGGERS"
        " WHERE TRIGGER_SCHEMA = :place"
    ),
}


def missing(connection: Connection, place: str | None, script: str) -> dict[str, DdlStep]:
    """The parts that exist after `script` and not in `place`: their kinds and statements."""
    kind = "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name
    there = set(connection.execute(text(_THERE[kind]), {"place": place}).scalars())
    return {name: step for name, step in created(script).items() if name not in there}


def created(script: str) -> dict[str, DdlStep]:
    """The parts that exist after this script, with their kinds and the statements."""
    found: dict[str, DdlStep] = {}
    for statement in script.split(";\n"):
        sql = re.sub(r"^(?:--.*)?\n", "", statement, flags=re.MULTILINE)
        if creates := _CREATES.match(sql) or _BLOCK_CREATES.match(sql):
            kind, name = creates.groups()
            # A function that is created again stays before the triggers that call it.
            found[name] = DdlStep(kind.lower(), sql)
        elif drops := _DROPS.match(sql):
            found.pop(drops.group(1), None)
        elif sql.startswith("DO "):
            for name in set(re.findall(r"\w+", sql)) & found.keys():
                kind, before = msgspec.structs.astuple(found[name])
                found[name] = DdlStep(kind, f"{before};\n{sql}")
    return found

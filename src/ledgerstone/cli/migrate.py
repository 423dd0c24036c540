"""`ledgerstone migrate`: bring the schema up to date, say where it stands, or print its SQL.

With --rls also keep organisations apart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from ledgerstone.console import output
from ledgerstone.console.call import EXIT_SOMETHING_TO_DO, Call, flag
from ledgerstone.console.database import file_of, opened
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput
from ledgerstone.ledger import Transaction, rooms_for
from ledgerstone.messaging import MessagingRegistry
from ledgerstone.settings import Settings
from ledgerstone.store.connections.faults import migrate_hint
from ledgerstone.store.database import Database
from ledgerstone.store.dialects.by_url import dialect_of, names_of_kind
from ledgerstone.store.schema import revisions, row_security


class DatabaseKind(Enum):
    """The databases that SQL is printed for."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"


class MigrationResult(msgspec.Struct, frozen=True):
    """The result of a migration; `set_up` tells what was done to the tables of messaging.

    `missing`: the indexes, triggers and functions that were missing and have been made.
    """

    before: str | None
    after: str
    applied: tuple[str, ...]
    missing: tuple[str, ...]
    set_up: list[str]


class MigrationScript(msgspec.Struct, frozen=True):
    """The migrations as SQL."""

    kind: DatabaseKind
    since: str | None
    sql: str


def migrate(
    call: Call,
    *,
    check: Annotated[
        bool, flag("--check", help="Change nothing; exit with 3 if there is something to do.")
    ] = False,
    sql: Annotated[
        bool, flag("--sql", help="Print the SQL instead of running it; connects to nothing.")
    ] = False,
    kind: Annotated[
        DatabaseKind | None,
        typer.Option("--dialect", help="With --sql: for this database; otherwise that of the URL."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="REVISION", help="With --sql: only what comes after it."),
    ] = None,
    rls: Annotated[
        bool,
        flag("--rls", help="Also keep organisations apart by row-level security (PostgreSQL)."),
    ] = False,
    role: Annotated[
        str | None,
        typer.Option(
            "--role", metavar="NAME", help="With --rls: let this role act for one of them."
        ),
    ] = None,
) -> None:
    """Bring Ledgerstone's tables up to date."""
    if not sql and (kind is not None or since is not None):
        raise typer.BadParameter("--dialect and --since go with --sql")
    if check and (sql or rls):
        raise typer.BadParameter("--check goes with neither --sql nor --rls")
    if role is not None and not rls:
        raise typer.BadParameter("--role goes with --rls")
    if sql:
        script = written(call.settings(), kind, since, separated=rls, role=role)
        output.show_json(script) if call.json else sys.stdout.write(script.sql)
        return
    settings = call.settings()
    with opened(settings) as database:
        if check:
            schema = looked_up(database)
            output.show(_facts(schema), _standing(schema, database), json=call.json)
            if not schema.up_to_date:
                raise typer.Exit(EXIT_SOMETHING_TO_DO)
            return
        if rls:
            _separate(database, settings, role, json=call.json)
            return
        migrated = brought_up_to_date(database, settings)
        output.show(migrated, _done(migrated, database), json=call.json)


def looked_up(database: Database[Transaction]) -> revisions.Schema:
    """Where the database stands; a file that is not there yet is not made."""
    file = file_of(database)
    if file is not None and not file.exists():
        return revisions.nothing(database.rooms)
    with database.reading() as tx:
        return revisions.look_closely(tx.connection, database.namespace, database.rooms)


def brought_up_to_date(database: Database[Transaction], settings: Settings) -> MigrationResult:
    """Apply what is pending, and make what is missing for messages unless that is not wanted."""
    before = revisions.migrate(database)
    set_up = MessagingRegistry(settings.messaging).setup
    steps = set_up.apply(database) if settings.messaging.auto_setup else []
    words = list(dict.fromkeys(step.words for step in steps))
    return MigrationResult(
        before.current, before.newest, before.everything_pending, before.missing, words
    )


def _separate(
    database: Database[Transaction], settings: Settings, role: str | None, *, json: bool
) -> None:
    """Apply what is pending, then keep organisations apart; nothing where that cannot be done."""
    row_security.check_supported(database)
    if role is not None:
        row_security.check_role(database, role)
    migrated = brought_up_to_date(database, settings)
    separated = row_security.separate(database, role=role)
    facts = {**msgspec.structs.asdict(migrated), "separated": separated}
    output.show(facts, Group(_done(migrated, database), _apart(separated)), json=json)


def written(
    settings: Settings,
    kind: DatabaseKind | None,
    since: str | None,
    *,
    separated: bool = False,
    role: str | None = None,
) -> MigrationScript:
    """The SQL, for a database that need not be there."""
    rooms = rooms_for(settings).stored
    known = revisions.titles(rooms)
    if since is not None and since not in known:
        raise BadInput(f"no revision is called {since}", hint=f"known: {', '.join(known)}")
    url, _ = dialect_of(settings.url)
    kind = kind or DatabaseKind(url.get_backend_name())
    names = names_of_kind(kind.value, url, settings.store.schema)
    further = row_security.script(kind.value, names, rooms, role=role) if separated else ""
    sql = revisions.script(kind.value, names, since=since, rooms=rooms)
    return MigrationScript(kind, since, sql + further)


def _facts(schema: revisions.Schema) -> dict[str, object]:
    return {**msgspec.structs.asdict(schema), "up_to_date": schema.up_to_date}


def _standing(schema: revisions.Schema, database: Database[Transaction]) -> RenderableType:
    at = schema.current or "nothing"
    if schema.up_to_date:
        return f"at {at}, up to date"
    if schema.missing:
        return Group(f"at {at}; missing:", _each(schema.missing), Text(migrate_hint(database.url)))
    return Group(
        f"at {at}, {schema.newest} is needed; pending:",
        _listed(schema.everything_pending, database),
        Text(migrate_hint(database.url)),
    )


def _done(migrated: MigrationResult, database: Database[Transaction]) -> RenderableType:
    parts: list[RenderableType] = []
    if migrated.applied:
        parts.append(f"{migrated.before or 'nothing'} → {migrated.after}; applied:")
        parts.append(_listed(migrated.applied, database))
    if migrated.missing:
        parts.append("missing, and made again:")
        parts.append(_each(migrated.missing))
    if migrated.set_up:
        parts.append("for messages:")
        parts.append(_each(migrated.set_up))
    return Group(*parts) if parts else f"at {migrated.after}, nothing to do"


def _each(words: Iterable[str]) -> RenderableType:
    return escape("\n".join(f"  {each}" for each in words))


def _apart(separated: row_security.RowSecurityReport) -> RenderableType:
    lines = [f"organisations are kept apart in {', '.join(separated.tables)}"]
    if separated.role is not None:
        lines.append(f"{separated.role} may act for one organisation at a time")
    seen = ", ".join(separated.apart) or "none"
    lines.append(f"roles that now see one organisation at a time: {seen}")
    return escape("\n".join(lines))


def _listed(applied: tuple[str, ...], database: Database[Transaction]) -> RenderableType:
    known = revisions.titles(database.rooms)
    return "\n".join(f"  {revision}  {known[revision]}" for revision in applied)

"""The steps of migrations: repeatable, with triggers in the SQL of each database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from ledgerstone.store.schema.columns import CHURNING
from ledgerstone.store.schema.existing_tables import HINT, check_table

USERS_PLACE = "users_place"
"""The option of Alembic that says where the tables of the user lie, if not where ours do."""
PERMIT = "history_permit"
PERMITTED = f"EXISTS (SELECT 1 FROM {PERMIT})"  # noqa: S608 - a name of ours
PERMITTED_BY_PARTITION = f"EXISTS (SELECT 1 FROM {PERMIT} PARTITION (p0))"  # noqa: S608 - as above
"""For MySQL: a temporary table hides the one of its name, and no temporary table has partitions."""
ROW_NUMBERS = ("rowid", "_rowid_", "oid")
"""The name of SQLite's row number."""
_MYSQL = ("mysql", "mariadb")


def dialect() -> str:
    """The kind of database that is migrated."""
    return str(op.get_context().dialect.name)


def is_mysql() -> bool:
    """Whether it is MySQL or MariaDB."""
    return dialect() in _MYSQL


def refuse_others(table: str, columns: str, *, room: str | None = None) -> None:
    """NotAllowedNow if a table of this name is there, and has not these columns.

    For a room's revision, before it creates the table: one that is there is passed over. `room`
    names a room that its setting `enabled` can leave out.
    """
    if context.is_offline_mode():
        return
    found = sa.inspect(op.get_bind())
    if found.has_table(table):
        hint = HINT if room is None else f"{HINT}, or set {room}.enabled = false"
        check_table(table, columns, found.get_columns(table), hint=hint)


def add_index(name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """An index, unless an interrupted run has made it."""
    if context.is_offline_mode() or name not in indexes_of(table):
        op.create_index(name, table, columns, **options)


def drop_index(name: str, table: str) -> None:
    """No such index any more, whether or not an interrupted run has removed it."""
    if context.is_offline_mode() or name in indexes_of(table):
        op.drop_index(name, table)


def indexes_of(table: str) -> set[str]:
    """The names of its indexes."""
    return {index["name"] or "" for index in sa.inspect(op.get_bind()).get_indexes(table)}


def add_partial_index(
    name: str, table: str, columns: Sequence[Any], *, where: str, leading: Sequence[str]
) -> None:
    """An index of some rows; on MySQL, which has none, of all rows."""
    if is_mysql():
        add_index(name, table, [*leading, *columns])
    else:
        add_index(
            name,
            table,
            columns,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
            **CHURNING,
        )


def refuse_moves(table: str, moves: Iterable[tuple[str, str]], words: str) -> None:
    """No row changes its status but by one of these moves, whoever writes."""
    name = f"tg_{table}__moves"
    listed = sorted(moves)
    if dialect() == "postgresql":
        pairs = ", ".join(f"('{a}', '{b}')" for a, b in listed)
        when = f"OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN ({pairs})"
        _refuse_on_postgresql()
        op.execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE OF status ON {table} FOR EACH ROW "
            f"WHEN ({when}) EXECUTE FUNCTION ledgerstone_refuse('{words}')"
        )
        return
    pairs = ", ".join(f"'{a}>{b}'" for a, b in listed)
    joined = (
        "CONCAT(OLD.status, '>', NEW.status)" if is_mysql() else "OLD.status || '>' || NEW.status"
    )
    when = f"OLD.status <> NEW.status AND {joined} NOT IN ({pairs})"
    _trigger(name, f"UPDATE{'' if is_mysql() else ' OF status'}", table, when, words)


def keep_history(
    table: str,
    words: str,
    *,
    verbs: Sequence[str] = ("UPDATE", "DELETE"),
    permitted: str = PERMITTED,
    replaced: bool = False,
) -> None:
    """No row is changed or removed but with a permit, whoever writes.

    `replaced`: on SQLite, a REPLACE may take its place; to refuse that, too, makes adding rows take
    twice as long.
    """
    if dialect() == "postgresql":
        _refuse_on_postgresql()
        op.execute(
            f"CREATE TRIGGER tg_{table}__kept BEFORE {' OR '.join(verbs)} ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION ledgerstone_keep('{words}')"
        )
        op.execute(
            f"CREATE TRIGGER tg_{table}__not_truncated BEFORE TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION ledgerstone_keep('{words}')"
        )
        return
    for verb in verbs:
        _trigger(f"tg_{table}__kept_{verb.lower()}", verb, table, f"NOT {permitted}", words)
    if not is_mysql() and not replaced:
        # SQLite's REPLACE removes the row that is in its way without a word.
        own = f"SELECT 1 FROM {table} WHERE id = NEW.id"  # noqa: S608 - a name of ours
        taken = f"EXISTS ({own}) AND NOT {PERMITTED}"
        _trigger(f"tg_{table}__kept_replace", "INSERT", table, taken, words)


def look_up_permit_by_search_path() -> None:
    """On PostgreSQL: the permit is looked for where the session's search path leads."""
    _refuse_on_postgresql()


def look_up_permit_beside_history() -> None:
    """On PostgreSQL: the permit is looked for in the schema of the table that is changed.

    A session can put a temporary table, or another schema, before it; nor is any function of the
    session's search path called.
    """
    op.execute(
        "CREATE OR REPLACE FUNCTION ledgerstone_keep() RETURNS trigger LANGUAGE plpgsql "
        "SET search_path = pg_catalog, pg_temp AS $$ DECLARE permitted boolean; BEGIN "
        "EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I.history_permit)', TG_TABLE_SCHEMA) "
        "INTO permitted; IF NOT permitted THEN "
        "RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END IF; "
        "IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$"
    )


def keep_from_replace(table: str, words: str, *, unique: Sequence[str] = ()) -> None:
    """On SQLite, no row is removed without a word because another one takes its place.

    - `OR REPLACE` fires no trigger for the row that it removes: so a row with a taken id or row
      number is refused before it is added, and a row never gets another's by a change.
    - `unique`: the columns of its unique index. `OR IGNORE` may meet it.
    """
    if dialect() != "sqlite":
        return
    ids = ("id", "rowid")
    # A row that is added without a number has this one until it is there.
    taken = (f"{name} = NEW.{name} AND NEW.{name} IS NOT -1" for name in ids)
    found = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE {one})" for one in taken)  # noqa: S608 - names of ours
    _trigger(f"tg_{table}__kept_replace", "INSERT", table, f"({found}) AND NOT {PERMITTED}", words)
    if unique:
        moved = " OR ".join(f"NEW.{name} <> OLD.{name}" for name in ids)
        same = " AND ".join(f"{name} = NEW.{name}" for name in unique)
        met = f"EXISTS (SELECT 1 FROM {table} WHERE {same} AND id <> OLD.id)"  # noqa: S608 - names of ours
        verb = f"UPDATE OF {', '.join(('id', *ROW_NUMBERS, *unique))}"
        when = f"({moved} OR {met}) AND NOT {PERMITTED}"
        _trigger(f"tg_{table}__kept_unique", verb, table, when, words)


def _trigger(name: str, verb: str, table: str, when: str, words: str) -> None:
    op.execute(f"DROP TRIGGER IF EXISTS {name}")
    head = f"CREATE TRIGGER {name} BEFORE {verb} ON {table} FOR EACH ROW"
    if is_mysql():
        signal = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{words}'"
        op.execute(f"{head} IF {when} THEN {signal}; END IF")
    else:
        op.execute(f"{head} WHEN {when} BEGIN SELECT RAISE(ABORT, '{words}'); END")


def _refuse_on_postgresql() -> None:
    op.execute(
        "CREATE OR REPLACE FUNCTION ledgerstone_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END $$"
    )
    op.execute(
        "CREATE OR REPLACE FUNCTION ledgerstone_keep() RETURNS trigger LANGUAGE plpgsql AS $$ "
        f"BEGIN IF NOT {PERMITTED} THEN "
        "RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END IF; "
        "IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$"
    )

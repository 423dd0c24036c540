"""Row-level security of PostgreSQL, which separates organisations on the tables of the rooms.

    connection ──sets──▶ ledgerstone.org_id ──compared with──▶ job, job_key, job_schedule
                                                                │
                              rows of a visible job are visible ┴──▶ job_event, job_step

- A connection without an organisation sees no rows and can write none.
- The owner of the tables, superusers and roles with BYPASSRLS see every organisation: they are the
  service. So row-level security is never forced on the owner.
- Another role for the service needs BYPASSRLS or policies of its own.
- A role with the rights of `separate` can do what the job API does, and nothing more: it cannot
  delete rows, change accepted content or history, pause a queue or acquire a lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import Text, bindparam, func, literal, select, text, true

from ledgerstone.errors import BadInput, NotFound, Unsupported
from ledgerstone.store.connections.faults import translated
from ledgerstone.store.dialects.postgres.dialect import inside
from ledgerstone.store.rooms import ChildTable, RowSecurity, StoredRoom
from ledgerstone.store.schema.namespace import Namespace
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledgerstone.store.database import Database

Tx = TypeVar("Tx", bound=Transaction)

SETTING = "ledgerstone.org_id"
"""The setting of a session or a transaction with the id of its organisation."""
POLICY = "ledgerstone_org"
LOCK_POLICY, LOOK_POLICY, KNOW_POLICY = (f"ledgerstone_{verb}" for verb in ("lock", "look", "know"))
ROLE_CHARS_MAX = 63
KERNEL = RowSecurity(
    grants={
        "ledgerstone_revision": "SELECT",
        "ledger_identity": "SELECT",
        "worker": "SELECT, INSERT, UPDATE (seen_at_ms, state, report)",
    },
    refused=("history_permit", "leases", "schema_version"),
)
"""The rules for the kernel's tables.

A role that acts for one organisation must not acquire a lease: its duty would run for that
organisation alone.
"""

# After the transaction, a setting that was local to it is empty, not missing.
_MINE = f"org_id = NULLIF(current_setting('{SETTING}', true), '')::uuid"

_say = Statement(
    "store.say_org",
    select(func.set_config(literal(SETTING), bindparam("org", type_=Text()), true())),
)


class RowSecurityReport(msgspec.Struct, frozen=True):
    """The result of `separate`: the tables with policies, and the role that got its rights.

    `apart` are the roles with rights on jobs that now see one organisation at a time.
    """

    tables: tuple[str, ...]
    role: str | None
    apart: tuple[str, ...]


def scoped(tx: Tx, org: str | UUID) -> Tx:
    """Set the organisation of the transaction, ours or a joined one, until its end; returns `tx`.

    A role that bypasses row-level security still sees everything.
    """
    check_supported(tx.database)
    try:
        org = UUID(str(org))
    except ValueError as error:
        raise BadInput(f"an organisation is named by a UUID, not by {org!r}") from error
    _say.rows(tx, org=str(org))
    return tx


def check_supported(database: Database[Any]) -> None:
    """Unsupported unless the database has row-level security."""
    _check_kind(database.dialect.name)


def check_role(database: Database[Any], role: str) -> None:
    """NotFound or BadInput unless `role` exists and does not bypass row-level security."""
    try:
        with database.engine.connect() as connection:
            _check_role(connection, database.namespace, role)
    except Exception as error:
        fault = translated(error)
        if fault is error:
            raise
        raise fault from error


def separate(database: Database[Any], *, role: str | None = None) -> RowSecurityReport:
    """Create the policies, and grant `role` the rights to act for one organisation; idempotent."""
    check_supported(database)
    try:
        names, dialect = database.namespace, database.dialect
        with (
            database.engine.connect() as connection,
            dialect.migrating(connection, names),
            dialect.inside(connection, names),
        ):
            if role is not None:
                _check_role(connection, names, role)
            for statement in _statements(database.rooms, role):
                connection.exec_driver_sql(statement)
            rules = [room.security for room in database.rooms]
            tables = [table for rule in rules for table in _separated(rule)]
            done = RowSecurityReport(tuple(tables), role, _apart(connection, database.rooms))
            connection.commit()
    except Exception as error:
        fault = translated(error)
        if fault is error:
            raise
        raise fault from error
    return done


def script(
    kind: str, names: Namespace, rooms: Sequence[StoredRoom], *, role: str | None = None
) -> str:
    """The same as SQL text."""
    _check_kind(kind)
    lines = ("BEGIN", inside(str(names.own)), *_statements(rooms, role), "COMMIT")
    return "".join(f"{line};\n\n" for line in lines)


def _check_kind(kind: str) -> None:
    if kind != "postgresql":
        message = f"row-level security is PostgreSQL's: {kind} has nothing like it"
        raise Unsupported(message, hint="give each organisation a database of its own there")


def _separated(rule: RowSecurity) -> tuple[str, ...]:
    """The tables of a room with policies."""
    return (*rule.owned, *(child.table for child in rule.children), *rule.shared)


def _statements(rooms: Sequence[StoredRoom], role: str | None) -> Iterator[str]:
    rules = [room.security for room in rooms]
    for rule in rules:
        for table in rule.owned:
            yield from _guarded(table, _MINE, written=_MINE)
        for child in rule.children:
            yield from _guarded_with_parent(child)
        for table in rule.shared:
            yield from _locked_not_changed(table)
    if role is not None:
        own = [room for room in rooms if room.migrations is not None]
        looked_at = RowSecurity(grants={room.version_table: "SELECT" for room in own})
        yield from _granted([KERNEL, *rules, looked_at], _quoted(role))


def _guarded_with_parent(child: ChildTable) -> Iterator[str]:
    """A policy by which rows of the child are visible with their parent.

    A statement may insert the parent and the child: only a function call sees the new parent.
    """
    found = f"{child.parent}.id = {child.table}.{child.column}"
    own = f"EXISTS (SELECT 1 FROM {child.parent} WHERE {found})"  # noqa: S608 - names of ours
    yield from _guarded(child.table, own, written=f"{child.seen_by}({child.column})")


def _guarded(table: str, own: str, *, written: str) -> Iterator[str]:
    """A policy by which only rows of the own organisation are visible and written."""
    yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
    yield f"DROP POLICY IF EXISTS {POLICY} ON {table}"
    yield f"CREATE POLICY {POLICY} ON {table} USING ({own}) WITH CHECK ({written})"


def _locked_not_changed(table: str) -> Iterator[str]:
    """Policies for shared rows: every role may see and lock them, or insert one with defaults."""
    plain = "paused_at_ms IS NULL AND paused_by IS NULL AND concurrency_max IS NULL"
    yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
    for name, rule in {
        LOOK_POLICY: "FOR SELECT USING (true)",
        KNOW_POLICY: f"FOR INSERT WITH CHECK ({plain})",
        LOCK_POLICY: "FOR UPDATE USING (true) WITH CHECK (false)",
    }.items():
        yield f"DROP POLICY IF EXISTS {name} ON {table}"
        yield f"CREATE POLICY {name} ON {table} {rule}"


def _granted(rules: Sequence[RowSecurity], role: str) -> Iterator[str]:
    """Exactly these rights: earlier rights of the role on our tables are revoked."""
    usage = f"'GRANT USAGE ON SCHEMA ' || quote_ident(current_schema()) || ' TO {role}'"
    yield f"DO $ledgerstone$ BEGIN EXECUTE {usage}; END $ledgerstone$"
    grants = {table: rights for rule in rules for table, rights in rule.grants.items()}
    refused = [table for rule in rules for table in rule.refused]
    yield f"REVOKE ALL ON {', '.join([*grants, *refused])} FROM {role}"
    for table, rights in grants.items():
        yield f"GRANT {rights} ON {table} TO {role}"


def _quoted(role: str) -> str:
    check_name(role, "a role", chars_max=ROLE_CHARS_MAX)
    if any(char in role for char in "$\"'\\%"):
        raise BadInput(f"the role {role!r} has signs in its name that are not taken here")
    return f'"{role}"'


def _check_role(connection: Connection, names: Namespace, role: str) -> None:
    """Check that the role exists and does not bypass row-level security."""
    # Before the first migration, the current user will own the tables.
    query = text(
        "SELECT rolsuper OR rolbypassrls OR pg_has_role(pg_roles.oid, COALESCE(relowner, "
        "(SELECT oid FROM pg_roles WHERE rolname = current_user)), 'MEMBER') "
        "FROM pg_roles LEFT JOIN pg_class ON pg_class.oid = to_regclass(:identity) "
        "WHERE rolname = :role"
    )
    identity = f'"{names.own}".ledger_identity'
    above = connection.execute(query, {"role": role, "identity": identity}).scalar()
    if above is None:
        hint = f"make it first: CREATE ROLE {_quoted(role)} LOGIN"
        raise NotFound(f"there is no role {role!r}", hint=hint)
    if above:
        message = f"the role {role!r} is above row-level security: it would see every organisation"
        hint = "name one that is no superuser, has no BYPASSRLS and is no member of the owner"
        raise BadInput(message, hint=hint)


def _apart(connection: Connection, rooms: Sequence[StoredRoom]) -> tuple[str, ...]:
    """The roles with a right on an owned table that row-level security now restricts."""
    query = text(
        "SELECT DISTINCT COALESCE(rolname, 'PUBLIC') AS name "
        "FROM pg_class CROSS JOIN aclexplode(relacl) AS granted "
        "LEFT JOIN pg_roles ON pg_roles.oid = grantee "
        "WHERE pg_class.oid = to_regclass(:owned) "
        "AND (grantee = 0 OR NOT (rolsuper OR rolbypassrls "
        "OR pg_has_role(grantee, relowner, 'USAGE') OR EXISTS (SELECT 1 FROM pg_policy "
        "WHERE polrelid = pg_class.oid AND grantee = ANY (polroles)))) ORDER BY name"
    )
    owned = [table for room in rooms for table in room.security.owned]
    found = {
        name for each in owned for name in connection.execute(query, {"owned": each}).scalars()
    }
    return tuple(sorted(found))

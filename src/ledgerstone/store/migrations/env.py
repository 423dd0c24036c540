"""How Alembic runs our migrations: on the connection it is given, or as text for a dialect."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import BigInteger, Integer, column, delete, insert, table

from ledgerstone.failpoints import hit
from ledgerstone.store.dialects.postgres.dialect import inside
from ledgerstone.store.migrations.steps import USERS_PLACE
from ledgerstone.store.sql.expressions import database_now_ms

# Named without its schema, as all that a migration makes: it is made inside of it.
_schema_version = table(
    "schema_version", column("version", Integer), column("applied_at", BigInteger)
)


def _keep_schema_version(*, ctx: Any, step: Any, **_: Any) -> None:
    """`schema_version` tells what was applied and when, in the transaction that applied it."""
    for revision in step.up_revision_ids if step.is_upgrade else step.down_revision_ids:
        number = int(revision)
        if step.is_upgrade:
            row = {"version": number, "applied_at": database_now_ms() // 1000}
            ctx.impl._exec(delete(_schema_version).where(_schema_version.c.version == number))  # noqa: SLF001
            ctx.impl._exec(insert(_schema_version).values(row))  # noqa: SLF001
        else:
            ctx.impl._exec(delete(_schema_version).where(_schema_version.c.version >= number))  # noqa: SLF001
    hit("migrate.step")


def _take_a_step(**_: Any) -> None:
    """A room's revisions are told by its version table alone."""
    hit("migrate.step")


_attributes = context.config.attributes
_line = _attributes["line"]
_names = _attributes["names"]
_options: dict[str, Any] = {
    USERS_PLACE: None if _names.own == _names.shared else _names.shared,
    "version_table": _line.version_table,
    "on_version_apply": _take_a_step if _line.name else _keep_schema_version,
    "transaction_per_migration": False,
}
if context.is_offline_mode():
    context.configure(
        dialect_name=_attributes["dialect"],
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
        **_options,
    )
    with context.begin_transaction():
        if _attributes["dialect"] == "postgresql":
            context.execute(inside(_names.own))
        context.run_migrations()
else:
    context.configure(connection=_attributes["connection"], **_options)
    context.run_migrations()

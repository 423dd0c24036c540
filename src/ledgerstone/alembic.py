"""For the Alembic of a program of your own: it leaves the tables of Ledgerstone alone.

    from ledgerstone.alembic import include_object

    context.configure(…, include_object=include_object)

Without this, `alembic revision --autogenerate` writes a `drop_table` for each table that is in the
database and not in your metadata. Those are the tables that Ledgerstone shares with other programs,
and, where all lie in one schema or database, its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ledgerstone.ledger import rooms_for
from ledgerstone.messaging.room import MESSAGING
from ledgerstone.settings import Settings
from ledgerstone.store.dialects.by_url import dialect_of
from ledgerstone.store.dialects.postgres.dialect import SCHEMA
from ledgerstone.store.schema.columns import VERSION_TABLE, names_in
from ledgerstone.store.schema.tables import tables as kernel_tables

UNDECLARED = ("jobs_legacy", "history_guard")
"""The rest of a table `jobs` from before the job ledger, and a guard that only MySQL needs."""
Include = Callable[[Any, str | None, str, bool, Any], bool]


def tables_of(settings: Settings) -> frozenset[str]:
    """The tables of Ledgerstone and of the rooms of these settings, by name."""
    rooms = rooms_for(settings)
    shared = rooms.state(MESSAGING).setup.tables
    return frozenset(
        {
            VERSION_TABLE,
            *UNDECLARED,
            *names_in(kernel_tables),
            *(table.name for table in shared),
            *(table for room in rooms for table in room.tables),
            *(room.stored.version_table for room in rooms),
        }
    )


def including(settings: Settings) -> Include:
    """As `include_object`, for a ledger of these settings: `including(ledger.settings)`."""
    ours = tables_of(settings)
    url, dialect = dialect_of(settings.url)
    places = {None, SCHEMA, dialect.namespace(url, settings.store.schema, None).own}

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compared: Any) -> bool:
        if kind != "table" or not reflected or compared is not None:
            return True
        # Without a schema: shared ones, and all of a ledger that is not migrated yet.
        return not (name in ours and thing.schema in places)

    return include


def include_object(thing: Any, name: str | None, kind: str, reflected: bool, compared: Any) -> bool:
    """Whether autogenerate looks at something: not at a table of Ledgerstone.

    - The settings come from the environment and `ledgerstone.toml`, as those of a `Ledger()` do.
    - A table of the same name in your own metadata is yours: it is compared as ever.
    """
    return _by_default()(thing, name, kind, reflected, compared)


@cache
def _by_default() -> Include:
    return including(Settings.load())

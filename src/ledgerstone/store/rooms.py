"""The part of a room that the store uses: its tables, migrations and row-security rules."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ChildTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows belong to rows of another table and are visible with them."""

    table: str
    parent: str
    column: str
    """The column with the id of the parent."""
    seen_by: str
    """A SQL function that returns whether the parent with this id is visible, also if the same
    statement inserts the parent."""


class RowSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for row-level security on the tables of a room.

    - `owned`: tables with the column `org_id`.
    - `children`: tables whose rows belong to rows of these.
    - `shared`: tables whose rows every role may see and lock.
    - `grants`: the rights of a role that acts for one organisation, by table.
    - `refused`: tables on which such a role has no rights.
    """

    owned: tuple[str, ...] = ()
    children: tuple[ChildTable, ...] = ()
    shared: tuple[str, ...] = ()
    grants: Mapping[str, str] = {}
    refused: tuple[str, ...] = ()


class StoredRoom(msgspec.Struct, frozen=True, kw_only=True):
    """A room as the store sees it; `migrations` is the package of its revisions, if it has some."""

    name: str
    migrations: str | None = None
    tables: tuple[str, ...] = ()
    security: RowSecurity = RowSecurity()

    @property
    def version_table(self) -> str:
        """The Alembic version table of the room."""
        return f"ledgerstone_revision_{self.name}"

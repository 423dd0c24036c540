"""What the store knows of a room: where its migrations are, and who may see its rows."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ChildTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows belong to rows of another table, and are seen with them."""

    table: str
    parent: str
    column: str
    """Names the id of the parent."""
    seen_by: str
    """A function that answers whether the parent of this id is seen, also if the statement that
    calls it adds the parent."""


class RowSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """Who may see and write the rows of a room, where organisations are kept apart.

    - `owned`: tables whose rows name their organisation in `org_id`.
    - `children`: tables whose rows belong to rows of these.
    - `shared`: tables whose rows are the same for all: each role may see and lock them.
    - `grants`: what a role that acts for one organisation may do, by table.
    - `refused`: tables that such a role has no business with.
    """

    owned: tuple[str, ...] = ()
    children: tuple[ChildTable, ...] = ()
    shared: tuple[str, ...] = ()
    grants: Mapping[str, str] = {}
    refused: tuple[str, ...] = ()


class StoredRoom(msgspec.Struct, frozen=True, kw_only=True):
    """A room as the store sees it.

    `migrations` is the package that its revisions lie in; None: it has none of its own.
    """

    name: str
    migrations: str | None = None
    tables: tuple[str, ...] = ()
    security: RowSecurity = RowSecurity()

    @property
    def version_table(self) -> str:
        """The table that says which revision the tables of the room are at."""
        return f"ledgerstone_revision_{self.name}"

"""The namespace of a ledger: the schemas (PostgreSQL) or databases (MySQL) of its tables.

A table is declared in one of two places, which are replaced by the names of a ledger when a
statement is compiled:

    OWN      tables of Ledgerstone alone: in a schema, or a database, of their own
    SHARED   tables that another program uses, too: among the tables of the user

So a statement does not depend on the `search_path` of a joined connection, on the current database
of a MySQL session, or on temporary tables with the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect
    from sqlalchemy.sql.elements import ClauseElement

OWN, SHARED = "ledgerstone_own", "ledgerstone_shared"
_MAP: Any = {OWN: OWN, SHARED: SHARED}
"""With it SQLAlchemy writes the prefix `__[SCHEMA_ledgerstone_own].` before each table."""
_NAME = r"(?:\w+|\"(?:[^\"]|\"\")+\"|`(?:[^`]|``)+`)"
_BEFORE_COLUMN = re.compile(rf"__\[SCHEMA_\w+\]\.(?={_NAME}\.)")
_PLACE = re.compile(r"__\[SCHEMA_(\w+)\]\.")


@dataclass(frozen=True, slots=True, eq=False)
class Namespace:
    """The names of both places in one ledger; None: tables are written without a prefix.

    `namespace` makes one object for each pair of names.
    """

    own: str | None
    shared: str | None

    @property
    def options(self) -> dict[str, Any]:
        """The execution options for `Connection.execute`."""
        return {"schema_translate_map": {OWN: self.own, SHARED: self.shared}}

    def of(self, place: str | None) -> str | None:
        """The name of a place; any other schema unchanged."""
        return {OWN: self.own, SHARED: self.shared}.get(place, place) if place else None


@cache
def namespace(own: str | None, shared: str | None) -> Namespace:
    """The namespace with these names."""
    return Namespace(own, shared)


NAMELESS = namespace(None, None)
"""For SQL text whose database is not known."""


def compiled(
    element: ClauseElement, driver: DriverDialect, names: Namespace, **how: Any
) -> tuple[str, Any]:
    """The text of a statement with the names of the ledger, and SQLAlchemy's compiled object."""
    # `Any`: the type of the compiled object depends on the driver.
    made: Any = element.compile(dialect=driver, schema_translate_map=_MAP, **how)
    return _named(str(made), driver, names), made


def text_of(element: ClauseElement, driver: DriverDialect, names: Namespace) -> str:
    """The text of a statement without parameters, such as DDL."""
    return compiled(element, driver, names)[0].strip()


def table_name(table: Any, driver: DriverDialect, names: Namespace) -> str:
    """The quoted name of a table with its place."""
    preparer = driver.identifier_preparer
    place = names.of(table.schema)
    quoted = str(preparer.quote(table.name))
    return quoted if place is None else f"{preparer.quote_schema(place)}.{quoted}"


def _named(text: str, driver: DriverDialect, names: Namespace) -> str:
    def place(found: re.Match[str]) -> str:
        name = names.of(found[1])
        return "" if name is None else f"{driver.identifier_preparer.quote_schema(name)}."

    # A column needs only the name of its table; without the place the text is shorter.
    return _PLACE.sub(place, _BEFORE_COLUMN.sub("", text))

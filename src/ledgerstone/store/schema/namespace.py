"""Where the tables lie: in which schema of PostgreSQL, or in which database of MySQL.

A table is declared in one of two places. No database sees their words: a statement is given the
names of a ledger when it is compiled, once.

    OWN      tables of Ledgerstone alone: a schema, or a database, of their own
    SHARED   tables that another program looks for: where the tables of the user lie

So a statement finds its tables whatever the `search_path` of a joined connection is, whichever
database a session of MySQL uses, and whether or not a temporary table has the same name.
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
"""SQLAlchemy then writes `__[SCHEMA_ledgerstone_own].` wherever it names a table."""
_NAME = r"(?:\w+|\"(?:[^\"]|\"\")+\"|`(?:[^`]|``)+`)"
_BEFORE_COLUMN = re.compile(rf"__\[SCHEMA_\w+\]\.(?={_NAME}\.)")
_PLACE = re.compile(r"__\[SCHEMA_(\w+)\]\.")


@dataclass(frozen=True, slots=True, eq=False)
class Namespace:
    """The names of both places in one ledger; None: tables are written without one.

    There is one of each kind: two with the same names are the same object.
    """

    own: str | None
    shared: str | None

    @property
    def options(self) -> dict[str, Any]:
        """For `Connection.execute`, where a statement of ours is not a `Statement`."""
        return {"schema_translate_map": {OWN: self.own, SHARED: self.shared}}

    def of(self, place: str | None) -> str | None:
        """The name of the place that a table is declared in; other schemas are what they say."""
        return {OWN: self.own, SHARED: self.shared}.get(place, place) if place else None


@cache
def namespace(own: str | None, shared: str | None) -> Namespace:
    """The namespace with these names."""
    return Namespace(own, shared)


NAMELESS = namespace(None, None)
"""For text that goes to a database whose names are not known."""


def compiled(
    element: ClauseElement, driver: DriverDialect, names: Namespace, **how: Any
) -> tuple[str, Any]:
    """The text of a statement with the names of its tables, and what SQLAlchemy knows of it."""
    # `Any`: which compiler answers depends on the driver.
    made: Any = element.compile(dialect=driver, schema_translate_map=_MAP, **how)
    return _named(str(made), driver, names), made


def text_of(element: ClauseElement, driver: DriverDialect, names: Namespace) -> str:
    """The text of a statement without parameters, such as one that makes a table."""
    return compiled(element, driver, names)[0].strip()


def table_name(table: Any, driver: DriverDialect, names: Namespace) -> str:
    """A table as it is written in a statement, with its place."""
    preparer = driver.identifier_preparer
    place = names.of(table.schema)
    quoted = str(preparer.quote(table.name))
    return quoted if place is None else f"{preparer.quote_schema(place)}.{quoted}"


def _named(text: str, driver: DriverDialect, names: Namespace) -> str:
    def place(found: re.Match[str]) -> str:
        name = names.of(found[1])
        return "" if name is None else f"{driver.identifier_preparer.quote_schema(name)}."

    # A column is found by the name of its table alone: with the place the text would be longer.
    return _PLACE.sub(place, _BEFORE_COLUMN.sub("", text))

"""Named statements: compiled once per dialect, run on the driver's own cursor, measured.

Written once as SQLAlchemy Core expressions. The cost per call is the driver's plus the timing: the
expression is turned into text and a parameter order once per dialect and driver. Values go in and
rows come out as the driver takes and gives them; tables are declared so that these are plain
strings, numbers and bytes on all databases.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sqlalchemy.sql.dml import UpdateBase

from ledgerstone.store.expressions import NOW
from ledgerstone.store.faults import refused

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect
    from sqlalchemy.sql.elements import ClauseElement

    from ledgerstone.store.transaction import Transaction

Row = tuple[Any, ...]


class Compiled:
    """A statement's text for one driver, and how its parameters are handed over."""

    __slots__ = ("_fixed", "_order", "_processors", "takes_now", "text")

    def __init__(
        self, expression: ClauseElement, driver: DriverDialect, amend: Callable[[str], str]
    ) -> None:
        # `Any`: which compiler answers depends on the driver, and its bind processors, the
        # conversions its types ask for, have no public name.
        compiled: Any = expression.compile(
            dialect=driver, compile_kwargs={"render_postcompile": True}
        )
        self.text = amend(compiled.string)
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        self._processors: dict[str, Callable[[Any], Any]] = dict(compiled._bind_processors)  # noqa: SLF001
        self._fixed: dict[str, Any] = {
            name: self._processed(name, value)
            for name, value in compiled.params.items()
            if value is not None
        }
        self.takes_now = NOW in compiled.params
        for name in self._fixed:
            self._processors.pop(name, None)

    def parameters(self, values: dict[str, Any]) -> Any:
        """What the driver's `execute` takes beside the text."""
        if self._processors:
            values = {name: self._processed(name, value) for name, value in values.items()}
        if self._fixed:
            values = self._fixed | values
        if self._order is None:
            return values
        return tuple([values[name] for name in self._order])

    def _processed(self, name: str, value: Any) -> Any:
        process = self._processors.get(name)
        return process(value) if process is not None else value


class Statement:
    """One named statement; `amend` adds to its text what SQLAlchemy has no words for.

    `writes` is for one that changes rows and does not look like it.
    """

    def __init__(
        self,
        name: str,
        expression: ClauseElement,
        *,
        amend: Callable[[str], str] = str,
        writes: bool | None = None,
    ) -> None:
        self.name = name
        self._expression = expression
        self._amend = amend
        self._writes = isinstance(expression, UpdateBase) if writes is None else writes
        self._compiled: dict[Any, Compiled] = {}

    def rows(self, tx: Transaction, **values: Any) -> list[Row]:
        """Run it and read all its rows."""
        cursor, started = self._execute(tx, values)
        try:
            rows: list[Row] = list(cursor.fetchall())
        except Exception as error:
            raise refused(error) from error
        finally:
            cursor.close()
        seconds = perf_counter() - started
        # What a changing statement answers are the rows that it wrote.
        if self._writes:
            tx.database.measure.note(self.name, seconds, written=len(rows))
        else:
            tx.database.measure.note(self.name, seconds, read=len(rows))
        return rows

    def one(self, tx: Transaction, **values: Any) -> Row | None:
        """Run it and read its only row, if there is one."""
        rows = self.rows(tx, **values)
        return rows[0] if rows else None

    def run(self, tx: Transaction, **values: Any) -> int:
        """Run it and answer how many rows it changed."""
        cursor, started = self._execute(tx, values)
        changed: int = cursor.rowcount
        cursor.close()
        tx.database.measure.note(self.name, perf_counter() - started, written=max(changed, 0))
        return changed

    def compiled(self, tx: Transaction) -> Compiled:
        """Its text for the driver of this transaction."""
        driver = tx.connection.dialect
        key = (driver.name, driver.driver, getattr(driver, "is_mariadb", False))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = Compiled(self._expression, driver, self._amend)
        return compiled

    def _execute(self, tx: Transaction, values: dict[str, Any]) -> tuple[Any, float]:
        compiled = self.compiled(tx)
        self._fill_now(tx, compiled, values)
        parameters = compiled.parameters(values)
        cursor = tx.cursor()
        started = perf_counter()
        try:
            cursor.execute(compiled.text, parameters)
        except Exception as error:
            cursor.close()
            raise refused(error) from error
        return cursor, started

    @staticmethod
    def _fill_now(tx: Transaction, compiled: Compiled, values: dict[str, Any]) -> None:
        if compiled.takes_now:
            values.setdefault(NOW, tx.database.clock.now_ms())

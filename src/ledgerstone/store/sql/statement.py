"""Named statements: compiled once for each driver, run on the driver's own cursor, and measured.

A statement is written once as a SQLAlchemy Core expression. Its text and parameter order are
compiled once, so a call costs what the driver costs, and the timing. Values and rows are those of
the driver: tables are declared so that these are strings, numbers and bytes on all databases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import LargeBinary
from sqlalchemy.sql.dml import UpdateBase

from ledgerstone import cancellation
from ledgerstone.store.connections.faults import is_of_the_call, refused
from ledgerstone.store.schema import namespace
from ledgerstone.store.sql.expressions import NOW

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect
    from sqlalchemy.sql.elements import ClauseElement

    from ledgerstone.store.dialects.postgres.pipeline import Noted, PipelineAnswer
    from ledgerstone.store.schema.namespace import Namespace
    from ledgerstone.store.transaction import Transaction

Row = tuple[Any, ...]
NOT_A_NUMBER = float("nan")
"""SQLite stores it as NULL. For None its driver searches an adapter, which takes 0.8 µs a value."""


class Compiled:
    """The text of a statement for one driver, and the form of its parameters."""

    __slots__ = ("_fixed", "_null", "_order", "_processors", "takes_now", "text")

    def __init__(
        self,
        expression: ClauseElement,
        driver: DriverDialect,
        names: Namespace,
        amend: Callable[[str], str],
    ) -> None:
        # The bind processors, which convert values for the types, have no public name.
        text, compiled = namespace.compiled(
            expression, driver, names, compile_kwargs={"render_postcompile": True}
        )
        self.text = amend(text)
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        # Every driver takes bytes; SQLAlchemy's wrapper of them cannot be sent by the pipeline.
        self._processors: dict[str, Callable[[Any], Any]] = {
            name: process
            for name, process in compiled._bind_processors.items()  # noqa: SLF001
            if not isinstance(compiled.binds[name].type, LargeBinary)
        }
        self._fixed: dict[str, Any] = {
            name: self._processed(name, value)
            for name, value in compiled.params.items()
            if value is not None
        }
        self.takes_now = NOW in compiled.params
        for name in self._fixed:
            self._processors.pop(name, None)
        self._null = NOT_A_NUMBER if driver.name == "sqlite" else None

    def parameters(self, values: dict[str, Any]) -> Any:
        """The parameters for the driver's `execute`."""
        if self._processors:
            values = {name: self._processed(name, value) for name, value in values.items()}
        if self._fixed:
            values = self._fixed | values
        if self._order is None:
            return values
        if self._null is None:
            return tuple([values[name] for name in self._order])
        null = self._null
        return tuple([null if (v := values[name]) is None else v for name in self._order])

    def many(self, rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        """The parameters of each row, for the driver's `executemany`."""
        if self._processors or self._fixed or self._order is None or len(self._order) == 1:
            return [self.parameters(values) for values in rows]
        return list(map(itemgetter(*self._order), rows))

    def _processed(self, name: str, value: Any) -> Any:
        process = self._processors.get(name)
        return process(value) if process is not None else value


class Statement:
    """One named statement.

    - `amend` changes the text where SQLAlchemy has no expression for it.
    - `writes`: the statement changes rows, though the expression is a SELECT.
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
        self._last: tuple[DriverDialect, Namespace, Compiled] | None = None
        """The last used entry, as one value: threads may change it at any time."""

    def rows(self, tx: Transaction, **values: Any) -> list[Row]:
        """Run it and return all its rows."""
        answer = self._held(tx, values, writes=self._writes)
        return answer.rows() if answer is not None else self._rows(tx, values)

    def later(self, tx: Transaction, **values: Any) -> Callable[[], list[Row]]:
        """Run it, at the latest when the returned function is called, which reads its rows."""
        answer = self._held(tx, values, writes=self._writes)
        if answer is not None:
            return answer.rows
        rows = self._rows(tx, values)
        return lambda: rows

    def _rows(self, tx: Transaction, values: dict[str, Any]) -> list[Row]:
        cursor, started = self._execute(tx, values)
        try:
            rows: list[Row] = list(cursor.fetchall())
        except Exception as error:
            raise refused(error) from error
        finally:
            cursor.close()
        seconds = perf_counter() - started
        # The rows that a writing statement returns are those that it wrote.
        if self._writes:
            tx.database.measure.note(self.name, seconds, written=len(rows))
        else:
            tx.database.measure.note(self.name, seconds, read=len(rows))
        return rows

    def one(self, tx: Transaction, **values: Any) -> Row | None:
        """Run it and return its first row, or None."""
        rows = self.rows(tx, **values)
        return rows[0] if rows else None

    def run(self, tx: Transaction, **values: Any) -> int:
        """Run it and return how many rows it changed."""
        answer = self._held(tx, values, writes=True)
        return answer.count() if answer is not None else self._run(tx, values)

    def send(self, tx: Transaction, **values: Any) -> None:
        """Run it, at the latest with the next statement whose result is read, or with the commit.

        Its error is raised there.
        """
        if self._held(tx, values, writes=self._writes) is not None:
            return
        if self._writes:
            self._run(tx, values)
        else:
            self._rows(tx, values)

    def must_change(self, tx: Transaction, otherwise: Exception, **values: Any) -> None:
        """Run it, with the commit at the latest; raises `otherwise` if it changes no row."""
        if tx.pipeline is not None:
            sent = self._sent(tx, values)
            if tx.pipeline.hold_to_commit(
                *sent, self._noting(tx, writes=True), otherwise=otherwise
            ):
                return
        if not self._run(tx, values):
            raise otherwise

    def _run(self, tx: Transaction, values: dict[str, Any]) -> int:
        cursor, started = self._execute(tx, values)
        changed: int = cursor.rowcount
        cursor.close()
        tx.database.measure.note(self.name, perf_counter() - started, written=max(changed, 0))
        return changed

    def run_many(self, tx: Transaction, rows: Sequence[dict[str, Any]]) -> int:
        """Run it for each of these parameters and return how many rows it changed."""
        if len(rows) == 1:
            return self.run(tx, **rows[0])
        cancellation.check()
        compiled = self.compiled(tx)
        if compiled.takes_now:
            now = tx.database.clock.now_ms()
            rows = [{NOW: now, **values} for values in rows]
        parameters = compiled.many(rows)
        cursor = tx.own_cursor()
        started = perf_counter()
        try:
            cursor.executemany(compiled.text, parameters)
        except Exception as error:
            if self._is_refused(tx, cursor, error):
                raise refused(error) from error
            raise
        changed: int = cursor.rowcount
        cursor.close()
        tx.database.measure.note(self.name, perf_counter() - started, written=max(changed, 0))
        return changed

    def added(self, tx: Transaction, **values: Any) -> int:
        """Run an INSERT of one row and return its auto-increment number."""
        cursor, started = self._execute(tx, values)
        number: int = cursor.lastrowid
        cursor.close()
        tx.database.measure.note(self.name, perf_counter() - started, written=1)
        return number

    def compiled(self, tx: Transaction) -> Compiled:
        """Its text for the driver of this transaction and the namespace of the ledger."""
        driver = tx.driver
        names = tx.database.namespace
        last = self._last
        if last is not None and last[0] is driver and last[1] is names:
            return last[2]
        key = (driver.name, driver.driver, getattr(driver, "is_mariadb", False), names)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = Compiled(self._expression, driver, names, self._amend)
        self._last = (driver, names, compiled)
        return compiled

    def _held(
        self, tx: Transaction, values: dict[str, Any], *, writes: bool
    ) -> PipelineAnswer | None:
        """Its result, if the pipeline of the transaction takes it; None: run it on a cursor."""
        if tx.pipeline is None:
            return None
        tx.check_open()
        return tx.pipeline.hold_statement(*self._sent(tx, values), self._noting(tx, writes=writes))

    def _sent(self, tx: Transaction, values: dict[str, Any]) -> tuple[str, Any]:
        """The text and the parameters of one run."""
        cancellation.check()
        compiled = self.compiled(tx)
        if compiled.takes_now:
            values.setdefault(NOW, tx.database.clock.now_ms())
        return compiled.text, compiled.parameters(values)

    def _noting(self, tx: Transaction, *, writes: bool) -> Noted:
        measure = tx.database.measure

        def noted(rows: int, seconds: float, together: float) -> None:
            if writes:
                measure.note(self.name, seconds, written=rows, together=together)
            else:
                measure.note(self.name, seconds, read=rows, together=together)

        return noted

    def _execute(self, tx: Transaction, values: dict[str, Any]) -> tuple[Any, float]:
        text, parameters = self._sent(tx, values)
        cursor = tx.own_cursor()
        started = perf_counter()
        try:
            cursor.execute(text, parameters)
        except Exception as error:
            if self._is_refused(tx, cursor, error):
                raise refused(error) from error
            raise
        return cursor, started

    @staticmethod
    def _is_refused(tx: Transaction, cursor: Any, error: Exception) -> bool:
        """Whether the database refused the statement; otherwise the call was interrupted."""
        if not is_of_the_call(error, tx.driver):
            tx.break_off()
            return False
        cursor.close()
        return True

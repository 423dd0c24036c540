"""Named statements: compiled once per dialect, run on the driver's own cursor, measured.

Written once as SQLAlchemy Core expressions. The cost per call is the driver's plus the timing: the
expression is turned into text and a parameter order once per dialect and driver. Values go in and
rows come out as the driver takes and gives them; tables are declared so that these are plain
strings, numbers and bytes on all databases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import LargeBinary
from sqlalchemy.sql.dml import UpdateBase

from ledgerstone.cancellation import check as check_cancellation
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
"""SQLite keeps it as NULL. Its driver looks for an adapter for each None, 0.8 µs a value."""
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
"""As psycopg's texts name one; a per cent sign is doubled."""


class Compiled:
    """A statement's text for one driver, and how its parameters are handed over."""

    __slots__ = ("_fixed", "_null", "_numbered", "_order", "_processors", "takes_now", "text")

    def __init__(
        self,
        expression: ClauseElement,
        driver: DriverDialect,
        names: Namespace,
        amend: Callable[[str], str],
    ) -> None:
        # Its bind processors, the conversions its types ask for, have no public name.
        text, compiled = namespace.compiled(
            expression, driver, names, compile_kwargs={"render_postcompile": True}
        )
        self.text = amend(text)
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        # Every driver takes bytes as they are, and what SQLAlchemy makes of them cannot be wired.
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
        self._numbered: tuple[bytes, list[str]] | None = None
        self._null = NOT_A_NUMBER if driver.name == "sqlite" else None

    def parameters(self, values: dict[str, Any]) -> Any:
        """What the driver's `execute` takes beside the text."""
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
        """The same for each of these."""
        if self._processors or self._fixed or self._order is None or len(self._order) == 1:
            return [self.parameters(values) for values in rows]
        return list(map(itemgetter(*self._order), rows))

    def wired(self, values: dict[str, Any]) -> tuple[bytes, list[bytes | None]] | None:
        """What PostgreSQL itself takes, without the driver; None if that must look at a value."""
        if self._numbered is None:
            self._numbered = _numbered(self.text)
        text, names = self._numbered
        given = self.parameters(values)
        try:
            values_in_order = [given[name] for name in names]
            return text, [None if v is None else _WIRED[type(v)](v) for v in values_in_order]
        except (KeyError, ValueError):
            return None

    def _processed(self, name: str, value: Any) -> Any:
        process = self._processors.get(name)
        return process(value) if process is not None else value


def _numbered(text: str) -> tuple[bytes, list[str]]:
    """The text with its parameters as $1, $2, …, and their names in this order."""
    names: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    numbered = _PARAMETER.sub(place, text)
    return numbered.encode(), list(names)


def _text(value: str) -> bytes:
    if "\0" in value:
        raise ValueError(value)
    return value.encode()


_WIRED: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"true" if value else b"false",
    bytes: lambda value: b"\\x" + value.hex().encode(),
}
"""How PostgreSQL reads a value of each type from text."""


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
        self._last: tuple[DriverDialect, Namespace, Compiled] | None = None
        """What was used last, as one value: threads may change it at any time."""

    def rows(self, tx: Transaction, **values: Any) -> list[Row]:
        """Run it and read all its rows."""
        answer = self._held(tx, values, writes=self._writes)
        return answer.rows() if answer is not None else self._rows(tx, values)

    def later(self, tx: Transaction, **values: Any) -> Callable[[], list[Row]]:
        """Run it, and read its rows when this is called; until then it may not have been sent."""
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
        answer = self._held(tx, values, writes=True)
        return answer.count() if answer is not None else self._run(tx, values)

    def send(self, tx: Transaction, **values: Any) -> None:
        """Run it, with the next one whose answer is read or with the commit at the latest.

        What the database has against it is raised then.
        """
        if self._held(tx, values, writes=self._writes) is not None:
            return
        if self._writes:
            self._run(tx, values)
        else:
            self._rows(tx, values)

    def must_change(self, tx: Transaction, otherwise: Exception, **values: Any) -> None:
        """Run it, with the commit at the latest; raises `otherwise` if it changes no row."""
        wired = self._wired(tx, values)
        if wired is not None and tx.pipeline is not None:
            noted = self._noting(tx, writes=True)
            tx.pipeline.hold_to_commit(*wired, noted, otherwise=otherwise)
        elif not self._run(tx, values):
            raise otherwise

    def _run(self, tx: Transaction, values: dict[str, Any]) -> int:
        cursor, started = self._execute(tx, values)
        changed: int = cursor.rowcount
        cursor.close()
        tx.database.measure.note(self.name, perf_counter() - started, written=max(changed, 0))
        return changed

    def run_many(self, tx: Transaction, rows: Sequence[dict[str, Any]]) -> int:
        """Run it for each of these and answer how many rows it changed."""
        if len(rows) == 1:
            return self.run(tx, **rows[0])
        check_cancellation()
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
        """Run it and answer the number that the database gave the row it added."""
        cursor, started = self._execute(tx, values)
        number: int = cursor.lastrowid
        cursor.close()
        tx.database.measure.note(self.name, perf_counter() - started, written=1)
        return number

    def compiled(self, tx: Transaction) -> Compiled:
        """Its text for the driver of this transaction, and for where the ledger's tables lie."""
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
        """Where statements travel together: the answer that it will have."""
        wired = self._wired(tx, values)
        if wired is None or tx.pipeline is None:
            return None
        return tx.pipeline.hold(*wired, self._noting(tx, writes=writes))

    def _wired(
        self, tx: Transaction, values: dict[str, Any]
    ) -> tuple[bytes, list[bytes | None]] | None:
        """What travels together with others, where statements do."""
        if tx.pipeline is None:
            return None
        check_cancellation()
        compiled = self.compiled(tx)
        self._fill_now(tx, compiled, values)
        wired = compiled.wired(values)
        if wired is not None:
            tx.check_open()
        return wired

    def _noting(self, tx: Transaction, *, writes: bool) -> Noted:
        measure = tx.database.measure

        def noted(rows: int, seconds: float, together: float) -> None:
            if writes:
                measure.note(self.name, seconds, written=rows, together=together)
            else:
                measure.note(self.name, seconds, read=rows, together=together)

        return noted

    def _execute(self, tx: Transaction, values: dict[str, Any]) -> tuple[Any, float]:
        check_cancellation()
        compiled = self.compiled(tx)
        self._fill_now(tx, compiled, values)
        parameters = compiled.parameters(values)
        cursor = tx.own_cursor()
        started = perf_counter()
        try:
            cursor.execute(compiled.text, parameters)
        except Exception as error:
            if self._is_refused(tx, cursor, error):
                raise refused(error) from error
            raise
        return cursor, started

    @staticmethod
    def _is_refused(tx: Transaction, cursor: Any, error: Exception) -> bool:
        """Whether the database refused it; otherwise the call was broken off."""
        if not is_of_the_call(error, tx.driver):
            tx.break_off()
            return False
        cursor.close()
        return True

    @staticmethod
    def _fill_now(tx: Transaction, compiled: Compiled, values: dict[str, Any]) -> None:
        if compiled.takes_now:
            values.setdefault(NOW, tx.database.clock.now_ms())

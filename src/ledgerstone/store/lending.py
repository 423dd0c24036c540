"""A connection that the pool has lent for one transaction of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Lent:
    """The driver's connection; SQLAlchemy's is laid over it when it is first asked for.

    Making one, beginning and ending it costs as much as a short statement, and most transactions of
    ours have no use for it.
    """

    def __init__(self, engine: Engine, *, reads: bool = False) -> None:
        self.dialect = engine.dialect
        self.fairy = engine.raw_connection()
        self._engine = engine
        self._reads = reads
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, its transaction begun."""
        if self._connection is None:
            made = Connection(self._engine, self.fairy)
            if self._reads:
                made = made.execution_options(ledgerstone_read=True)
            self._connection = made
            made.begin()
        return self._connection

    def commit(self) -> None:
        """Commit what SQLAlchemy's connection began, if it was asked for."""
        if self._connection is not None:
            self._connection.commit()

    def close(self) -> None:
        """Give it back; what is not committed is undone."""
        lent: Any = self._connection if self._connection is not None else self.fairy
        lent.close()

    def give_up(self, *, lost: bool) -> None:
        """Undo and give back one whose transaction failed, or throw it away."""
        lent: Any = self._connection if self._connection is not None else self.fairy
        if self._connection is not None and self._connection.closed:
            # It was lost while it was closed, and is thrown away already.
            return
        try:
            if lost or getattr(self.fairy.dbapi_connection, "closed", False):
                lent.invalidate()
            lent.close()
        except Exception:  # noqa: BLE001 - also a driver's own error while it is torn down
            lent.invalidate()

"""Implicit commits and rollbacks on MySQL and MariaDB, detected on the driver's connection.

    SAVEPOINT guard ─▶ a statement that may commit ─▶ RELEASE SAVEPOINT guard ─▶ 1305: it was ended

Many statements commit the open transaction: DDL, TRUNCATE, LOCK TABLES, SET autocommit = 1, a
procedure with a COMMIT; also some that fail. The server does not report it, and the next statement
begins another transaction. The server status shows it for some statements only, so a savepoint is
set before each statement that is not known to be harmless: a commit removes the savepoint.

This works with PyMySQL. The connection of mysqlclient is written in C; there only the text of a
statement is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from ledgerstone.store.connections import block_end

GUARD = "ledgerstone_guard"
WORDS_MAX = 400
"""The part of a statement that is matched."""
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2
"""Bits of the server's status."""
_MULTI_STATEMENTS = 1 << 16
"""The flag of a connection that takes several statements in one text."""
_NO_SUCH_SAVEPOINT = 1305
_Driver: Any = object
_UNDOING, _ENDED, _OPEN = "ledgerstone_undoing", "ledgerstone_ended", "ledgerstone_open"
"""Attributes of a driver's connection: the errors that roll back a whole transaction, the error to
raise if the transaction was ended, and whether a transaction of ours is open."""
_HARMLESS = re.compile(
    block_end.BEFORE
    + r"\(*\s*(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|SAVEPOINT|RELEASE|SHOW|DESC"
    r"|DESCRIBE|EXPLAIN|ROLLBACK(?:\s+WORK)?\s+TO|DO|USE)\b",
    re.IGNORECASE | re.DOTALL,
)
_WRITES = re.compile(block_end.BEFORE + r"(?:INSERT|REPLACE|DELETE)\b", re.IGNORECASE | re.DOTALL)
_COMMITS = re.compile(
    block_end.BEFORE
    + r"(?:ALTER|CREATE(?!(?:\s+OR\s+REPLACE)?\s+TEMPORARY)|DROP(?!\s+TEMPORARY)|RENAME|TRUNCATE"
    r"|ANALYZE\s+(?:LOCAL\s+|NO_WRITE_TO_BINLOG\s+)?TABLE|(?:CHECK|OPTIMIZE|REPAIR)\s.*?TABLE"
    r"|LOCK\s+TABLES?|UNLOCK\s+TABLES?|FLUSH|GRANT|REVOKE|INSTALL|UNINSTALL|SET\s+PASSWORD"
    r"|SET\s+.*?\bautocommit\s*:?=\s*(?:1|ON|TRUE))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements with an implicit commit; those for temporary tables have none."""


def commits(text: str) -> bool:
    """Whether this statement is known to commit implicitly."""
    return _COMMITS.match(text) is not None


def is_open(driver: Any) -> bool:
    """Whether the server reports an open transaction."""
    return bool((getattr(driver, "server_status", None) or 0) & _IN_TRANSACTION)


def prepare(driver: Any, undoing: Collection[int]) -> None:
    """Set up a new connection; `undoing` are the errors that roll back a whole transaction."""
    setattr(driver, _UNDOING, frozenset(undoing))
    setattr(driver, _ENDED, None)
    setattr(driver, _OPEN, False)


def begin(driver: Any) -> None:
    """Note that a transaction of ours begins: watch for its end."""
    setattr(driver, _ENDED, None)
    setattr(driver, _OPEN, True)


def end(driver: Any) -> None:
    """Stop watching: the transaction ends regularly."""
    setattr(driver, _OPEN, False)


def check(driver: Any) -> None:
    """Raise an error if the transaction was ended."""
    look = getattr(driver, "look_for_guard", None)
    if look is not None:
        look()
    say: Callable[[], Exception] | None = getattr(driver, _ENDED)
    if say is not None:
        raise say()


def is_spoiled(driver: Any) -> bool:
    """Whether code in the block has ended its transaction, so that the session is discarded."""
    return getattr(driver, _ENDED, None) is block_end.over


def _note_error(driver: Any, error: BaseException) -> None:
    if error.args and error.args[0] in getattr(driver, _UNDOING, ()):
        setattr(driver, _ENDED, block_end.met_another)


def _words(text: Any) -> str:
    words = text[:WORDS_MAX]
    return words if isinstance(words, str) else bytes(words).decode("latin-1")


class ImplicitCommitGuard(_Driver):  # type: ignore[misc]
    """A mixin for PyMySQL's connection that records the end of a transaction.

    Cursors of every class call its `query`.
    """

    guarded = False
    """Whether the savepoint is set and was not checked yet."""

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        if not getattr(self, _OPEN, False):
            return super().query(sql, unbuffered)
        self.look_for_guard()
        words = _words(sql)
        if self.client_flag & _MULTI_STATEMENTS or not _HARMLESS.match(words):
            return self._guarded_query(sql, unbuffered)
        answer = self._noted_query(sql, unbuffered)
        if self._result.description and _WRITES.match(words):
            # A result set does not carry the server's status.
            self.server_status |= _IN_TRANSACTION
        return answer

    def look_for_guard(self) -> None:
        """Check and release the savepoint, unless results are still to be read."""
        if self.server_status & _AUTOCOMMIT and getattr(self, _OPEN, False):
            setattr(self, _ENDED, block_end.over)
        result: Any = getattr(self, "_result", None)
        reading = result is not None and (result.has_next or result.unbuffered_active)
        if not self.guarded or reading:
            return
        self.guarded = False
        try:
            super().query(f"RELEASE SAVEPOINT {GUARD}")
        except Exception as error:  # noqa: BLE001 - a lost connection, which the next call meets
            gone = bool(error.args) and error.args[0] == _NO_SUCH_SAVEPOINT
            if gone and getattr(self, _ENDED, None) is not block_end.met_another:
                setattr(self, _ENDED, block_end.over)
        finally:
            self._result = result

    def commit(self) -> None:
        self._note_end()
        super().commit()

    def rollback(self) -> None:
        self._note_end()
        super().rollback()

    def begin(self) -> None:
        self._note_end()
        super().begin()

    def _guarded_query(self, sql: Any, unbuffered: bool) -> Any:
        if is_open(self):
            super().query(f"SAVEPOINT {GUARD}")
            self.guarded = True
        try:
            return self._noted_query(sql, unbuffered)
        finally:
            self.look_for_guard()

    def _noted_query(self, sql: Any, unbuffered: bool) -> Any:
        try:
            return super().query(sql, unbuffered)
        except Exception as error:
            _note_error(self, error)
            raise

    def _note_end(self) -> None:
        """Note that code in the block ends the transaction on the driver."""
        if getattr(self, _OPEN, False) and is_open(self):
            setattr(self, _ENDED, block_end.over)


@cache
def watched_cursor() -> Any:
    """A cursor for mysqlclient that records an end by its text or by an error."""
    from MySQLdb.cursors import Cursor  # type: ignore[import-untyped]

    class WatchedCursor(Cursor):  # type: ignore[misc]
        def _query(self, text: Any) -> Any:
            try:
                answer = super()._query(text)
            except Exception as error:
                _note_error(self.connection, error)
                raise
            words = _words(text)
            if block_end.ends(words):
                setattr(self.connection, _ENDED, block_end.over)
            return answer

    return WatchedCursor

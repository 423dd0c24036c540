"""Errors for a transaction that is ended inside its block.

    with ledger.transaction() as tx:
        tx.jobs.enqueue(…)
        tx.connection.rollback()      the job is lost, and the commit at the end would succeed
        …

A commit, and a statement that would end the transaction, are refused before they are sent. Any
other end is detected before the next statement of ours and before the commit.
"""

from __future__ import annotations

import re

from ledgerstone.errors import NotAllowedNow, NotInTransaction, StoreBusy, StoreUnavailable

_HINT = (
    "let the block end the transaction; use a savepoint (`with tx.savepoint():`, or begin_nested)"
    " for a partial rollback, and another connection for a separate commit"
)
BEFORE = r"(?:\s|/\*(?!M?!).*?\*/|--[^\n]*\n|#[^\n]*\n)*"
"""White space and comments before a statement; on MySQL, `/*!` does not begin a comment."""
SHOWN_CHARS_MAX = 80
_ENDS = re.compile(
    BEFORE + r"(?:COMMIT|END|ABORT|START\s+TRANSACTION|BEGIN(?!\s+NOT\s+ATOMIC)"
    r"|ROLLBACK(?!(?:\s+(?:WORK|TRANSACTION))?\s+TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that end a transaction; on MySQL, a BEGIN commits the open one."""


def ends(statement: str) -> bool:
    """Whether this statement would end its transaction."""
    return _ENDS.match(statement) is not None


def shown(statement: str) -> str:
    """A statement in one line, shortened for an error."""
    words = " ".join(statement.split())
    return words if len(words) <= SHOWN_CHARS_MAX else f"{words[: SHOWN_CHARS_MAX - 1]}…"


def refused(what: str) -> NotAllowedNow:
    """The statement or call would end the transaction."""
    return NotAllowedNow(f"{what} inside the block of a transaction is refused", hint=_HINT)


def undone() -> NotAllowedNow:
    """The transaction was rolled back."""
    message = "the code in the block ended the transaction: nothing of it is kept"
    return NotAllowedNow(message, hint=_HINT)


def over() -> NotAllowedNow:
    """The transaction has ended; whether by a commit or a rollback is not known."""
    message = (
        "the transaction was ended inside its block: if that was a commit, what came before it"
        " cannot be taken back; everything else is undone"
    )
    return NotAllowedNow(message, hint=_HINT)


def after_the_block() -> NotAllowedNow:
    """The transaction was used after its block."""
    message = "the transaction has ended with its block: nothing more can be done in it"
    return NotAllowedNow(message, hint="do it inside the block, or in another transaction")


def ended_by_its_owner() -> NotInTransaction:
    """The joined transaction was used after its owner had ended it."""
    message = "the transaction that was joined has ended: nothing more can be done in it"
    return NotInTransaction(message, hint="join the next transaction: call `ledger.join` again")


def met_another() -> StoreBusy:
    """The server rolled back the transaction for a deadlock, and the error was caught."""
    message = (
        "the server rolled back the whole transaction (a deadlock), and the error was caught"
        " inside: nothing of it is kept"
    )
    return StoreBusy(message, hint="let the error through, and run the transaction again")


def lost() -> StoreUnavailable:
    """The connection was lost."""
    message = "the connection was lost inside the transaction: nothing of it is kept"
    return StoreUnavailable(message, hint="run the transaction again")


def broken_off() -> StoreUnavailable:
    """A call on the connection was interrupted, and the error was caught inside the block."""
    message = "a call of the driver was interrupted inside the transaction: nothing of it is kept"
    return StoreUnavailable(message, hint="let the error through, and run the transaction again")

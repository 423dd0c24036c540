"""A transaction of ours that is ended inside its block: what is refused, and what is said of it.

    with ledger.transaction() as tx:
        tx.jobs.enqueue(…)
        tx.connection.rollback()      the job is gone, and the commit at the end would not tell
        …

A commit is refused before it happens, and so is a statement that would end the transaction. What
has ended it all the same is noticed before the next statement of ours and before the commit.
"""

from __future__ import annotations

import re

from ledgerstone.errors import NotAllowedNow, StoreBusy, StoreUnavailable

_HINT = (
    "leave the end to the block; use a savepoint (`with tx.savepoint():`, or begin_nested) for what"
    " may be undone, and a connection of your own for what is kept by itself"
)
BEFORE = r"(?:\s|/\*(?!M?!).*?\*/|--[^\n]*\n|#[^\n]*\n)*"
"""What may stand before the first word of a statement; what `/*!` begins is no comment on MySQL."""
SHOWN_CHARS_MAX = 80
_ENDS = re.compile(
    BEFORE + r"(?:COMMIT|END|ABORT|START\s+TRANSACTION|BEGIN(?!\s+NOT\s+ATOMIC)"
    r"|ROLLBACK(?!(?:\s+(?:WORK|TRANSACTION))?\s+TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""To begin another one commits the first, on MySQL."""


def ends(statement: str) -> bool:
    """Whether this text would end the transaction that it is sent in."""
    return _ENDS.match(statement) is not None


def shown(statement: str) -> str:
    """A statement as an error names it."""
    words = " ".join(statement.split())
    return words if len(words) <= SHOWN_CHARS_MAX else f"{words[: SHOWN_CHARS_MAX - 1]}…"


def refused(what: str) -> NotAllowedNow:
    """It was about to be ended."""
    return NotAllowedNow(f"{what} inside the block of a transaction is refused", hint=_HINT)


def undone() -> NotAllowedNow:
    """It was rolled back."""
    message = "the code in the block ended the transaction: nothing of it is kept"
    return NotAllowedNow(message, hint=_HINT)


def over() -> NotAllowedNow:
    """It is open no more, and nobody saw how it ended."""
    message = (
        "the transaction was ended inside its block: if that was a commit, what came before it"
        " cannot be taken back; everything else is undone"
    )
    return NotAllowedNow(message, hint=_HINT)


def after_the_block() -> NotAllowedNow:
    """Its block was over when it was used."""
    message = "the transaction has ended with its block: nothing more can be done in it"
    return NotAllowedNow(message, hint="do it inside the block, or in another transaction")


def met_another() -> StoreBusy:
    """The server has undone it in favour of another one, and told that to whoever caught it."""
    message = (
        "the whole transaction was undone because it met another one (a deadlock), and the error"
        " was caught inside: nothing of it is kept"
    )
    return StoreBusy(message, hint="let the error through, and run the transaction again")


def lost() -> StoreUnavailable:
    """Its connection is gone."""
    message = "the connection was lost inside the transaction: nothing of it is kept"
    return StoreUnavailable(message, hint="run the transaction again")


def broken_off() -> StoreUnavailable:
    """A call on its connection was broken off, and the error caught inside the block."""
    message = "a call of the driver was broken off inside the transaction: nothing of it is kept"
    return StoreUnavailable(message, hint="let the error through, and run the transaction again")

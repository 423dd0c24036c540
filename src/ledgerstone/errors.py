"""Every refusal of Ledgerstone, one tree.

    LedgerstoneError
    ├── BadInput             what was given cannot be accepted; nothing was written
    │   └── TooLarge
    ├── KeyConflict          the key is taken by other content
    ├── NotFound
    ├── NotAllowedNow        right request, wrong state or moment
    │   └── NotInTransaction
    ├── LeaseLost            the claim or lease is another's now
    ├── Interrupted          the process is stopping; the attempt is refunded
    ├── HandlerTimeout       a handler ran longer than it may
    ├── HandlerCrashed       the process that ran a handler died
    ├── Hopeless             another attempt would end the same way
    ├── TargetDown           what a handler talks to is out of reach; no attempt is burned
    ├── SettingsError        all problems of the settings, together
    └── StoreError           the database refused
        ├── StoreUnavailable     out of reach, restarting, connection cut
        ├── StoreBusy            locked, deadlocked, serialization failure
        ├── StoreFull            no space left
        ├── StoreCorrupt         the database says its file is damaged
        ├── StoreDenied          wrong password, missing right, read-only
        ├── Duplicate            a unique constraint refused the row
        ├── WrongDatabase        the joined connection belongs to another database
        ├── Unsupported          the database or driver is too old, or of another kind
        ├── SchemaMissing        Ledgerstone's tables are not there
        └── SchemaOutdated       they are older or newer than this version of Ledgerstone

Each carries a stable `code`, says by `retryable` whether the same call may succeed later, and its
docstring says what the caller should do.
"""

from __future__ import annotations

from typing import ClassVar


class LedgerstoneError(Exception):
    """The root: catch it to catch every refusal of Ledgerstone."""

    code: ClassVar[str] = "ledgerstone"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        # Without words of its own it says what it means for the caller: an error that is raised
        # into a running thread can carry none.
        message = message or (type(self).__doc__ or "").partition("\n")[0]
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class BadInput(LedgerstoneError, ValueError):
    """Correct the input and call again. Nothing was written."""

    code = "bad_input"


class TooLarge(BadInput):
    """Make it smaller, or raise the limit that the message names."""

    code = "too_large"


class KeyConflict(LedgerstoneError):
    """The key was used before with other content. Use another key, or send the same content."""

    code = "key_conflict"


class NotFound(LedgerstoneError):
    """Check the id: nothing with it is visible here."""

    code = "not_found"


class NotAllowedNow(LedgerstoneError):
    """Look at the state the message names; the request does not fit it."""

    code = "not_allowed_now"


class NotInTransaction(NotAllowedNow):
    """Begin a transaction on the connection first, then join it."""

    code = "not_in_transaction"


class LeaseLost(LedgerstoneError):
    """Stop working on it: another holder has it, or will. Nothing of this claim can be written."""

    code = "lease_lost"


class Interrupted(LedgerstoneError):
    """The process is stopping. Leave the work as it is: it is returned, its attempt refunded."""

    code = "interrupted"
    retryable = True


class HandlerTimeout(LedgerstoneError):
    """The handler ran past its limit. Make it faster, split it, or raise its timeout."""

    code = "timeout"
    retryable = True


class HandlerCrashed(LedgerstoneError):
    """The process that ran the handler died. Look for what killed it: memory, native code."""

    code = "crashed"
    retryable = True


class Hopeless(LedgerstoneError):
    """Raise it in a handler when no other attempt can succeed: the item is dead at once."""

    code = "hopeless"


class TargetDown(LedgerstoneError):
    """Raise it in a handler when what it talks to is out of reach: the attempt is not counted."""

    code = "target_down"
    retryable = True

    def __init__(self, target: str, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message or f"{target} is out of reach", hint=hint)
        self.target = target


class SettingsError(LedgerstoneError):
    """Correct every setting it lists; nothing was started."""

    code = "settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StoreError(LedgerstoneError):
    """The database refused; the message holds its own words."""

    code = "store"


class StoreUnavailable(StoreError):
    """Try again when the database is back; what was not committed was not kept."""

    code = "store_unavailable"
    retryable = True


class StoreBusy(StoreError):
    """Run the whole transaction again: it met another one."""

    code = "store_busy"
    retryable = True


class StoreFull(StoreError):
    """Make room on the database's disk; nothing of the transaction was kept."""

    code = "store_full"
    retryable = True


class StoreCorrupt(StoreError):
    """Stop writing and restore from a backup."""

    code = "store_corrupt"


class StoreDenied(StoreError):
    """Check user, password, rights and whether the server is a read-only standby."""

    code = "store_denied"


class Duplicate(StoreError):
    """A row with this unique value is there already."""

    code = "duplicate"


class WrongDatabase(StoreError):
    """Join a connection to the database that the ledger was opened on."""

    code = "wrong_database"


class Unsupported(StoreError):
    """Use a version or driver that the message names."""

    code = "unsupported"


class SchemaMissing(StoreError):
    """Run `ledgerstone migrate` on this database."""

    code = "schema_missing"


class SchemaOutdated(StoreError):
    """Run `ledgerstone migrate`; if the database is newer, update Ledgerstone instead."""

    code = "schema_outdated"

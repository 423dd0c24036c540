"""Every refusal of Ledgerstone, one tree.

    LedgerstoneError
    ├── BadInput             what was given cannot be accepted; nothing was written
    │   ├── TooLarge
    │   ├── Malformed            the bytes encode nothing of the expected kind
    │   ├── KeyAmbiguous         the id would make a key that can be read in two ways
    │   ├── AddressInvalid       no Kaspa address, or one of another network
    │   ├── DerivationPathInvalid
    │   ├── HashMismatch         the content has another hash than it was announced with
    │   └── SignatureInvalid     the signature, or the key that it is checked with, is wrong
    ├── KeyConflict          the key is taken by other content
    │   ├── EventReplayed        accepted before, with other content or for another request
    │   └── VoteChanged          the member voted before, and differently
    ├── NotFound
    │   └── ContentMissing       bytes of a file are not there
    ├── NotAllowedNow        right request, wrong state or moment
    │   ├── NotInTransaction
    │   ├── MoveNotAllowed       the table of moves does not have it
    │   ├── RequestExpired       its time has run out
    │   ├── EventsPruned         the content of these events was pruned
    │   └── ThresholdNotMet      signatures are missing
    ├── NotAMember           the peer or key is not in the group
    ├── EnvelopeRefused      a peer's message failed a check
    │   ├── MessageReplayed
    │   └── RateLimited
    ├── SecretUnreadable     wrong passphrase, or the ciphertext was changed
    ├── LeaseLost            the claim or lease is another's now
    ├── Interrupted          the process is stopping; the attempt is refunded
    ├── HandlerTimeout       a handler ran longer than it may
    ├── HandlerCrashed       the process that ran a handler died
    ├── Hopeless             another attempt would end the same way
    ├── TargetDown           what a handler talks to is out of reach; no attempt is burned
    ├── SettingsError        all problems of the settings, together
    └── StoreError           the database refused
        ├── StoreUnavailable     out of reach, restarting, connection cut
        │   └── CommitUnknown        cut after the commit had been asked for
        ├── StoreBusy            locked, deadlocked, serialization failure
        │   └── LockTimeout          another transaction held the key for too long
        ├── StoreLocked          another process has the folder open
        ├── StoreClosed          used after it was closed
        ├── WrongProcess         used in a child process, after a fork
        ├── StoreFull            no space left
        ├── StoreCorrupt         the database says its file is damaged
        ├── DiskFailed           the disk or the file system reported an error
        ├── LibraryMissing       a library of the system is not installed
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


class Malformed(BadInput):
    """Do not retry. Ask the sender for its bytes; if they come from the store, restore a backup."""

    code = "malformed"


class KeyAmbiguous(BadInput):
    """Choose another id: not empty, not too long, without `:` and control characters."""

    code = "key_ambiguous"


class AddressInvalid(BadInput):
    """Check the address for a typing error, and that it belongs to the group's network."""

    code = "address_invalid"


class DerivationPathInvalid(BadInput):
    """Use the path that the message names, or leave it empty and give the index."""

    code = "derivation_path_invalid"


class HashMismatch(BadInput):
    """Send the content again: what was stored of it had another hash, and was removed."""

    code = "hash_mismatch"


class SignatureInvalid(BadInput):
    """Do not count it. Check which key signed, and which hash. Nothing was written."""

    code = "signature_invalid"


class KeyConflict(LedgerstoneError):
    """The key was used before with other content. Use another key, or send the same content."""

    code = "key_conflict"


class EventReplayed(KeyConflict):
    """Do not sign it again: the source's event was accepted before. Look at the first one."""

    code = "event_replayed"


class VoteChanged(KeyConflict):
    """Leave the first vote: it stands, and the attempt to change it is on record."""

    code = "vote_changed"


class NotFound(LedgerstoneError):
    """Check the id: nothing with it is visible here."""

    code = "not_found"


class ContentMissing(NotFound):
    """Ask whether the file is still there; if it is, restore its content from a backup."""

    code = "content_missing"


class NotAllowedNow(LedgerstoneError):
    """Look at the state the message names; the request does not fit it."""

    code = "not_allowed_now"


class NotInTransaction(NotAllowedNow):
    """Begin a transaction on the connection first, then join it."""

    code = "not_in_transaction"


class MoveNotAllowed(NotAllowedNow):
    """Read the request again: it is in another state than this call needs."""

    code = "move_not_allowed"


class RequestExpired(NotAllowedNow):
    """Begin a new request: this one accepts neither votes nor signatures any more."""

    code = "request_expired"


class EventsPruned(NotAllowedNow):
    """Begin behind the pruned range, and take what came of it from the protocol's tables."""

    code = "events_pruned"


class ThresholdNotMet(NotAllowedNow):
    """Finalize again when every input has the signatures that the message counts."""

    code = "threshold_not_met"
    retryable = True


class NotAMember(LedgerstoneError):
    """Check the peer id and the key against the group. Nothing was written."""

    code = "not_a_member"


class EnvelopeRefused(LedgerstoneError):
    """Drop the message. If the peer is honest, compare its key and its clock with the settings."""

    code = "envelope_refused"


class MessageReplayed(EnvelopeRefused):
    """Drop the message: this peer's message with this number was received before."""

    code = "message_replayed"


class RateLimited(EnvelopeRefused):
    """Send it again later, and more slowly."""

    code = "rate_limited"
    retryable = True


class SecretUnreadable(LedgerstoneError):
    """Check the passphrase; if it is right, the stored secret was changed: restore a backup."""

    code = "secret_unreadable"


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


class CommitUnknown(StoreUnavailable):
    """Look whether it was kept before you run it again: the answer to the commit was lost."""

    # Every other StoreUnavailable of a transaction of ours means that nothing of it was kept.
    code = "commit_unknown"


class StoreBusy(StoreError):
    """Run the whole transaction again: it met another one."""

    code = "store_busy"
    retryable = True


class LockTimeout(StoreBusy):
    """Run the whole transaction again: another one held the key for longer than the timeout."""

    code = "lock_timeout"


class StoreLocked(StoreError):
    """Another process has the folder open: stop that process, or open another folder."""

    code = "store_locked"
    retryable = True


class StoreClosed(StoreError):
    """Open the store again: it, or what was opened on it, was closed before this call."""

    code = "store_closed"


class WrongProcess(StoreError):
    """Open the store in the process that uses it: what was opened before a fork stays behind."""

    code = "wrong_process"


class StoreFull(StoreError):
    """Make room on the database's disk; nothing of the transaction was kept."""

    code = "store_full"
    retryable = True


class StoreCorrupt(StoreError):
    """Stop writing and restore from a backup."""

    code = "store_corrupt"


class DiskFailed(StoreError):
    """Look at the disk and the log of the system; open the store again when it is repaired."""

    code = "disk_failed"


class LibraryMissing(StoreError):
    """Install the package that the message names."""

    code = "library_missing"


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
    """Use a version, driver or session setting that the message names."""

    code = "unsupported"


class SchemaMissing(StoreError):
    """Run `ledgerstone migrate` on this database."""

    code = "schema_missing"


class SchemaOutdated(StoreError):
    """Run `ledgerstone migrate`; if the database is newer, update Ledgerstone instead."""

    code = "schema_outdated"

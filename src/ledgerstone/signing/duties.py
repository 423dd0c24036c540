"""The steady work of a store as duties of a worker: expire, forget, archive, delete, publish.

A duty first reads until it finds something to do, and opens the store for writing only then: where
the store is opened for each turn, other processes hardly ever find it locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ledgerstone.engine.store_duties import StoreDuties, StoreDuty
from ledgerstone.errors import LedgerstoneError
from ledgerstone.signing import DUTIES
from ledgerstone.signing.duty_store import Access, SigningDutyStore
from ledgerstone.store.wakeup import ALL

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

ROWS_MAX = 100
"""Rows of one step."""
TURN_SECONDS_MAX = 0.5
"""After so long a turn takes no further step; the next turn goes on."""
EXPIRE_SECONDS = 2.0
PUBLISH_SECONDS = 1.0
CLEAN_UP_SECONDS = 5.0
NANOS_PER_DAY = 86_400_000_000_000


class Step(NamedTuple):
    """How much a step found or did, what was wrong, and where the next one goes on."""

    amount: int
    errors: Iterable[LedgerstoneError]
    after: bytes | None


class Work(Protocol):
    """Work on the rows of a store, some at a time, behind the key `after`.

    - `find` counts what is to be done there; the store may be open for reading only.
    - `do` does it.
    """

    def find(self, signing: Signing, after: bytes | None) -> Step: ...
    def do(self, signing: Signing, after: bytes | None) -> Step: ...


class Publish(Protocol):
    """Publishes what a store has to publish, in bounded steps; how many messages were new."""

    def __call__(self, signing: Signing, /) -> int: ...


def duties(store: SigningDutyStore, publish: Publish) -> StoreDuties[Access]:
    """The duties of a worker for a store, as far as its settings ask for them."""
    settings = store.settings
    found: list[StoreDuty[Access]] = []

    def add(
        name: str, every_seconds: float, do: Callable[[Access], int], *, prompt: bool = False
    ) -> None:
        every = max(every_seconds, store.every_seconds)
        found.append(StoreDuty(DUTIES + name, every, do, prompt=prompt))

    add("expire", EXPIRE_SECONDS, _Sweep(store.monotonic, _Expiry()))
    add("forget", CLEAN_UP_SECONDS, _Sweep(store.monotonic, _Forgetting()))
    if settings.archive_days is not None:
        add("archive", CLEAN_UP_SECONDS, _Sweep(store.monotonic, _Archive(settings.archive_days)))
    if settings.delete_days is not None:
        add("delete", CLEAN_UP_SECONDS, _Sweep(store.monotonic, _Deletion(settings.delete_days)))
    if settings.publish:
        add("publish", PUBLISH_SECONDS, _Publish(publish), prompt=True)
    return StoreDuties(store, found, channel=ALL)


class _Publish:
    """Publishes, if something is to be published."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def __call__(self, access: Access) -> int:
        reader = access.reader()
        if reader is None or not reader.list_outgoing(rows_max=1):
            return 0
        return self._publish(access.writer())


class _Sweep:
    """Some steps a turn; from the beginning again when the end is reached."""

    def __init__(self, monotonic: Callable[[], float], work: Work) -> None:
        self._monotonic = monotonic
        self._work = work
        self._after: bytes | None = None

    def __call__(self, access: Access) -> int:
        reader = access.reader()
        if reader is None:
            return 0
        until = self._monotonic() + TURN_SECONDS_MAX
        errors: list[LedgerstoneError] = []
        done = 0
        if self._found(reader, errors, until=until):
            done = self._done(access.writer(), errors, until=until)
        if errors:
            # The work that was done stays done; the worker's report shows the error of this duty.
            raise errors[0]
        return done

    def _found(self, reader: Signing, errors: list[LedgerstoneError], *, until: float) -> bool:
        """Step over what is not to be changed; whether something is."""
        while True:
            step = self._work.find(reader, self._after)
            if step.amount:
                return True
            errors += step.errors
            self._after = step.after
            if self._after is None or self._monotonic() >= until:
                return False

    def _done(self, signing: Signing, errors: list[LedgerstoneError], *, until: float) -> int:
        done = 0
        while True:
            step = self._work.do(signing, self._after)
            done += step.amount
            errors += step.errors
            self._after = step.after
            if self._after is None or self._monotonic() >= until:
                return done


class _Expiry:
    def find(self, signing: Signing, after: bytes | None) -> Step:
        # Due requests come first: there is nothing to step over.
        due = signing.list_due(before_nanos=signing.clock(), rows_max=1)
        return Step(len(due), (), after if due else None)

    def do(self, signing: Signing, after: bytes | None) -> Step:
        done = signing.expire_requests(after=after, rows_max=ROWS_MAX)
        return Step(len(done.expired), done.errors.values(), done.after)


class _Forgetting:
    def find(self, signing: Signing, after: bytes | None) -> Step:
        old = signing.find_old_messages(after=after, rows_max=ROWS_MAX)
        return Step(len(old.keys), old.errors.values(), old.after)

    def do(self, signing: Signing, after: bytes | None) -> Step:
        done = signing.cleanup_seen_messages(after=after, rows_max=ROWS_MAX)
        return Step(done.deleted, done.errors.values(), done.after)


class _Archive:
    """Archives what ended so many days ago."""

    def __init__(self, days: int) -> None:
        self._days = days

    def find(self, signing: Signing, after: bytes | None) -> Step:
        old = signing.find_archivable(
            _days_ago(signing, self._days), after=after, rows_max=ROWS_MAX
        )
        return Step(len(old.rows), old.errors.values(), old.after)

    def do(self, signing: Signing, after: bytes | None) -> Step:
        before = _days_ago(signing, self._days)
        done = signing.archive_old_requests(before, after=after, rows_max=ROWS_MAX)
        return Step(len(done.archived), done.errors.values(), done.after)


class _Deletion:
    """Deletes archived requests that ended so many days ago."""

    def __init__(self, days: int) -> None:
        self._days = days

    def find(self, signing: Signing, after: bytes | None) -> Step:
        before = _days_ago(signing, self._days)
        old = signing.find_deletable(before, after=after, rows_max=ROWS_MAX)
        return Step(len(old.rows), old.errors.values(), old.after)

    def do(self, signing: Signing, after: bytes | None) -> Step:
        before = _days_ago(signing, self._days)
        done = signing.delete_old_archives(before, after=after, rows_max=ROWS_MAX)
        return Step(len(done.requests), done.errors.values(), done.after)


def _days_ago(signing: Signing, days: int) -> int:
    return max(0, signing.clock() - days * NANOS_PER_DAY)

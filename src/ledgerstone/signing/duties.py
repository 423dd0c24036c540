"""The steady work of a store as duties of a worker: expire, forget, archive, delete, publish.

A duty first reads whether there is something to do, and opens the store for writing only then:
where the store is opened for each turn, other processes hardly ever find it locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ledgerstone.engine.store_duties import StoreDuties, StoreDuty
from ledgerstone.errors import LedgerstoneError
from ledgerstone.signing import DUTIES
from ledgerstone.signing.duty_store import Access, SigningDutyStore
from ledgerstone.signing.keys import Family
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

Step = tuple[int, Sequence[LedgerstoneError], bytes | None]
"""How much a step did, what was wrong, and where the next one goes on."""


class Publish(Protocol):
    """Publishes what a store has to publish, in bounded steps; how many messages were new."""

    def __call__(self, signing: Signing, /) -> int: ...


def duties(store: SigningDutyStore, publish: Publish) -> StoreDuties[Access]:
    """What a worker does for a store, as far as its settings ask for it."""
    settings = store.settings
    found: list[StoreDuty[Access]] = []

    def add(
        name: str, every_seconds: float, do: Callable[[Access], int], *, prompt: bool = False
    ) -> None:
        every = max(every_seconds, store.every_seconds)
        found.append(StoreDuty(DUTIES + name, every, do, prompt=prompt))

    add("expire", EXPIRE_SECONDS, _Sweep(store.monotonic, _has_due, _expire))
    add("forget", CLEAN_UP_SECONDS, _Sweep(store.monotonic, _has_seen, _forget))
    if settings.archive_days is not None:
        archive = _Archive(settings.archive_days)
        add("archive", CLEAN_UP_SECONDS, _Sweep(store.monotonic, _has_requests, archive))
    if settings.delete_days is not None:
        delete = _Delete(settings.delete_days)
        add("delete", CLEAN_UP_SECONDS, _Sweep(store.monotonic, _has_archives, delete))
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
    """Some steps a turn, if there are rows; from the beginning again when the end is reached."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        wanted: Callable[[Signing], bool],
        step: Callable[[Signing, bytes | None], Step],
    ) -> None:
        self._monotonic = monotonic
        self._wanted = wanted
        self._step = step
        self._after: bytes | None = None

    def __call__(self, access: Access) -> int:
        reader = access.reader()
        if reader is None or not self._wanted(reader):
            return 0
        signing = access.writer()
        done, wrong = self._steps(signing, until=self._monotonic() + TURN_SECONDS_MAX)
        if wrong is not None:
            # What was done stays done; the worker's report shows the error of this duty.
            raise wrong
        return done

    def _steps(self, signing: Signing, *, until: float) -> tuple[int, LedgerstoneError | None]:
        """How much they did, and the first thing that was wrong."""
        done, wrong = 0, None
        while True:
            amount, errors, self._after = self._step(signing, self._after)
            done += amount
            wrong = wrong or next(iter(errors), None)
            if self._after is None or self._monotonic() >= until:
                return done, wrong


def _has_due(signing: Signing) -> bool:
    return bool(signing.list_due(before_nanos=signing.clock(), rows_max=1))


def _expire(signing: Signing, after: bytes | None) -> Step:
    step = signing.expire_requests(after=after, rows_max=ROWS_MAX)
    return len(step.expired), [*step.errors.values()], step.after


def _has_seen(signing: Signing) -> bool:
    return bool(signing.store.page(Family.SEEN, rows_max=1).rows)


def _forget(signing: Signing, after: bytes | None) -> Step:
    step = signing.cleanup_seen_messages(after=after, rows_max=ROWS_MAX)
    return step.deleted, [*step.errors.values()], step.after


def _has_requests(signing: Signing) -> bool:
    return bool(signing.list_requests(rows_max=1).requests)


def _has_archives(signing: Signing) -> bool:
    return bool(signing.list_requests(archived=True, rows_max=1).requests)


class _Archive:
    """One step of archiving what ended so many days ago."""

    def __init__(self, days: int) -> None:
        self._age_nanos = days * NANOS_PER_DAY

    def __call__(self, signing: Signing, after: bytes | None) -> Step:
        before = max(0, signing.clock() - self._age_nanos)
        step = signing.archive_old_requests(before, after=after, rows_max=ROWS_MAX)
        return len(step.archived), [*step.errors.values()], step.after


class _Delete:
    """One step of deleting archived requests that ended so many days ago."""

    def __init__(self, days: int) -> None:
        self._age_nanos = days * NANOS_PER_DAY

    def __call__(self, signing: Signing, after: bytes | None) -> Step:
        before = max(0, signing.clock() - self._age_nanos)
        step = signing.delete_old_archives(before, after=after, rows_max=ROWS_MAX)
        return len(step.requests), [*step.errors.values()], step.after

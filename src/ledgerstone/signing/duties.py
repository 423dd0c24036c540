"""The steady work of a store as duties of a worker: expire, forget, archive, delete, publish.

A store belongs to one process, several stores may share a ledger: the names of duties end in the
store's id, so that each store's duties have their own turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ledgerstone.engine.duties import Duty
from ledgerstone.errors import LedgerstoneError
from ledgerstone.signing.relay import Announcement, relay_step

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing
    from ledgerstone.store.transaction import Transaction

ROWS_MAX = 100
"""Rows of one turn: the ledger's transaction of a duty stays open meanwhile."""
EXPIRE_SECONDS = 2.0
PUBLISH_SECONDS = 1.0
CLEAN_UP_SECONDS = 5.0
NAME_CHARS = 12
NANOS_PER_DAY = 86_400_000_000_000


class PublishIn(Protocol):
    """Publishes messages in a transaction of the ledger; see `relay.Publish`."""

    def __call__(
        self, tx: Transaction, announcements: Sequence[Announcement], /
    ) -> Sequence[bool]: ...


def duties(signing: Signing, publish: PublishIn) -> list[Duty]:
    """What a worker does for a store, as far as its settings ask for it."""
    settings, store_id = signing.settings, signing.store_id()

    def duty(name: str, every_seconds: float, do: Callable[[Transaction], int]) -> Duty:
        return Duty(f"signing.{name}:{store_id[:NAME_CHARS]}", every_seconds, do)

    found = [
        duty("expire", EXPIRE_SECONDS, _Sweep(lambda after: _expire(signing, after))),
        duty("forget", CLEAN_UP_SECONDS, _Sweep(lambda after: _forget(signing, after))),
    ]
    if settings.archive_days is not None:
        age = settings.archive_days * NANOS_PER_DAY
        sweep = _Sweep(lambda after: _archive(signing, age, after))
        found.append(duty("archive", CLEAN_UP_SECONDS, sweep))
    if settings.delete_days is not None:
        old = settings.delete_days * NANOS_PER_DAY
        sweep = _Sweep(lambda after: _delete(signing, old, after))
        found.append(duty("delete", CLEAN_UP_SECONDS, sweep))
    if settings.publish:

        def relay(tx: Transaction) -> int:
            return relay_step(
                signing.store, store_id, lambda items: publish(tx, items), rows_max=ROWS_MAX
            )

        found.append(duty("publish", PUBLISH_SECONDS, relay))
    return found


Step = tuple[int, Sequence[LedgerstoneError], bytes | None]
"""How much a step did, what was wrong, and where the next one goes on."""


class _Sweep:
    """One step a turn; from the beginning again when the end is reached."""

    def __init__(self, step: Callable[[bytes | None], Step]) -> None:
        self._step = step
        self._after: bytes | None = None

    def __call__(self, _: Transaction) -> int:
        done, errors, self._after = self._step(self._after)
        if errors:
            # What was done stays done; the worker's report shows the error of this duty.
            raise errors[0]
        return done


def _expire(signing: Signing, after: bytes | None) -> Step:
    step = signing.expire_requests(after=after, rows_max=ROWS_MAX)
    return len(step.expired), [*step.errors.values()], step.after


def _forget(signing: Signing, after: bytes | None) -> Step:
    step = signing.cleanup_seen_messages(after=after, rows_max=ROWS_MAX)
    return step.deleted, [*step.errors.values()], step.after


def _archive(signing: Signing, age_nanos: int, after: bytes | None) -> Step:
    before = max(0, signing.clock() - age_nanos)
    step = signing.archive_old_requests(before, after=after, rows_max=ROWS_MAX)
    return len(step.archived), [*step.errors.values()], step.after


def _delete(signing: Signing, age_nanos: int, after: bytes | None) -> Step:
    before = max(0, signing.clock() - age_nanos)
    step = signing.delete_old_archives(before, after=after, rows_max=ROWS_MAX)
    return len(step.requests), [*step.errors.values()], step.after

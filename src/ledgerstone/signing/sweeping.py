"""Steady work in bounded steps: expire, archive, delete.

A step reads a bounded number of rows, and changes each request that is to be changed in a
transaction of its own: one that is locked or damaged keeps no other one waiting. It answers behind
which key the next step goes on, and what was wrong with the requests that it had to leave.

`find_archivable` and `find_deletable` are the reading half: they also work on a store that was
opened for reading only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from ledgerstone.errors import BadInput, LedgerstoneError, LockTimeout, StoreBusy, StoreError
from ledgerstone.failpoints import hit
from ledgerstone.signing.access import Reader
from ledgerstone.signing.keys import ArchivedRequestKey, RequestKey, check_request_id
from ledgerstone.signing.life import archive, finishing, records
from ledgerstone.signing.life.archive import DeletedRows
from ledgerstone.signing.states import FINISHED
from ledgerstone.signing.store import Store
from ledgerstone.signing.values import RequestId, SigningRequest

TRANSACTION_ROWS_MAX = 1000
"""Rows that one transaction of a deletion removes."""

STUCK_MAX = 2
"""Requests of one step whose locks are waited for in vain."""

Errors = dict[str, LedgerstoneError]
"""The errors, by request id."""


class Found(NamedTuple):
    """The rows of a page, by key, whose requests are to be changed, and the cursor of the next one.

    `errors` are of rows that cannot be read.
    """

    rows: list[tuple[bytes, RequestId]]
    errors: Errors
    after: bytes | None


class Expiries(NamedTuple):
    """The requests that expired, what was wrong with others, where the next step goes on."""

    expired: list[RequestId]
    errors: Errors
    after: bytes | None


class Archived(NamedTuple):
    """The requests that were archived, what was wrong with others, where the next step goes on."""

    archived: list[RequestId]
    errors: Errors
    after: bytes | None


class Deleted(NamedTuple):
    """The requests that are gone, how many rows went, what was wrong with others, the cursor."""

    requests: list[RequestId]
    rows: int
    errors: Errors
    after: bytes | None


def expire_requests(
    store: Store, *, now_nanos: int, after: bytes | None, rows_max: int
) -> Expiries:
    """Expire requests whose time has run out, at most `rows_max` behind `after`."""
    due = finishing.list_due(store, now_nanos=now_nanos, after=after, rows_max=rows_max)

    def expire(request_id: RequestId) -> bool:
        return store.run(lambda tx: finishing.expire_request(tx, request_id, now_nanos=now_nanos))

    expired, errors, stopped = _each(zip(due.keys, due.request_ids, strict=True), expire)
    return Expiries(expired, errors, stopped or due.after)


def archive_old_requests(
    store: Store, *, before_nanos: int, after: bytes | None, rows_max: int
) -> Archived:
    """Archive requests that ended before a moment, among the next `rows_max` active ones."""
    found = find_archivable(store, before_nanos=before_nanos, after=after, rows_max=rows_max)

    def archive_one(request_id: RequestId) -> bool:
        return store.run(
            lambda tx: archive.archive_request(tx, request_id, before_nanos=before_nanos)
        )

    archived, errors, stopped = _each(found.rows, archive_one)
    return Archived(archived, found.errors | errors, stopped or found.after)


def find_archivable(
    reader: Reader, *, before_nanos: int, after: bytes | None, rows_max: int
) -> Found:
    """The requests that ended before a moment, among the next `rows_max` active ones."""
    ended = partial(_has_ended, reader, before_nanos=before_nanos)
    return _find(reader, RequestKey, ended, after=after, rows_max=rows_max)


def _has_ended(reader: Reader, request: SigningRequest, *, before_nanos: int) -> bool:
    finished = request.decision.status in FINISHED
    return finished and archive.finished_at_nanos(reader, request) < before_nanos


def delete_old_archives(
    store: Store, *, before_nanos: int, publish: bool, after: bytes | None, rows_max: int
) -> Deleted:
    """Delete archived requests that ended before a moment, until about `rows_max` rows are gone."""
    found = find_deletable(
        store, before_nanos=before_nanos, publish=publish, after=after, rows_max=rows_max
    )
    rows_deleted = 0

    def delete_one(request_id: RequestId) -> bool:
        nonlocal rows_deleted
        before = rows_deleted
        while rows_deleted < rows_max:
            step = _delete_step(store, request_id, before_nanos=before_nanos, publish=publish)
            rows_deleted += step.rows
            if step.done:
                return rows_deleted > before
        return False

    gone: list[RequestId] = []
    errors = dict(found.errors)
    for key, request_id in found.rows:
        deleted, failed, _ = _each([(key, request_id)], delete_one)
        gone += deleted
        errors |= failed
        if _is_stuck(errors):
            return Deleted(gone, rows_deleted, errors, key)
        if rows_deleted >= rows_max:
            # Its request may not be gone yet: the next step begins with it.
            return Deleted(gone, rows_deleted, errors, after)
        after = key
    return Deleted(gone, rows_deleted, errors, found.after)


def find_deletable(
    reader: Reader, *, before_nanos: int, publish: bool, after: bytes | None, rows_max: int
) -> Found:
    """Of the next `rows_max` archived requests, those that ended before a moment.

    With `publish`, one whose end is still to be published is not among them.
    """

    def is_old(request: SigningRequest) -> bool:
        return archive.is_deletable(reader, request, before_nanos=before_nanos, publish=publish)

    return _find(reader, ArchivedRequestKey, is_old, after=after, rows_max=rows_max)


def _find(
    reader: Reader,
    kind: type[RequestKey | ArchivedRequestKey],
    wanted: Callable[[SigningRequest], bool],
    *,
    after: bytes | None,
    rows_max: int,
) -> Found:
    page = reader.page(kind.family, kind.prefix, after=after, rows_max=rows_max)
    rows: list[tuple[bytes, RequestId]] = []
    errors: Errors = {}
    for key, value in page.rows:
        request_id = _id_of(key, kind.prefix)
        try:
            if wanted(records.decoded(SigningRequest, key, value)):
                rows.append((key, check_request_id(request_id)))
        except BadInput as error:
            errors[request_id] = error
    return Found(rows, errors, page.after)


def _delete_step(
    store: Store, request_id: RequestId, *, before_nanos: int, publish: bool
) -> DeletedRows:
    step = store.run(
        lambda tx: archive.delete_archived(
            tx,
            request_id,
            before_nanos=before_nanos,
            publish=publish,
            rows_max=TRANSACTION_ROWS_MAX,
        )
    )
    hit("signing.deleting")
    return step


def _id_of(key: bytes, prefix: bytes) -> str:
    """The id that a key ends with, also one that is no request id of ours."""
    return key.removeprefix(prefix).decode(errors="backslashreplace")


def _each(
    rows: Iterable[tuple[bytes, RequestId]], change: Callable[[RequestId], bool]
) -> tuple[list[RequestId], Errors, bytes | None]:
    """The requests that `change` changed, what was wrong with others, and where it stopped.

    One request whose lock is not free stops no other. A second one ends the step behind its row:
    what holds the locks may hold those of all, and each wait takes `lock_timeout_seconds`.
    """
    changed: list[RequestId] = []
    errors: Errors = {}
    for key, request_id in rows:
        try:
            if change(request_id):
                changed.append(request_id)
        except LockTimeout as error:
            errors[request_id] = error
            if _is_stuck(errors):
                return changed, errors, key
        except StoreBusy as error:
            errors[request_id] = error
        except StoreError:
            # The store itself is closed, full or damaged: the next request would fare no better.
            raise
        except LedgerstoneError as error:
            errors[request_id] = error
    return changed, errors, None


def _is_stuck(errors: Errors) -> bool:
    return sum(isinstance(error, LockTimeout) for error in errors.values()) >= STUCK_MAX

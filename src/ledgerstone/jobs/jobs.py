"""What a caller can ask of jobs, inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ledgerstone.errors import BadInput, KeyConflict
from ledgerstone.jobs import accepting, history, operating
from ledgerstone.jobs.accepting import NO_ORG, Accepted, Enqueued, NewJob
from ledgerstone.jobs.history import JobEvent
from ledgerstone.jobs.operating import RETRY_MAX, Retried
from ledgerstone.jobs.read import explain as explaining
from ledgerstone.jobs.read import jobs as reading
from ledgerstone.jobs.read.explain import Explanation
from ledgerstone.jobs.read.jobs import JobRow
from ledgerstone.jobs.states import Status
from ledgerstone.store.sql.pages import Page

if TYPE_CHECKING:
    from ledgerstone.jobs.handlers.kinds import Kinds
    from ledgerstone.store.transaction import Transaction

ENQUEUE_MAX = 100_000
"""Jobs that one call accepts: all of them, and the answers, are in memory at once."""


class Jobs:
    """Jobs, inside one transaction."""

    def __init__(self, tx: Transaction, kinds: Kinds) -> None:
        self._tx = tx
        self._kinds = kinds

    def enqueue(
        self,
        job: str | Callable[..., Any],
        payload: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        org: str | UUID = NO_ORG,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        delay_seconds: float = 0.0,
        requested_by: str | None = None,
        correlation_id: str | None = None,
        trace_context: str | None = None,
    ) -> Enqueued:
        """Accept one. Same key, same content: the one there is; other content: KeyConflict."""
        new = NewJob(
            type=job,
            payload=payload if payload is not None else {},
            key=key,
            org=org,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            delay_seconds=delay_seconds,
            requested_by=requested_by,
            correlation_id=correlation_id,
            trace_context=trace_context,
        )
        (enqueued,) = self.enqueue_many((new,))
        if enqueued.accepted is Accepted.CONFLICT:
            message = f"the key {key!r} was used before with other content, by job {enqueued.id}"
            raise KeyConflict(message)
        return enqueued

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Accept at most `ENQUEUE_MAX`, with an answer for each: created, existing or conflict.

        More are refused before anything is written: give them in several calls, which may be in one
        transaction.
        """
        return accepting.accept(self._tx, self._kinds, listed(jobs))

    def get(self, job_id: str) -> JobRow:
        """The job as it stands."""
        return reading.get(self._tx, reading.id_of(job_id))

    def find(
        self,
        *,
        org: str | UUID | None = None,
        status: Status | str | None = None,
        type: str | None = None,  # noqa: A002 - the column's own name
        queue: str | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobRow]:
        """Jobs that meet the filters, newest first."""
        return reading.find(
            self._tx,
            limit=limit,
            cursor=cursor,
            org=accepting.org_of(org) if org is not None else None,
            status=status,
            type=type,
            queue=queue,
            key=key,
            correlation_id=correlation_id,
        )

    def counts(self) -> dict[str, dict[Status, int]]:
        """How many stand where, by queue."""
        return reading.counts(self._tx)

    def events(self, job_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[JobEvent]:
        """What happened to a job, oldest first."""
        return history.events(self._tx, reading.id_of(job_id), limit=limit, cursor=cursor)

    def explain(self, job_id: str) -> Explanation:
        """Why a job is not running."""
        return explaining.explain(self._tx, reading.id_of(job_id))

    def cancel(self, job_id: str, *, by: str | None = None, reason: str | None = None) -> Status:
        """Cancel a queued job; ask a running one to stop."""
        return operating.cancel(self._tx, reading.id_of(job_id), by=by, reason=reason)

    def retry(self, job_id: str, *, by: str | None = None) -> None:
        """Queue a dead letter again, with all its attempts."""
        operating.retry(self._tx, reading.id_of(job_id), by=by)

    def retry_all(
        self,
        *,
        org: str | UUID | None = None,
        type: str | None = None,  # noqa: A002 - the column's own name
        queue: str | None = None,
        error_code: str | None = None,
        limit: int = RETRY_MAX,
        dry_run: bool = False,
        by: str | None = None,
    ) -> Retried:
        """Queue dead letters again, the oldest first, at most so many."""
        return operating.retry_all(
            self._tx,
            org=accepting.org_of(org) if org is not None else None,
            type=type,
            queue=queue,
            error_code=error_code,
            limit=limit,
            dry_run=dry_run,
            by=by,
        )

    def pause(self, queue: str, *, by: str | None = None) -> None:
        """No job of this queue begins any more; those that run go on."""
        operating.pause(self._tx, queue, by=by)

    def resume(self, queue: str) -> None:
        """Jobs of this queue begin again."""
        operating.resume(self._tx, queue)

    def limit(self, queue: str, concurrency_max: int | None) -> None:
        """At most so many of this queue run at once, on all workers together; None: any."""
        operating.limit(self._tx, queue, concurrency_max)


def listed(jobs: Iterable[NewJob]) -> Sequence[NewJob]:
    """What one call gives, also by a generator, which is read no further than the most."""
    if isinstance(jobs, NewJob):
        message = "enqueue_many takes a list of jobs, not one"
        raise BadInput(message, hint="give it as [job]")
    if not isinstance(jobs, list | tuple):
        try:
            given = iter(jobs)
        except TypeError as error:
            message = f"enqueue_many takes a list of NewJob, not {jobs!r}"
            raise BadInput(message) from error
        jobs = list(islice(given, ENQUEUE_MAX + 1))
    if len(jobs) > ENQUEUE_MAX:
        message = f"one call accepts at most {ENQUEUE_MAX} jobs, and there are more"
        raise BadInput(message, hint="give them in several calls, in one transaction if need be")
    for new in jobs:
        if not isinstance(new, NewJob):
            message = f"enqueue_many takes a list of NewJob, and {new!r:.100} is none"
            raise BadInput(message, hint='as in NewJob(type="mail.send", payload={"order": 7})')
    return jobs

"""The calls on jobs inside one transaction: `tx.jobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING
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
"""How many jobs one call accepts: the jobs and their answers are in memory at once."""


class Jobs:
    """The jobs of a ledger, inside one transaction: everything commits or rolls back with it."""

    def __init__(self, tx: Transaction, kinds: Kinds) -> None:
        self._tx = tx
        self._kinds = kinds

    def enqueue(
        self,
        job: str | Callable[..., object],
        payload: Mapping[str, object] | None = None,
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
        """Add a job; it becomes due when the transaction commits.

        The same key with the same content answers the job that exists; with other content it
        raises KeyConflict.

        - `job`: the name of a type, or the function that `@ledger.job` has made a job.
        - `payload`: the arguments of the function, by name. They must be storable as JSON, and are
          checked here if the type is known.
        - `key`: the idempotency key, unique within `org`. It outlives the job.
        - `org`: the organisation (a UUID) that the job belongs to.
        - `queue`, `priority`, `max_attempts`: in place of those of the type. A higher priority is
          claimed first.
        - `run_at`: the moment (with a time zone) from which the job is due.
        - `delay_seconds`: how long from now until the job is due, in place of `run_at`.
        - `requested_by`: who asked for it; `correlation_id` and `trace_context`: ids of other
          systems. All three are kept with the job and shown.
        """
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
        """Add many jobs; one answer for each, in their order: created, existing or conflict.

        - `jobs`: at most ENQUEUE_MAX; also a generator. More raise BadInput before anything is
          written: use several calls, in one transaction if need be.
        - A conflict adds nothing for its job and raises nothing. A malformed job raises BadInput
          for the whole call.
        """
        return accepting.accept(self._tx, self._kinds, listed(jobs))

    def get(self, job_id: str) -> JobRow:
        """The job with this id (a UUID as text); raises NotFound."""
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
        """One page of the jobs that match every given filter, newest first.

        - `org`, `status`, `type`, `queue`, `key`, `correlation_id`: equal to the columns of the
          job.
        - `limit`: rows of a page; `cursor`: `next` of the page before, with the same filters.
        """
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
        """How many jobs each queue has in each state."""
        return reading.counts(self._tx)

    def events(self, job_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[JobEvent]:
        """One page of the history of a job, oldest event first; `cursor` as in `find`."""
        return history.events(self._tx, reading.id_of(job_id), limit=limit, cursor=cursor)

    def explain(self, job_id: str) -> Explanation:
        """The reasons why a job is not running, and what would help."""
        return explaining.explain(self._tx, reading.id_of(job_id))

    def cancel(self, job_id: str, *, by: str | None = None, reason: str | None = None) -> Status:
        """Cancel a queued job, or ask a running one to stop; the state of the job afterwards.

        - `by` and `reason` are kept in the history.
        - A running job goes on until its handler asks `job.canceled` and returns `Cancel()`.
        - Raises NotAllowedNow if the job has ended otherwise.
        """
        return operating.cancel(self._tx, reading.id_of(job_id), by=by, reason=reason)

    def retry(self, job_id: str, *, by: str | None = None) -> None:
        """Queue a dead letter again, with all its attempts; raises NotAllowedNow for other states.

        `by` is kept in the history.
        """
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
        """Queue dead letters again, the oldest first.

        - `org`, `type`, `queue`, `error_code`: only dead letters with these values.
        - `limit`: at most so many, and at most RETRY_MAX; call again for the rest.
        - `dry_run`: answer the ids and change nothing.
        - `by` is kept in the history of each job.
        """
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
        """Start no more jobs of this queue; running jobs go on. `by` is shown with the queue."""
        operating.pause(self._tx, queue, by=by)

    def resume(self, queue: str) -> None:
        """Start jobs of this queue again."""
        operating.resume(self._tx, queue)

    def limit(self, queue: str, concurrency_max: int | None) -> None:
        """Run at most `concurrency_max` jobs of this queue at once, on all workers together.

        None removes the limit.
        """
        operating.limit(self._tx, queue, concurrency_max)


def listed(jobs: Iterable[NewJob]) -> Sequence[NewJob]:
    """The jobs of one call as a list; a generator is read up to one job beyond ENQUEUE_MAX."""
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

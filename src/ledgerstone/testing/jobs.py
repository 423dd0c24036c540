"""For tests of your own jobs: run one, run all that are due, say what must have been enqueued.

Everything goes the way it goes in production: through the tables, the source and the pump, by
`worker.tick()` in the thread of the test, one job after the other. So a job that is run here has
its attempt, its events and its back-off, and what a test finds in the ledger is what an operator
would find.

- Timeouts are not enforced, a job that has a process of its own runs in this one, and schedules do
  not enqueue anything.
- What is no ordinary error (Ctrl-C, `pytest.fail`) is always raised to the test.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import BigInteger, bindparam, false, func, or_, select, update

from ledgerstone.errors import BadInput, NotAllowedNow, StoreBusy
from ledgerstone.jobs import JobRow, Status, history
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.states import Gate
from ledgerstone.jobs.tables import channel_of, stands
from ledgerstone.jobs.tables import job as job_table
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.clock import Clock
from ledgerstone.store.connections.joins import Joiner
from ledgerstone.store.database import Database
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.wakeup import WakeSignal, WakeSignals
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.expecting import (
    ROWS_MAX,
    AnyJob,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
)
from ledgerstone.testing.inline_worker import InlineWorker, Run, RunResult

__all__ = [
    "JOBS_MAX",
    "Drained",
    "ManualClock",
    "Run",
    "RunResult",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "inline",
    "moved",
    "run_job",
]

JOBS_MAX = 1000
"""How many jobs one call runs: more are taken for a job that enqueues itself for ever."""
LAST_NAMED = 5


class Drained(msgspec.Struct, frozen=True):
    """The jobs that ran, in that order; a job that ran twice is there twice."""

    runs: list[Run]

    @property
    def succeeded(self) -> int:
        return self._count(RunResult.SUCCEEDED)

    @property
    def failed(self) -> int:
        """Those that will be tried again; the others are `dead`."""
        return self._count(RunResult.FAILED)

    @property
    def dead(self) -> int:
        return self._count(RunResult.DEAD)

    @property
    def snoozed(self) -> int:
        return self._count(RunResult.SNOOZED)

    @property
    def canceled(self) -> int:
        return self._count(RunResult.CANCELED)

    @property
    def by_type(self) -> dict[str, dict[RunResult, int]]:
        """How many of each type came out how."""
        types = dict.fromkeys(run.type for run in self.runs)
        return {
            name: dict(Counter(run.came_out for run in self.runs if run.type == name))
            for name in types
        }

    def _count(self, came_out: RunResult) -> int:
        return sum(run.came_out is came_out for run in self.runs)


def run_job(
    ledger: Ledger,
    job: AnyJob,
    payload: Mapping[str, Any] | None = None,
    *,
    attempt: int = 1,
    raises: bool = False,
    key: str | None = None,
    org: str | UUID = NO_ORG,
    queue: str | None = None,
    max_attempts: int | None = None,
    requested_by: str | None = None,
    correlation_id: str | None = None,
    trace_context: str | None = None,
) -> JobRow:
    """Enqueue a job and run it, and no other, to the end of one attempt; the job as it stands then.

    - `attempt` is the number that this attempt has.
    - A job that fails is answered like any other, with its error; `raises` raises what it raised,
      after that was written.
    - What it enqueues is left for `drain`.
    """
    _check_known(ledger, job)
    _check_outside(ledger)
    with ledger.transaction() as tx:
        accepted = tx.jobs.enqueue(
            job,
            payload,
            key=key,
            org=org,
            queue=queue,
            max_attempts=max_attempts,
            requested_by=requested_by,
            correlation_id=correlation_id,
            trace_context=trace_context,
        )
        if not accepted.created:
            message = f"the key {key!r} was used before, by job {accepted.id}"
            raise NotAllowedNow(message, hint="use another key, or none")
        row = tx.jobs.get(accepted.id)
        _begin_with(tx, row, attempt)
        # Nobody else is called: it is run here.
        tx.woken.discard(channel_of(row.queue))
    with InlineWorker(ledger, row.queue) as hand:
        ran = hand.step(only=row.id)
    with ledger.reading() as tx:
        row = tx.jobs.get(row.id)
        if ran is None:
            stands_at = f"{row.status.value}, {row.gate.name.lower()}"
            message = f"the job {row.id} could not be begun: it is {stands_at}"
            raise NotAllowedNow(message, hint=_what_keeps(tx, row))
    if raises:
        hand.complain(row)
    return row


def _what_keeps(tx: Transaction, row: JobRow) -> str:
    """Why it did not run; that no worker serves its queue is no reason in a test."""
    reasons = tx.jobs.explain(row.id).reasons
    kept = [reason for reason in reasons if not reason.startswith("no worker")]
    return "; ".join(kept) or "was a worker faster?"


def drain(
    ledger: Ledger,
    *,
    queue: str | None = None,
    jobs_max: int = JOBS_MAX,
    advance_to_due: bool = False,
    raises: bool = False,
) -> Drained:
    """Run everything that is due, and what that enqueues, until nothing is due any more.

    - Jobs run one after the other, each settled before the next, in the order a worker takes them.
    - `queue` leaves the others alone. Types that the ledger does not know stay queued.
    - `advance_to_due` moves the ledger's ManualClock on to whatever is scheduled next, again and
      again: back-offs, snoozes and delays pass in no time.
    - `raises` raises what the first failing job raised, after that was written.
    - AssertionError if something is still due after `jobs_max` jobs.
    """
    if jobs_max < 1:
        message = f"jobs_max is at least 1, not {jobs_max}"
        raise BadInput(message)
    clock = _manual_clock(ledger) if advance_to_due else None
    _check_outside(ledger)
    runs: list[Run] = []
    while True:
        before = len(runs)
        for name in [queue] if queue is not None else _queues(ledger):
            # A new hand each time: a source that just looked for scheduled jobs trusts what it saw.
            with InlineWorker(ledger, name) as hand:
                _drain_with(hand, runs, jobs_max, raises=raises)
        if len(runs) == before and not (clock and _advanced(ledger, queue, clock)):
            return Drained(runs)


def _check_outside(ledger: Ledger) -> None:
    """NotAllowedNow inside a transaction that would keep jobs from running in theirs."""
    try:
        with ledger.transaction():
            pass
    except NotAllowedNow as error:
        hint = "end it first: jobs see what is committed, and run in transactions of their own"
        raise NotAllowedNow(error.message, hint=hint) from error


def _drain_with(hand: InlineWorker, runs: list[Run], jobs_max: int, *, raises: bool) -> None:
    while True:
        if len(runs) >= jobs_max:
            if not hand.due():
                return
            last = ", ".join(run.type for run in runs[-LAST_NAMED:])
            message = (
                f"after {jobs_max} jobs there are still some due; the last were {last}"
                " (raise jobs_max if that is right)"
            )
            raise AssertionError(message)
        ran = hand.step()
        if ran is None:
            return
        runs.append(ran)
        if raises:
            hand.complain()


def _queues(ledger: Ledger) -> list[str]:
    """Queues with something to do."""
    with ledger.reading() as tx:
        counts = tx.jobs.counts()
    return sorted(
        queue for queue, by in counts.items() if {Status.QUEUED, Status.RUNNING} & set(by)
    )


def _manual_clock(ledger: Ledger) -> ManualClock:
    clock = ledger.database.clock
    if isinstance(clock, ManualClock):
        return clock
    message = "advance_to_due needs a clock that can be moved, and this ledger has none"
    raise BadInput(message, hint="open it with Ledger(url, clock=ManualClock())")


def _advanced(ledger: Ledger, queue: str | None, clock: ManualClock) -> bool:
    """Move the clock on to the next scheduled job that could run here, if there is one."""
    known = [job_table.c.type == name for name in ledger.kinds.all()]
    query = select(func.min(job_table.c.run_at_ms)).where(
        stands(Status.QUEUED, gate=Gate.SCHEDULED),
        job_table.c.run_at_ms > now_ms(),
        or_(false(), *known),
    )
    if queue is not None:
        query = query.where(job_table.c.queue == queue)
    with ledger.reading() as tx:
        found = Statement("testing.next_scheduled", query).one(tx)
    if found is None or found[0] is None:
        return False
    clock.advance((found[0] - clock.now_ms()) / 1000)
    return True


@contextmanager
def inline(ledger: Ledger, *, jobs_max: int = JOBS_MAX) -> Iterator[None]:
    """While the block lasts, what a transaction enqueues is run right after it has committed.

    - Never before, and not at all if it rolls back; in the order it was enqueued, then what those
      enqueue themselves.
    - An error of a job is raised where the transaction ended, after it was written. A job that was
      enqueued behind it stays queued.
    - What is not due yet stays queued, for `drain`.
    - AssertionError if one commit leads to more than `jobs_max` jobs.
    - A transaction that was joined commits out of sight: what it enqueued is run after the next
      commit of the ledger's own, or at the end of the block.
    """
    wake_signals = ledger.database.wake_signals
    if isinstance(wake_signals, _InlineSignals):
        message = "the jobs of this ledger are run inline already"
        raise NotAllowedNow(message, hint="leave the inner block out")
    signals = _InlineSignals(ledger, wake_signals, jobs_max)
    ledger.database.wake_signals = signals
    try:
        yield
        signals.run_new()
    finally:
        ledger.database.wake_signals = wake_signals


@contextmanager
def moved(ledger: Ledger, url: str, *, clock: Clock | None = None) -> Iterator[Ledger]:
    """The ledger with all its jobs, on another database and by another clock, for this block.

    For a ledger that a program keeps in a module: also what its jobs write through it goes to the
    other database. Tables are made there if they are missing.
    """
    settings = msgspec.structs.replace(ledger.settings, url=url)
    with Ledger(url, settings=settings, clock=clock) as fresh:
        fresh.migrate()
    wrap = ledger.database._wrap  # noqa: SLF001 - what the ledger's own transactions are made by
    database: Database[Transaction] = Database(url, settings.store, wrap=wrap, clock=clock)
    kept = dict(vars(ledger))
    there = {"database": database, "settings": settings, "_joiner": Joiner(database)}
    vars(ledger).update(there, _checked=True)
    try:
        yield ledger
    finally:
        database.close()
        vars(ledger).update({name: kept[name] for name in (*there, "_checked")})


class _InlineSignals(WakeSignals):
    """The wake-up signals of a ledger; notifying them runs the jobs.

    `notify` is called in the thread that has committed, when its transaction is over. While jobs
    are run, the same thread also runs those that other threads or the jobs themselves enqueue.
    """

    def __init__(self, ledger: Ledger, wake_signals: WakeSignals, jobs_max: int) -> None:
        super().__init__()
        self._jobs_max = jobs_max
        self._ledger = ledger
        self._subscribed = wake_signals
        self._turn = threading.Lock()
        self._news = self._running = False
        self._seen: set[str] = set()
        self._new()

    def subscribe(self, channel: str, wake_signal: WakeSignal) -> None:
        self._subscribed.subscribe(channel, wake_signal)

    def unsubscribe(self, channel: str, wake_signal: WakeSignal) -> None:
        self._subscribed.unsubscribe(channel, wake_signal)

    def notify(self, channels: Iterable[str]) -> None:
        names = list(channels)
        self._subscribed.notify(names)
        if any(name.startswith(channel_of("")) for name in names):
            self.run_new()

    def run_new(self) -> None:
        """Run what is new, unless somebody is doing so: then they will."""
        with self._turn:
            self._news = True
            if self._running:
                return
            self._running = True
        try:
            with ExitStack() as hands:
                self._run_all(hands)
        except StoreBusy as error:
            # The enqueuing transaction has committed, and must not run again because of this.
            message = "a job that was run inline met another transaction"
            raise AssertionError(message) from error

    def _run_all(self, hands: ExitStack) -> None:
        by_queue: dict[str, InlineWorker] = {}
        left = self._jobs_max
        try:
            while self._have_news():
                for job_id, queue in self._new():
                    if queue not in by_queue:
                        by_queue[queue] = hands.enter_context(InlineWorker(self._ledger, queue))
                    if left <= 0:
                        message = f"there is more to run inline than {self._jobs_max} jobs"
                        raise AssertionError(f"{message} (raise jobs_max if that is right)")
                    left -= 1
                    by_queue[queue].step(only=job_id)
                    by_queue[queue].complain()
        except BaseException:
            with self._turn:
                self._running = self._news = False
            # Jobs that stay queued are not taken for new ones when the next transaction commits.
            self._new()
            raise

    def _have_news(self) -> bool:
        with self._turn:
            news, self._news = self._news, False
            self._running = news
            return news

    def _new(self) -> list[tuple[str, str]]:
        """Jobs that were not seen before and are in line, as (id, queue); now they are seen."""
        with self._ledger.reading() as tx:
            rows = _queued.rows(tx, limit_=ROWS_MAX)
        new = [(str(row[0]), row[1], row[2]) for row in rows[::-1] if str(row[0]) not in self._seen]
        self._seen.update(job_id for job_id, _, _ in new)
        return [(job_id, queue) for job_id, queue, gate in new if gate == Gate.OPEN.value]


_queued = Statement(
    "testing.queued",
    select(job_table.c.id, job_table.c.queue, job_table.c.gate)
    .where(stands(Status.QUEUED))
    .order_by(job_table.c.created_at.desc(), job_table.c.id.desc())
    .limit(bindparam("limit_", type_=BigInteger())),
)


def _check_known(ledger: Ledger, job: AnyJob) -> None:
    name = ledger.kinds.name_of(job)
    if ledger.kinds.get(name) is None:
        known = ", ".join(sorted(ledger.kinds.all())) or "none at all"
        message = f"this ledger knows no job {name!r}"
        raise BadInput(message, hint=f"it knows {known}; import what declares the others")


def _begin_with(tx: Transaction, row: JobRow, attempt: int) -> None:
    """As if it had been tried before; that is on record like everything else."""
    if not 1 <= attempt <= row.max_attempts:
        message = f"the attempt is 1 to {row.max_attempts}, not {attempt}"
        raise BadInput(message, hint="give max_attempts, too")
    if attempt > 1:
        _attempted.run(tx, id_=row.id, attempt_=attempt - 1)
        told = history.detail(attempt=attempt - 1, reason="begun by a test")
        history.note(tx, row.id, Status.QUEUED, told)


_attempted = Statement(
    "testing.attempted",
    update(job_table)
    .where(job_table.c.id == bindparam("id_", type_=job_table.c.id.type))
    .values(attempt=bindparam("attempt_", type_=job_table.c.attempt.type)),
)

"""The tour: work is accepted, done by real processes, disturbed, and then counted.

accept ─▶ start workers ─▶ kill one with -9 ─▶ pause one past its lease ─▶ all done ─▶ count
                                │                     │
                                ▼                     ▼
                   its items are rescued    so are its items, and what it
                   when the lease is over   settles too late is refused
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, delete, func, or_, select

from ledgerstone.cli.demo_worker import TYPE, DemoWorker
from ledgerstone.errors import StoreBusy
from ledgerstone.ids import new_id
from ledgerstone.jobs import Accepted, JobEvent, NewJob, Status
from ledgerstone.jobs.tables import job, job_event, job_key
from ledgerstone.ledger import Ledger, Transaction, opened_database
from ledgerstone.store.database import Database
from ledgerstone.store.schema.retention_permit import permitted
from ledgerstone.store.schema.tables import worker
from ledgerstone.store.sql.expressions import json_text

LEASE_SECONDS = 2.0
PLACES = 2
WORKER_SETTINGS = {
    "engine_lease_seconds": LEASE_SECONDS,
    "engine_heartbeat_seconds": 0.5,
    "engine_rescue_seconds": 1.0,
    "engine_concurrency": PLACES,
    "log_level": "ERROR",
}
"""Short leases: what takes half a minute with the defaults is over in seconds."""
BATCH = 500
STORY_MAX = 50
"""Events of one job that are shown."""
REPEATED_EVERY = 20
WORK_SECONDS = 5.0
TAKE_MS_MIN, TAKE_MS_MAX = 2, 25
LOOK_SECONDS = 0.02
DISTURB_TRIES_MAX = 200
TAKEN_OVER_SECONDS_MAX = 120.0
ALL_DONE_SECONDS_MAX = 600.0
BUSY_SECONDS_MAX = 0.25


class Intake(msgspec.Struct, frozen=True):
    """The answers to the enqueue calls."""

    items: int
    duplicates: int
    conflicts: int


class TourFacts(msgspec.Struct, frozen=True):
    """The result; everything but the answers to the enqueue calls is read from the database."""

    accepted: int
    duplicates_answered: int
    conflicts_refused: int
    done: int
    rescued_after_kill: int
    rescued_after_pause: int
    late_settlements_refused: int
    lost: int
    done_twice: int
    events_waited: int = 0
    events_applied: int = 0

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        return self.lost == 0 and self.done_twice == 0


class Tour:
    """One tour on one ledger. Its jobs are in a queue of their own and are told from all others."""

    def __init__(self, ledger: Ledger, *, items: int, workers: int) -> None:
        self.items = items
        self.ids: list[str] = []
        """The worker ids, in the order of the processes; the first is killed, the second paused."""
        self.queue = f"demo-{new_id()}"
        self._ledger = ledger
        self._mine: ColumnElement[bool] = job.c.queue == self.queue
        self._take_ms = round(
            min(max(WORK_SECONDS * 1000 * PLACES * workers / items, TAKE_MS_MIN), TAKE_MS_MAX)
        )

    def accept(self) -> Intake:
        """Enqueue every job, some of them twice, and one key again with other arguments."""
        answered: Counter[Accepted] = Counter()
        for start in range(0, self.items, BATCH):
            numbers = range(start, min(start + BATCH, self.items))
            answered += self._answers([self._item(number) for number in numbers])
            again = [self._item(number) for number in numbers if number % REPEATED_EVERY == 0]
            answered += self._answers(again)
        other = msgspec.structs.replace(self._item(0), payload={"item": -1, "take_ms": 0})
        answered += self._answers([other])
        return Intake(
            answered[Accepted.CREATED], answered[Accepted.EXISTING], answered[Accepted.CONFLICT]
        )

    def _answers(self, news: Sequence[NewJob]) -> Counter[Accepted]:
        answers = self._ledger.run(lambda tx: tx.jobs.enqueue_many(news))
        return Counter(answer.accepted for answer in answers)

    def _item(self, number: int) -> NewJob:
        arguments = {"item": number, "take_ms": self._take_ms}
        key = f"{self.queue}-{number}"
        return NewJob(type=TYPE, payload=arguments, key=key, queue=self.queue)

    def began(self, processes: list[DemoWorker]) -> None:
        """Wait until all of them work."""
        self.ids = [process.ready() for process in processes]

    def done(self) -> int:
        """How many jobs have succeeded, now."""
        return self._count(select(func.count()).where(self._mine, _is(Status.SUCCEEDED)))

    def kill(self, process: DemoWorker, worker_id: str) -> int:
        """-9 in mid-work; how many jobs it held."""
        held = self._frozen(process, worker_id)
        process.kill()
        return held

    def pause(self, process: DemoWorker, worker_id: str) -> int:
        """SIGSTOP in mid-work; how many jobs it holds."""
        return self._frozen(process, worker_id)

    def _frozen(self, process: DemoWorker, worker_id: str) -> int:
        """Freeze it while it holds jobs that others could take, if its leases were over."""
        quick = msgspec.structs.replace(
            self._ledger.settings.store, busy_timeout_seconds=BUSY_SECONDS_MAX
        )
        settings = msgspec.structs.replace(self._ledger.settings, store=quick)
        database = opened_database(settings, self._ledger.rooms)
        try:
            for _ in range(DISTURB_TRIES_MAX):
                process.pause()
                held = self.held(worker_id)
                if held and self._unlocked(database, worker_id):
                    return held
                process.resume()
                time.sleep(LOOK_SECONDS)
        finally:
            database.close()
        process.pause()
        return self.held(worker_id)

    def _unlocked(self, database: Database[Transaction], worker_id: str) -> int:
        """How many of its jobs another could take hold of, if the lease were over."""
        held = select(job.c.id).where(*self._held(worker_id)).with_for_update(skip_locked=True)
        try:
            with database.transaction() as tx:
                return len(tx.execute(held).all())
        except StoreBusy:
            return 0

    def held(self, worker_id: str) -> int:
        """How many jobs a worker has claimed and not settled."""
        return self._count(select(func.count()).where(*self._held(worker_id)))

    def _held(self, worker_id: str) -> tuple[ColumnElement[bool], ...]:
        return self._mine, job.c.worker == worker_id, _is(Status.RUNNING)

    def taken_over(self, worker_id: str, look: Callable[[], None]) -> bool:
        """Wait until others have everything that the worker held; False if that takes too long."""
        return _until(lambda: self.held(worker_id) == 0, TAKEN_OVER_SECONDS_MAX, look)

    def finished(self, look: Callable[[], None]) -> bool:
        """Wait until everything is done; False if that takes too long."""
        return _until(lambda: self.done() >= self.items, ALL_DONE_SECONDS_MAX, look)

    def reached(self, share: float, look: Callable[[], None]) -> bool:
        """Wait until so much of the work is done; False if that takes too long."""
        return _until(lambda: self.done() >= share * self.items, ALL_DONE_SECONDS_MAX, look)

    def count(self, accepted: Intake) -> TourFacts:
        """Read from the database what came of it."""
        killed, paused = (_ran_out(worker_id) for worker_id in self.ids[:2])
        done = self.done()
        successes: Counter[str] = Counter()
        after_kill = after_pause = late = 0
        for event in self._events():
            moved = (event.prev_status, event.next_status)
            reason = str(event.detail.get("reason", ""))
            successes[event.job_id] += moved == (Status.RUNNING.value, Status.SUCCEEDED.value)
            after_kill += reason.startswith(killed)
            after_pause += reason.startswith(paused)
            late += "refused" in event.detail
        return TourFacts(
            accepted=accepted.items,
            duplicates_answered=accepted.duplicates,
            conflicts_refused=accepted.conflicts,
            done=done,
            rescued_after_kill=after_kill,
            rescued_after_pause=after_pause,
            late_settlements_refused=late,
            lost=accepted.items - done,
            done_twice=sum(times > 1 for times in successes.values()),
        )

    def story(self) -> list[JobEvent]:
        """The history of one job that was rescued, if possible one that was also settled late."""
        ran_out = tuple(_ran_out(worker_id) for worker_id in self.ids[:2])
        rescued = late = None
        for event in self._events():
            if "refused" in event.detail:
                late = late or event.job_id
            elif str(event.detail.get("reason", "")).startswith(ran_out):
                rescued = rescued or event.job_id
        if (found := late or rescued) is None:
            return []
        with self._ledger.reading() as tx:
            return tx.jobs.events(found, limit=STORY_MAX).rows

    def forget(self) -> None:
        """Remove the jobs, their history and keys, and the notes of the workers."""

        def work(tx: Transaction) -> None:
            mine = select(job.c.id).where(self._mine)
            tx.execute(delete(job_key).where(job_key.c.job_id.in_(mine)))
            with permitted(tx):
                tx.execute(delete(job).where(self._mine))
            tx.execute(delete(worker).where(worker.c.id.in_(self.ids)))

        self._ledger.run(work)

    def _events(self) -> Iterator[JobEvent]:
        """The moves of the jobs, without their acceptance and the begins of attempts."""
        told = (
            select(
                job_event.c.id,
                job_event.c.job_id,
                job_event.c.ts,
                job_event.c.prev_status,
                job_event.c.next_status,
                json_text(job_event.c.detail_json),
            )
            .join(job, job.c.id == job_event.c.job_id)
            .where(
                self._mine,
                job_event.c.prev_status.is_not(None),
                or_(
                    job_event.c.prev_status != Status.QUEUED.value,
                    job_event.c.next_status != Status.RUNNING.value,
                ),
            )
        )
        with self._ledger.reading() as tx:
            for row in tx.execute(told):
                detail = msgspec.json.decode(row[5]) if row[5] is not None else {}
                yield JobEvent(str(row[0]), str(row[1]), row[2], row[3], row[4], detail)

    def _count(self, statement: Any) -> int:
        with self._ledger.reading() as tx:
            return int(tx.execute(statement).scalar_one())


def _is(status: Status) -> ColumnElement[bool]:
    return job.c.status == status.value


def _ran_out(worker_id: str) -> str:
    return f"the lease of {worker_id} ran out"


def _until(true: Callable[[], bool], seconds_max: float, look: Callable[[], None]) -> bool:
    deadline = time.monotonic() + seconds_max
    while not true():
        if time.monotonic() > deadline:
            return False
        look()
        time.sleep(LOOK_SECONDS)
    return True

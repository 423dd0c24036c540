"""The tour: work is accepted, done by real processes, disturbed, and then counted.

accept ─▶ start workers ─▶ kill one with -9 ─▶ pause one past its lease ─▶ all done ─▶ count
                                │                     │
                                ▼                     ▼
                   its items are rescued    so are its items, and what it
                   when the lease is over   settles too late is refused
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, delete, func, select

from ledgerstone.chores import NewChore
from ledgerstone.chores.chores import ChoreEvent
from ledgerstone.chores.states import Status
from ledgerstone.chores.tables import chore, chore_event
from ledgerstone.errors import KeyConflict, StoreBusy
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.database import Database
from ledgerstone.store.tables import worker
from ledgerstone.testing.processes import WorkerProcess

HANDLER = "ledgerstone.cli.demo:take_a_moment"
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
REPEATED_EVERY = 20
WORK_SECONDS = 5.0
TAKE_MS_MIN, TAKE_MS_MAX = 2, 25
LOOK_SECONDS = 0.02
DISTURB_TRIES_MAX = 200
TAKEN_OVER_SECONDS_MAX = 120.0
ALL_DONE_SECONDS_MAX = 600.0
BUSY_SECONDS_MAX = 0.25


class Accepted(msgspec.Struct, frozen=True):
    """What was answered when the items were handed in."""

    items: int
    duplicates: int
    conflicts: int


class TourFacts(msgspec.Struct, frozen=True):
    """What came of it; all but what was answered at the intake is read from the database."""

    accepted: int
    duplicates_answered: int
    conflicts_refused: int
    done: int
    rescued_after_kill: int
    rescued_after_pause: int
    late_settlements_refused: int
    lost: int
    done_twice: int

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        return self.lost == 0 and self.done_twice == 0


class Tour:
    """One tour on one ledger. Its items have keys of their own and are told from all others."""

    def __init__(self, ledger: Ledger, *, items: int, workers: int) -> None:
        self.items = items
        self.ids: list[str] = []
        """The worker ids, in the order of the processes; the first is killed, the second paused."""
        self._ledger = ledger
        self._prefix = f"demo-{new_id()}-"
        self._mine: ColumnElement[bool] = chore.c.key.startswith(self._prefix)
        self._take_ms = round(
            min(max(WORK_SECONDS * 1000 * PLACES * workers / items, TAKE_MS_MIN), TAKE_MS_MAX)
        )

    def accept(self) -> Accepted:
        """Hand in every item, some of them twice, and one key again with another body."""
        created = duplicates = conflicts = 0
        for start in range(0, self.items, BATCH):
            numbers = range(start, min(start + BATCH, self.items))
            news = [self._item(number) for number in numbers]
            news += [self._item(number) for number in numbers if number % REPEATED_EVERY == 0]
            answers = self._ledger.run(lambda tx, news=news: tx.chores.enqueue_many(news))  # type: ignore[misc]
            created += sum(answer.created for answer in answers)
            duplicates += sum(not answer.created for answer in answers)
        try:
            other = msgspec.structs.replace(self._item(0), body="something else")
            self._ledger.run(lambda tx: tx.chores.enqueue_many([other]))
        except KeyConflict:
            conflicts += 1
        return Accepted(created, duplicates, conflicts)

    def _item(self, number: int) -> NewChore:
        body = {"item": number, "take_ms": self._take_ms}
        return NewChore(body=body, key=f"{self._prefix}{number}")

    def began(self, processes: list[WorkerProcess]) -> None:
        """Wait until all of them work."""
        self.ids = [process.ready() for process in processes]

    def done(self) -> int:
        """How many items are done, now."""
        return self._count(select(func.count()).where(self._mine, _is(Status.DONE)))

    def kill(self, process: WorkerProcess, worker_id: str) -> int:
        """-9 in mid-work; how many items it held."""
        held = self._frozen(process, worker_id)
        process.kill()
        return held

    def pause(self, process: WorkerProcess, worker_id: str) -> int:
        """SIGSTOP in mid-work; how many items it holds."""
        return self._frozen(process, worker_id)

    def _frozen(self, process: WorkerProcess, worker_id: str) -> int:
        """Freeze it while it holds items that others could take, if its leases were over."""
        quick = msgspec.structs.replace(
            self._ledger.settings.store, busy_timeout_seconds=BUSY_SECONDS_MAX
        )
        wrap = partial(Transaction, kinds=self._ledger.kinds, office=self._ledger.office)
        database = Database(self._ledger.settings.url, quick, wrap=wrap)
        try:
            for _ in range(DISTURB_TRIES_MAX):
                process.pause()
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                held = self.held(worker_id)
                if held and self._unlocked(database, worker_id):
                    return held
                process.resume()
                time.sleep(LOOK_SECONDS)
        finally:
            database.close()
        process.pause()
        return self.held(worker_id)

    @staticmethod
    def _unlocked(database: Database[Transaction], worker_id: str) -> int:
        """How many of its items another could take hold of, if the lease were over."""
        mine = select(chore.c.id).where(chore.c.worker == worker_id, _is(Status.RUNNING))
        try:
            with database.transaction() as tx:
                return len(tx.connection.execute(mine.with_for_update(skip_locked=True)).all())
        except StoreBusy:
            return 0

    def held(self, worker_id: str) -> int:
        """How many items a worker has claimed and not settled."""
        mine = (chore.c.worker == worker_id, _is(Status.RUNNING))
        return self._count(select(func.count()).where(self._mine, *mine))

    def taken_over(self, worker_id: str, look: Callable[[], None]) -> bool:
        """Wait until others have everything that the worker held; False if that takes too long."""
        return _until(lambda: self.held(worker_id) == 0, TAKEN_OVER_SECONDS_MAX, look)

    def finished(self, look: Callable[[], None]) -> bool:
        """Wait until everything is done; False if that takes too long."""
        return _until(lambda: self.done() >= self.items, ALL_DONE_SECONDS_MAX, look)

    def reached(self, share: float, look: Callable[[], None]) -> bool:
        """Wait until so much of the work is done; False if that takes too long."""
        return _until(lambda: self.done() >= share * self.items, ALL_DONE_SECONDS_MAX, look)

    def count(self, accepted: Accepted) -> TourFacts:
        """Read from the database what came of it."""
        killed, paused = self.ids[:2]
        done = self.done()
        return TourFacts(
            accepted=accepted.items,
            duplicates_answered=accepted.duplicates,
            conflicts_refused=accepted.conflicts,
            done=done,
            rescued_after_kill=self._events(chore_event.c.reason == _ran_out(killed)),
            rescued_after_pause=self._events(chore_event.c.reason == _ran_out(paused)),
            late_settlements_refused=self._events(chore_event.c.reason.startswith("refused:")),
            lost=accepted.items - done,
            done_twice=self._done_twice(),
        )

    def _done_twice(self) -> int:
        more_than_once = (
            select(chore_event.c.chore_id)
            .join(chore, chore.c.id == chore_event.c.chore_id)
            .where(self._mine, chore_event.c.next_status == Status.DONE.value)
            .where(chore_event.c.prev_status == Status.RUNNING.value)
            .group_by(chore_event.c.chore_id)
            .having(func.count() > 1)
        )
        return self._count(select(func.count()).select_from(more_than_once.subquery()))

    def story(self) -> list[ChoreEvent]:
        """The history of one item that was rescued, if possible one that was also settled late."""
        late = chore_event.c.reason.startswith("refused:")
        for what in (
            late,
            *(chore_event.c.reason == _ran_out(worker_id) for worker_id in self.ids[:2]),
        ):
            found = select(chore_event.c.chore_id).where(self._of_mine(), what).limit(1)
            with self._ledger.reading() as tx:
                identity = tx.connection.execute(found).scalar()
                if identity is not None:
                    return tx.chores.history(str(identity))
        return []

    def forget(self) -> None:
        """Remove the items, their history, and the notes of the workers."""

        def work(tx: Transaction) -> None:
            tx.connection.execute(delete(chore_event).where(self._of_mine()))
            tx.connection.execute(delete(chore).where(self._mine))
            tx.connection.execute(delete(worker).where(worker.c.id.in_(self.ids)))

        self._ledger.run(work)

    def _events(self, what: ColumnElement[bool]) -> int:
        return self._count(
            select(func.count()).select_from(chore_event).where(self._of_mine(), what)
        )

    def _of_mine(self) -> ColumnElement[bool]:
        return chore_event.c.chore_id.in_(select(chore.c.id).where(self._mine))

    def _count(self, statement: Any) -> int:
        with self._ledger.reading() as tx:
            return int(tx.connection.execute(statement).scalar_one())


def _is(status: Status) -> ColumnElement[bool]:
    return chore.c.status == status.value


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

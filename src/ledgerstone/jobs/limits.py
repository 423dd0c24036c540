"""Concurrency limits over all workers: of a queue, and of jobs with the same limit key.

Claims of a limited queue are serialized. Each claim and each settlement of a job with a limit key
locks the slot of that key, whatever its queue: no other transaction changes the counted jobs
meanwhile, so limits are exact. A job whose key is at its limit leaves the index of due jobs (its
gate is `blocked`), so that ten thousand of them cost a claim nothing. When a job with that key
ends, the next one is opened: of the next organisation that has one, in any queue.

    due (open) ──claim──▶ running ──settle──▶ ended
        │  ▲                              │
   key at its limit  └──── the next one ──┘
        ▼  │
      blocked

Opening too many jobs is safe: each claim counts again, and blocks those beyond the limit.

No claim, settlement or rescue waits for a slot: an open transaction of the user that has settled a
job may hold it for a long time. Jobs whose slot is locked are skipped, and blocked if it stays
locked; their keys are checked again soon (`BusySlots`). A settlement in a transaction of the user
waits for slots, in the order of their names. Claims of a queue are serialized by a row of their
own, which no call that pauses or limits the queue locks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
from sqlalchemy import Integer, bindparam, func, select, update

from ledgerstone.jobs import history
from ledgerstone.jobs.items import begun
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import channel_of, job, job_queue, stands, still
from ledgerstone.store.sql.batch import ClaimEach, InsertEach, UpdateEach
from ledgerstone.store.sql.distinct import distinct_values
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

PASSES_MAX = 10
"""How often one claim reads further if the keys of the jobs that it found were at their limits."""
BLOCK_MAX = 1000
SLOTS = 16
"""Limit keys are locked by slots: so few rows that locking all of them is quick."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.05, 1.0
"""The pause before a busy slot is tried again: at first, and at most; it doubles each time."""
STUCK_TRIES = 3
"""A slot that was locked so often is held by a long transaction, and not by claims."""
SWEPT_KEYS_MAX = 100
"""How many keys one sweep checks; the next sweep goes on behind them."""
# They end in a space, as the name of no queue does.
_SLOTS = tuple(f"limit keys {number:02} " for number in range(SLOTS))
ANY = 2**31 - 1
"""A number that no limit reaches."""
INFINITY = float("inf")
FIRST_ORG = "00000000-0000-0000-0000-000000000000"

Freed = tuple[str, str]
"""A place that has become free: the limit key, and the organisation that had it."""

_name = bindparam("name_", type_=job_queue.c.name.type)
_queue = bindparam("queue_", type_=job.c.queue.type)
_key = bindparam("key_", type_=job.c.limit_key.type)
_org = bindparam("org_", type_=job.c.org_id.type)
_most = func.coalesce(job.c.limit_max, 1)
_blocked = stands(Status.QUEUED, gate=Gate.BLOCKED)
_know = InsertEach("jobs.know_queue", job_queue, incoming=(job_queue.c.name,), locks=True)
_state = select(job_queue.c.paused_at_ms, job_queue.c.concurrency_max).where(
    job_queue.c.name == _name
)
_lock = Statement("jobs.lock_queue", _state.with_for_update())
_lock_if_free = Statement("jobs.lock_slot", _state.with_for_update(skip_locked=True))
_look = Statement("jobs.look_at_queue", _state)
_most_of_key = Statement(
    "jobs.most_of_key",
    select(_most)
    .where(_blocked, job.c.limit_key == _key)
    .order_by(job.c.org_id, job.c.urgency, job.c.run_at_ms, job.c.id)
    .limit(1),
)
_running = Statement(
    "jobs.running",
    select(func.count()).select_from(job).where(stands(Status.RUNNING), job.c.queue == _queue),
)
_used = Statement(
    "jobs.used_keys",
    select(job.c.limit_key, func.count())
    .where(stands(Status.RUNNING), job.c.limit_key.is_not(None))
    .group_by(job.c.limit_key),
)
_take = UpdateEach(
    "jobs.take",
    key=job.c.id,
    journal=history.moved,
    incoming=(job.c.id, job.c.token),
    build=lambda row: (
        update(job)
        .where(job.c.id == row.id, still(Status.QUEUED))
        # The token is the one that was told when it was found.
        .values({**begun(), "token": row.token})
    ),
)
_block = ClaimEach(
    "jobs.block",
    job,
    key=job.c.id,
    due=stands(Status.QUEUED, gate=Gate.OPEN)
    & (job.c.queue == _queue)
    & (job.c.limit_key == _key)
    # Another kind may let the same key have more.
    & (_most <= bindparam("used_", type_=Integer())),
    order_by=(job.c.org_id, job.c.type, job.c.urgency, job.c.run_at_ms, job.c.id),
    set_={"gate": Gate.BLOCKED.value},
    returning=(job.c.id,),
)
_order = (job.c.org_id, job.c.urgency, job.c.run_at_ms, job.c.id)
_unblock_behind, _unblock, _unblock_here = (
    ClaimEach(
        name,
        job,
        key=job.c.id,
        due=_blocked & (job.c.limit_key == _key) & whose,
        order_by=_order,
        set_={"gate": Gate.OPEN.value},
        returning=(job.c.id, job.c.queue),
    )
    for name, whose in (
        ("jobs.unblock_behind", job.c.org_id > _org),
        ("jobs.unblock", job.c.org_id <= _org),
        ("jobs.unblock_here", job.c.queue == _queue),
    )
)
_found = distinct_values(job.c.limit_key, _blocked, index="idx_job__blocked")
_blocked_keys = Statement(
    "jobs.blocked_keys",
    select(
        _found.c.value,
        select(_most)
        .where(_blocked, job.c.limit_key == _found.c.value)
        .order_by(*_order)
        .limit(1)
        .scalar_subquery(),
    ),
)


class Candidate(msgspec.Struct, frozen=True):
    """A job in line, as it is before it is taken."""

    row: Row
    limit_key: str | None
    limit_max: int | None
    org_id: str


class _Busy(msgspec.Struct):
    """A slot that another transaction holds: what is to be done once it is free."""

    tries: int
    due: float
    orgs: dict[str, str] = {}
    """The keys that may have a free place; the organisation behind which the next one is."""


class BusySlots:
    """The slots that one source found busy, until it has had them.

    Keys are noted when what made them wait is committed: before that, what is counted is the past.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy: dict[str, _Busy] = {}

    def seconds(self, now: float) -> float:
        """How long until one is to be tried again; without end if none is busy."""
        with self._lock:
            return min((max(each.due - now, 0.0) for each in self._busy.values()), default=INFINITY)

    def are_stuck(self, slot: str) -> bool:
        """Whether it has been busy for long."""
        with self._lock:
            return slot in self._busy and self._busy[slot].tries >= STUCK_TRIES

    def put_off(self, tx: Transaction, freed: Iterable[Freed]) -> None:
        """These keys are to be looked at when their slots are free."""
        pairs = list(freed)
        if pairs:
            tx.after_commit(partial(self._note, pairs, tx.database.clock.monotonic()))

    def tried(self, slot: str, now: float) -> None:
        """It is busy; the next try is later."""
        with self._lock:
            busy = self._busy.setdefault(slot, _Busy(0, now))
            if now >= busy.due:
                busy.due = now + min(AGAIN_SECONDS * 2**busy.tries, AGAIN_SECONDS_MAX)
                busy.tries += 1

    def due(self, now: float) -> dict[str, dict[str, str]]:
        """The slots that are to be tried now, and their keys."""
        if not self._busy:
            return {}
        with self._lock:
            return {slot: dict(b.orgs) for slot, b in self._busy.items() if b.due <= now}

    def had(self, slot: str, orgs: dict[str, str]) -> None:
        """It was free, and these keys were looked at."""
        with self._lock:
            busy = self._busy.get(slot)
            if busy is None:
                return
            for key in orgs:
                busy.orgs.pop(key, None)
            if not busy.orgs:
                del self._busy[slot]

    def _note(self, freed: Sequence[Freed], now: float) -> None:
        for key, org in freed:
            slot = _slot(key)
            with self._lock:
                fresh = _Busy(0, now + AGAIN_SECONDS)
                self._busy.setdefault(slot, fresh).orgs[key] = org


class _Keys:
    """The limit keys that one claim holds, and how many jobs run with each."""

    def __init__(self, tx: Transaction, slots: BusySlots) -> None:
        self._tx = tx
        self._slots = slots
        self._held: set[str] = set()
        self._missed: set[str] = set()
        self._used: dict[str, int] = {}
        self._full: dict[str, int] = {}
        self._stuck: dict[str, str] = {}
        self.busy = False

    def hold(self, found: Iterable[Candidate]) -> None:
        """Lock the keys of these, except what another transaction holds."""
        keys = (candidate.limit_key for candidate in found)
        slots = {_slot(key) for key in keys if key is not None} - self._held - self._missed
        if not slots:
            return
        held = _hold_free(self._tx, slots)
        now = self._tx.database.clock.monotonic()
        for slot in slots - held:
            self._slots.tried(slot, now)
        self._held |= held
        self._missed |= slots - held
        self._used = {key: int(count) for key, count in _used.rows(self._tx)}

    def admits(self, candidate: Candidate) -> bool:
        """Whether it may be taken; it is counted then."""
        key = candidate.limit_key
        if key is None:
            return True
        if (slot := _slot(key)) not in self._held:
            if self._slots.are_stuck(slot):
                self._stuck[key] = candidate.org_id
            else:
                self.busy = True
            return False
        used = self._used.get(key, 0)
        if used >= (candidate.limit_max or 1):
            self._full[key] = used
            return False
        self._used[key] = used + 1
        return True

    def block(self, queue: str) -> None:
        """Take those whose key is used up, or stays busy, out of the line."""
        used = {key: self._used.get(key, 0) for key in self._full} | dict.fromkeys(self._stuck, ANY)
        for key, count in used.items():
            _block.run(self._tx, limit=BLOCK_MAX, queue_=queue, key_=key, used_=count)
        self._slots.put_off(self._tx, self._stuck.items())
        self._full, self._stuck = {}, {}


def limited(tx: Transaction, queue: str) -> bool:
    """Whether this queue has a limit."""
    row = _look.one(tx, name_=queue)
    return row is not None and row[1] is not None


def begin(tx: Transaction, rows: Sequence[Row], **common: Any) -> None:
    """These jobs run from now on; the rows are as they were found, and locked."""
    words = [history.begun(row[1] + 1, common["worker"]) for row in rows]
    given = [(str(row[0]), row[2], told) for row, told in zip(rows, words, strict=True)]
    _take.apply(tx, given, **common)


def claim(
    tx: Transaction,
    queue: str,
    limit: int,
    look: Callable[[int], Sequence[Candidate]],
    slots: BusySlots,
    **common: Any,
) -> list[Row]:
    """Take what is in line as far as every limit allows; the rows as they were found.

    `look` answers so many jobs in line, locked, and others each time it is asked.
    """
    _lock_or_make(tx, _turn_of(queue), (_turn_of(queue),))
    paused, most = _state_of(tx, queue)
    if paused:
        return []
    room = limit
    if most is not None:
        ((running,),) = _running.rows(tx, queue_=queue)
        room = min(limit, most - running)
    keys = _Keys(tx, slots)
    taken: list[Row] = []
    for _ in range(PASSES_MAX):
        if room <= len(taken):
            break
        found = look(room - len(taken))
        if not found:
            break
        keys.hold(found)
        allowed = [candidate.row for candidate in found if keys.admits(candidate)]
        if allowed:
            begin(tx, allowed, **common)
            taken += allowed
        keys.block(queue)
        if keys.busy:
            # They are the first in line also of the next claim, which comes when a slot is due.
            break
    else:
        # Those that were used up are out of the way: the next claim comes further.
        tx.wake(channel_of(queue))
    return taken


def pass_on(
    tx: Transaction, queue: str, freed: Sequence[Freed], slots: BusySlots | None = None
) -> None:
    """Jobs with these keys are over in this queue, each frees a place for the next of its key.

    With `slots` nobody is waited for: keys whose slot is busy are looked at later.
    """
    if slots is None:
        lock(tx, (key for key, _ in freed))
        let_in(tx, queue, freed)
        return
    held = _hold_free(tx, {_slot(key) for key, _ in freed})
    slots.put_off(tx, [pair for pair in freed if _slot(pair[0]) not in held])
    let_in(tx, queue, [pair for pair in freed if _slot(pair[0]) in held])


def look_again(tx: Transaction, queue: str, slots: BusySlots) -> None:
    """Let jobs that waited for a slot that is free now get in line for the places of its keys."""
    now = tx.database.clock.monotonic()
    due = slots.due(now)
    if not due:
        return
    held = _hold_free(tx, due)
    used = {key: int(count) for key, count in _used.rows(tx)} if held else {}
    freed: list[Freed] = []
    for slot, orgs in due.items():
        if slot not in held:
            slots.tried(slot, now)
            continue
        for key, org in orgs.items():
            for (most,) in _most_of_key.rows(tx, key_=key):
                freed += [(key, org)] * (most - used.get(key, 0))
        tx.after_commit(partial(slots.had, slot, orgs))
    let_in(tx, queue, freed)


def lock(tx: Transaction, keys: Iterable[str]) -> None:
    """Hold off everybody else who claims or settles jobs with these keys; waits for them."""
    for slot in sorted({_slot(key) for key in keys}):
        _lock_or_make(tx, slot, _SLOTS)


def let_in(tx: Transaction, queue: str, freed: Iterable[Freed]) -> int:
    """For each place the next job with its key gets in line; how many there were.

    - The next is of the organisation behind the one that had the place: so they take turns.
    - Where it is of another queue, which may be paused or without a worker, the next of this queue
      gets in line too, and whoever is claimed first has the place.
    """
    queues: list[str] = []
    for (key, org), count in Counter(freed).items():
        opened = _unblock_behind.run(tx, limit=count, key_=key, org_=org)
        if len(opened) < count:
            opened += _unblock.run(tx, limit=count - len(opened), key_=key, org_=org)
        elsewhere = sum(row[1] != queue for row in opened)
        if elsewhere:
            opened += _unblock_here.run(tx, limit=elsewhere, key_=key, queue_=queue)
        queues += [row[1] for row in opened]
    for name in sorted(set(queues)):
        tx.wake(channel_of(name))
    return len(queues)


def sweep(tx: Transaction, queue: str, after: str = "") -> tuple[int, str]:
    """Places that are free though jobs with their keys are blocked are given to those.

    Looks at keys from this one on; answers how many jobs it let in, and where to go on.
    """
    found = _blocked_keys.rows(tx, begin=after, most=SWEPT_KEYS_MAX)
    used = {key: int(count) for key, count in _used.rows(tx)} if found else {}
    freed = [(key, FIRST_ORG) for key, most in found for _ in range(most - used.get(key, 0))]
    return let_in(tx, queue, freed), found[-1][0] if len(found) == SWEPT_KEYS_MAX else ""


def _slot(key: str) -> str:
    return _SLOTS[crc32(key.encode()) % SLOTS]


def _turn_of(queue: str) -> str:
    """The row that claims of this queue lock, one after another."""
    return f"claims {sha256(queue.encode()).hexdigest()} "


def _hold_free(tx: Transaction, slots: Iterable[str]) -> set[str]:
    """Lock these as far as nobody else has them; which."""
    held = set()
    for slot in sorted(slots):
        found = _lock_if_free.one(tx, name_=slot)
        if found is None and _look.one(tx, name_=slot) is None:
            found = _lock_or_make(tx, slot, _SLOTS)
        if found is not None:
            held.add(slot)
    return held


def _lock_or_make(tx: Transaction, name: str, names: Sequence[str]) -> Row | None:
    """Wait for this row; if it is not there, it is made together with these.

    Slots are made by the first claim of all, together: whoever makes a row keeps others from it,
    and a claim is short.
    """
    row = _lock.one(tx, name_=name)
    if row is None:
        absent = [(each,) for each in names if _look.one(tx, name_=each) is None]
        _know.run(tx, absent)
        row = _lock.one(tx, name_=name)
    return row


def _state_of(tx: Transaction, queue: str) -> tuple[bool, int | None]:
    row = _look.one(tx, name_=queue)
    return (row[0] is not None, row[1]) if row is not None else (False, None)

"""Limits that hold for all workers together: of a queue, and of jobs with the same limit key.

Whoever claims from a limited queue first locks the row of the queue, and whoever claims or settles
a job with a limit key locks the slot of that key, whatever its queue: what is counted then cannot
change behind its back, so limits are exact. A job whose key is used up is taken out of the line
(its gate is `blocked`), so that ten thousand of them cost nobody anything; when a job with that key
is over, the next one gets back in line: of the next organisation that has one, in any queue.

    in line (open) ──claim──▶ running ──settle──▶ over
         │  ▲                                │
   key used up  └──────── the next one ──────┘
         ▼  │
      blocked

To let in too many does no harm, for a claim counts again and puts them back. Locks are taken in one
order by all: the queue, jobs, then slots by their names; behind the first slots nobody is waited
for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
from sqlalchemy import Integer, bindparam, func, select, update

from ledgerstone.jobs import history
from ledgerstone.jobs.accepting import channel_of
from ledgerstone.jobs.items import begun
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, job_queue, stands, still
from ledgerstone.store.batch import ClaimEach, InsertEach, UpdateEach
from ledgerstone.store.distinct import different
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

PASSES_MAX = 10
"""How often one claim looks further because what it found was used up."""
BLOCK_MAX = 1000
SLOTS = 16
"""Keys are locked by slots: rows beside those of the queues, so few that all are soon locked."""
SWEPT_KEYS_MAX = 100
"""Keys that one sweep looks at; the next one goes on behind them."""
FIRST_ORG = "00000000-0000-0000-0000-000000000000"

Freed = tuple[str, str]
"""A place that is free again: the limit key, and the organisation that had it."""

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
_found = different(job.c.limit_key, _blocked, index="idx_job__blocked")
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


class _Keys:
    """The limit keys that one claim holds, and how many jobs run with each."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._held: set[str] = set()
        self._used: dict[str, int] = {}
        self._full: dict[str, int] = {}
        self.busy = False

    def hold(self, found: Iterable[Candidate]) -> None:
        """Lock the keys of these. Once some are held, what another holds is left for later."""
        keys = (candidate.limit_key for candidate in found)
        missing = {_slot(key) for key in keys if key is not None} - self._held
        if not missing:
            return
        for slot in sorted(missing):
            if not self._held or slot > max(self._held) or _is_free(self._tx, slot):
                _locked(self._tx, slot)
                self._held.add(slot)
            else:
                self.busy = True
        self._used = {key: int(count) for key, count in _used.rows(self._tx)}

    def admits(self, candidate: Candidate) -> bool:
        """Whether it may be taken; it is counted then."""
        key = candidate.limit_key
        if key is None:
            return True
        if _slot(key) not in self._held:
            return False
        used = self._used.get(key, 0)
        if used >= (candidate.limit_max or 1):
            self._full[key] = used
            return False
        self._used[key] = used + 1
        return True

    def block(self, queue: str) -> None:
        """Take those whose key is used up out of the line."""
        for key in self._full:
            _block.run(
                self._tx, limit=BLOCK_MAX, queue_=queue, key_=key, used_=self._used.get(key, 0)
            )
        self._full = {}


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
    **common: Any,
) -> list[Row]:
    """Take what is in line as far as every limit allows; the rows as they were found.

    `look` answers so many jobs in line, locked, and others each time it is asked.
    """
    paused, most = _locked(tx, queue)
    if paused:
        return []
    room = limit
    if most is not None:
        ((running,),) = _running.rows(tx, queue_=queue)
        room = min(limit, most - running)
    keys = _Keys(tx)
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
            # The next claim finds them first, and waits.
            tx.wake(channel_of(queue))
            break
    else:
        # Those that were used up are out of the way: the next claim comes further.
        tx.wake(channel_of(queue))
    return taken


def pass_on(tx: Transaction, queue: str, freed: Sequence[Freed]) -> None:
    """Jobs with these keys are over in this queue, each frees a place for the next of its key."""
    lock(tx, (key for key, _ in freed))
    let_in(tx, queue, freed)


def lock(tx: Transaction, keys: Iterable[str]) -> None:
    """Hold off everybody else who claims or settles jobs with these keys."""
    for slot in sorted({_slot(key) for key in keys}):
        _locked(tx, slot)


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
    # It ends in a space, as the name of no queue does.
    return f"limit keys {crc32(key.encode()) % SLOTS:02} "


def _is_free(tx: Transaction, slot: str) -> bool:
    """Whether nobody else has it, and nobody gets it any more; or it was never used."""
    return _lock_if_free.one(tx, name_=slot) is not None or _look.one(tx, name_=slot) is None


def _locked(tx: Transaction, name: str) -> tuple[bool, int | None]:
    row = _lock.one(tx, name_=name)
    if row is None:
        _know.run(tx, [(name,)])
        row = _lock.one(tx, name_=name)
    return (row[0] is not None, row[1]) if row is not None else (False, None)

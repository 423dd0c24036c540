"""The claim order of one queue.

Organisations take turns. A claim divides its places among the next organisations in turn. Each of
them gives so many jobs that one round of all organisations takes `ROUND_JOBS` jobs, or one job each
if there are more organisations than that. However many jobs one organisation has queued, another
one waits for one round. Within an organisation urgent jobs come first, then those due earlier.

The index of due jobs has the jobs of one organisation and type beside each other: a group.

    queue │ org A            │ org B            │ org C
          │ mail │ report    │ mail │ unknown…  │ report
            ▲      ▲           ▲                  ▲
            the first of each group, merged by urgency and due time

A claim first lists the groups, with one index lookup for each, and then reads only groups whose
type is known: jobs that this worker cannot run cost one lookup, however many there are. A queue
with one group, the usual case, is claimed by one statement, which answers nothing if there is
another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Integer, Select, and_, bindparam, exists, or_, select
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.util import ClauseAdapter

from ledgerstone.jobs import history, limits
from ledgerstone.jobs.items import begun, next_token
from ledgerstone.jobs.limits import Candidate
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, job_queue, stands
from ledgerstone.store.sql.batch import ClaimEach, FirstEach, Incoming, LockFirst
from ledgerstone.store.sql.distinct import DistinctPairs
from ledgerstone.store.sql.expressions import beyond, json_text
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from sqlalchemy import FromClause, Subquery

    from ledgerstone.store.transaction import Transaction

FIRST_ORG = "00000000-0000-0000-0000-000000000000"
ROUND_JOBS = 500
"""How many jobs one round of all organisations takes, unless there are more organisations."""
LISTED_MIN, LISTED_MAX = 100, 500
"""How many groups one statement lists."""
LISTS_MAX = 20
"""How many lists one claim reads; if all have only unknown types, the next claim goes on there."""
COUNTED_SECONDS = 0.5
"""How long the number of organisations is cached."""
SLOW_SECONDS, SLOW_ROW_SECONDS = 0.02, 0.0001
"""A claim that took longer, in all and for each job, stepped over dead tuples that an old snapshot
keeps alive."""
RESUME_SECONDS = 0.5
"""How long after a slow claim the next claims begin where it ended, and not at the front."""
INDEX = "idx_job__due"
COLUMNS: tuple[Any, ...] = (
    job.c.id,
    job.c.attempt,
    job.c.token,
    json_text(job.c.payload).label("payload"),
    job.c.type,
    job.c.org_id,
    job.c.crashes,
    job.c.max_attempts,
    job.c.backoff_policy,
    job.c.limit_key,
    job.c.requested_by,
    job.c.correlation_id,
    job.c.trace_context,
    job.c.urgency,
    job.c.run_at_ms,
)
"""The columns that a claim reads, with those of the claim order."""
ABOUT = slice(7, 13)
"""The columns that a claim keeps beside key, attempt, token, payload, type, org and crashes."""
LIMIT_KEY = 9
_found = tuple(next_token(c) for c in COLUMNS)
"""The same columns of a job before its claim, with the token that the claim will write."""
_TYPE, _ORG, _URGENCY, _RUN_AT = 4, 5, 13, 14
_PLACE = (job.c.urgency, job.c.run_at_ms, job.c.id)
_GROUP = (job.c.org_id, job.c.type)
_queue = bindparam("queue_", type_=job.c.queue.type)
_org = bindparam("org_", type_=job.c.org_id.type)
_type = bindparam("type_", type_=job.c.type.type)
_governed = exists().where(
    job_queue.c.name == _queue,
    or_(job_queue.c.paused_at_ms.is_not(None), job_queue.c.concurrency_max.is_not(None)),
)


def in_line(of: FromClause = job) -> ColumnElement[bool]:
    """The condition of a job of the queue that may begin now."""
    return and_(stands(Status.QUEUED, gate=Gate.OPEN, of=of), of.c.queue == _queue)


def first_of(row: Incoming, *columns: Any) -> Select[Any]:
    """The jobs of a group, in claim order."""
    group = and_(job.c.org_id == row.org_id, job.c.type == row.type)
    return select(*columns).where(in_line(), group).order_by(*_PLACE)


_list = DistinctPairs(
    "jobs.groups",
    job.c.org_id,
    job.c.type,
    in_line(),
    key=job.c.id,
    index=INDEX,
    leading=(job.c.status, job.c.gate, job.c.queue),
)
_heads = FirstEach(
    "jobs.heads", job, index=INDEX, incoming=_GROUP, build=lambda row: first_of(row, *_PLACE)
)
_look = LockFirst(
    "jobs.look_in_line",
    job,
    index=INDEX,
    incoming=_GROUP,
    build=lambda row: first_of(row, *_found, job.c.limit_max),
)
_look_plainly = LockFirst(
    "jobs.look_plainly",
    job,
    index=INDEX,
    incoming=_GROUP,
    build=lambda row: first_of(row, *_found, job.c.limit_max).where(~_governed),
)
_ends = (job.c.org_id, job.c.type, *_PLACE)


def _end(name: str, order: Sequence[Any]) -> Subquery:
    """The job at one end of the line. No condition but its order leaves a choice of the index."""
    of = job.alias(f"any_{name}")
    adapted = [ClauseAdapter(of).traverse(part) for part in order]
    columns = (of.c.org_id, of.c.type, of.c.limit_key)
    return select(*columns).where(in_line(of)).order_by(*adapted).limit(1).subquery(name)


_first, _last = _end("first", _ends), _end("last", [part.desc() for part in _ends])
# One with a limit key that is the first has its turn: it is not passed by.
_only_org = (
    select(_first.c.org_id)
    .where(_first.c.org_id == _org, _first.c.type == _type, _first.c.limit_key.is_(None))
    .where(exists().where(_last.c.org_id == _org, _last.c.type == _type), ~_governed)
)
_last_org = select(_last.c.org_id).where(_last.c.org_id == _org, _last.c.type == _type, ~_governed)
_behind_place = beyond(
    _PLACE,
    (
        bindparam("urgency", type_=Integer()),
        bindparam("run_at", type_=BigInteger()),
        bindparam("id", type_=job.c.id.type),
    ),
)


def _taking(org: Select[Any], *where: ColumnElement[bool]) -> ClaimEach:
    """One statement that takes from the only group what nothing limits.

    `org` is its organisation, or nothing. As the value that is looked up it is asked for once, and
    not again for each row.
    """
    group = and_(job.c.org_id == org.scalar_subquery(), job.c.type == _type)
    return ClaimEach(
        "jobs.claim",
        job,
        key=job.c.id,
        due=and_(in_line(), group, *where, job.c.limit_key.is_(None)),
        order_by=_PLACE,
        set_=begun(),
        returning=COLUMNS,
        journal=history.claimed,
        index=INDEX,
    )


def types_of(tx: Transaction, queue: str, org: str) -> list[str]:
    """Of which types this organisation has jobs in line."""
    rows = _list.rows(tx, queue_=queue, begin=org, most=LISTED_MAX)
    return [kind for found, kind in rows if str(found) == org]


_take = _taking(_only_org)
# The first one is not looked for here: that is what takes long.
_take_behind = _taking(_last_org, _behind_place)


class _Group(NamedTuple):
    """Jobs of one organisation and type."""

    org: str
    type: str


class _OrgTurns(NamedTuple):
    """The organisations that have their turn, in order, each with its types that are known."""

    types: dict[str, list[str]]
    next_org: str
    """Where the next list begins if these are not enough."""
    whole: bool
    """Nobody else is in line."""
    only: _Group | None = None
    """The group that is there, if no other is, of a known type or not."""


class ClaimOrder:
    """Jobs of one queue and of known types, in the order in which they are to be run."""

    def __init__(self, queue: str, types: Sequence[str]) -> None:
        self._queue = queue
        self.know(types)
        self._start = FIRST_ORG
        self._orgs = 1
        self._counted_until = float("-inf")
        self._only: _Group | None = None
        self._place = (0, 0, FIRST_ORG)
        self._resume_until = 0.0

    def know(self, types: Sequence[str]) -> None:
        """From now on jobs of these types; whose turn it is stays as it is."""
        self._types = frozenset(types)

    def take(self, tx: Transaction, limit: int, **common: Any) -> list[Row] | None:
        """Claim so many; none if the queue is paused or limited. The rows as they are then.

        None: jobs with limit keys have their turn, which `limits` claims.
        """
        rows, all_there = self._from_only_group(tx, limit, common)
        if all_there:
            return rows
        start, began = self._start, perf_counter()
        found = self._in_turn(tx, limit - len(rows), _look_plainly)
        if any(row[LIMIT_KEY] is not None for row in found):
            self._start = start
            return rows or None
        if found:
            limits.begin(tx, found, **common)
            if self._only is not None:
                self._time(tx, found, began)
        return rows + [(row[0], row[1] + 1, *row[2:-1]) for row in found]

    def look(self, tx: Transaction, limit: int) -> list[Candidate]:
        """So many, locked and not yet taken, also those with limit keys."""
        rows = self._in_turn(tx, limit, _look)
        return [Candidate(row[:-1], row[LIMIT_KEY], row[-1], str(row[_ORG])) for row in rows]

    def start_at_front(self) -> None:
        """The next claim begins there, however long the last one took."""
        self._resume_until = 0.0

    def _from_only_group(
        self, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> tuple[list[Row], bool]:
        """The next jobs if one group is queued, as it was last time, and nothing else."""
        rows: list[Row] = []
        if self._only is None:
            return rows, False
        org, kind = self._only
        group = {"queue_": self._queue, "org_": org, "type_": kind, **common}
        if tx.database.clock.monotonic() < self._resume_until:
            urgency, run_at, id_ = self._place
            place = {"urgency": urgency, "run_at": run_at, "id": id_}
            rows = _take_behind.run(tx, limit=limit, **place, **group)
            if len(rows) == limit:
                self._place = _place_of(rows[-1])
                return rows, True
            self._resume_until = 0.0
        if not rows:
            # If it takes something, nothing is taken after it.
            tx.end_with_next()
        began = perf_counter()
        front = _take.run(tx, limit=limit - len(rows), **group)
        if front:
            self._time(tx, front, began)
        return rows + front, bool(front)

    def _time(self, tx: Transaction, rows: list[Row], began: float) -> None:
        """Of one group: after a claim that was slow the next ones go on where it ended."""
        if perf_counter() - began > max(SLOW_SECONDS, len(rows) * SLOW_ROW_SECONDS):
            self._place = _place_of(rows[-1])
            self._resume_until = tx.database.clock.monotonic() + RESUME_SECONDS

    def _in_turn(self, tx: Transaction, limit: int, look: LockFirst) -> list[Row]:
        """So many, locked, from the organisation whose turn it is to the one before it."""
        found: list[Row] = []
        had: dict[str, list[str]] = {}
        each = limit
        for _ in range(LISTS_MAX):
            turns = self._turns(tx, limit)
            self._only = turns.only
            each = min(ceil(ROUND_JOBS / self._orgs), limit)
            types = {org: kinds for org, kinds in turns.types.items() if org not in had}
            found += self._first(tx, types, each, limit - len(found), look)
            if len(found) == limit:
                org = str(found[-1][_ORG])
                # Behind the last one of all comes the first.
                over = turns.whole and org == max(turns.types)
                self._start = FIRST_ORG if over else _following(org)
                return found
            had.update(types)
            self._start = turns.next_org
            if turns.whole or len(types) < len(turns.types):
                break
        for last in (False, True):
            # The rest of the places goes to groups that have more than their part.
            room, given = limit - len(found), Counter(str(row[_ORG]) for row in found)
            more = {org: had[org] for org, count in given.items() if count >= each}
            if not room or not more:
                break
            each += room if last else ceil(room / len(more))
            # Those that are locked already are answered again.
            again = room + sum(given[org] for org in more)
            seen = {row[0] for row in found}
            rows = self._first(tx, more, each, again, look)
            found += [row for row in rows if row[0] not in seen][:room]
        return found

    def _first(
        self, tx: Transaction, types: dict[str, list[str]], each: int, limit: int, look: LockFirst
    ) -> list[Row]:
        """The first jobs of these organisations: so many of each, so many in all."""
        orgs = list(types)
        found: list[Row] = []
        while orgs and len(found) < limit:
            # Each has one at least: more organisations are not needed.
            some, orgs = orgs[: limit - len(found)], orgs[limit - len(found) :]
            groups = self._shares(tx, {org: types[org] for org in some}, each)
            locked = look.rows(tx, groups, limit=limit - len(found), queue_=self._queue)
            places = {org: i for i, org in enumerate(some)}
            found += sorted(locked, key=lambda row: (places[str(row[_ORG])], *_place_of(row)))
        return found

    def _shares(
        self, tx: Transaction, types: dict[str, list[str]], each: int
    ) -> list[tuple[str, str, int]]:
        """How many of each group are among the first so many of its organisation."""
        mixed = [(org, kind) for org, kinds in types.items() if len(kinds) > 1 for kind in kinds]
        heads = _heads.rows(tx, mixed, each=each, queue_=self._queue) if mixed else []
        places: dict[str, list[tuple[Any, ...]]] = {}
        for (org, kind), rows in zip(mixed, heads, strict=True):
            places.setdefault(org, []).extend((u, at, str(id_), kind) for u, at, id_ in rows)
        shares: list[tuple[str, str, int]] = []
        for org, kinds in types.items():
            if org not in places:
                shares.append((org, kinds[0], each))
                continue
            counts = Counter(place[-1] for place in sorted(places[org])[:each])
            shares += [(org, kind, count) for kind, count in counts.items()]
        return shares

    def _turns(self, tx: Transaction, limit: int) -> _OrgTurns:
        """The next jobs in claim order, as far as one claim reads."""
        moment = tx.database.clock.monotonic()
        counts = moment >= self._counted_until
        # The last one tells that there are more.
        most = 1 + (LISTED_MAX if counts else min(max(limit, LISTED_MIN), LISTED_MAX))
        groups, next_org = self._listed(tx, self._start, most)
        whole = next_org is None
        if whole and self._start != FIRST_ORG:
            before, next_org = self._listed(tx, FIRST_ORG, most)
            whole = next_org is None or next_org >= self._start
            groups += [group for group in before if group.org < self._start]
        types: dict[str, list[str]] = {}
        for group in groups:
            if group.type in self._types:
                types.setdefault(group.org, []).append(group.type)
        if whole or counts:
            # If not all could be listed, there are many.
            self._orgs = max(len(types), 1) if whole else ROUND_JOBS
            self._counted_until = moment + COUNTED_SECONDS
        only = groups[0] if whole and len(groups) == 1 and types else None
        return _OrgTurns(types, FIRST_ORG if whole else str(next_org), whole, only)

    def _listed(self, tx: Transaction, begin: str, most: int) -> tuple[list[_Group], str | None]:
        """The groups from this organisation on, and with which one the list has to go on, if so."""
        rows = _list.rows(tx, queue_=self._queue, begin=begin, most=most)
        groups = [_Group(str(org), kind) for org, kind in rows]
        if len(groups) < most:
            return groups, None
        last = groups[-1].org
        if last == groups[0].org:
            return groups, _following(last)
        # It may have more types than these.
        return [group for group in groups if group.org != last], last


def _place_of(row: Row) -> tuple[int, int, str]:
    return row[_URGENCY], row[_RUN_AT], str(row[0])


def _following(org: str) -> str:
    """The id after this one; after the last comes the first."""
    return str(UUID(int=(UUID(org).int + 1) % (1 << 128)))

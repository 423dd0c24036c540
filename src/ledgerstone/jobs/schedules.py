"""Schedules: jobs that are enqueued at the moments of a cron expression, once per cluster.

A schedule is a row that knows its next moment. One worker at a time (see `engine.duties`) looks for
rows whose moment has come, enqueues their jobs and moves them on, in one transaction:

    next_at ≤ now ──▶ job with the key schedule:NAME:MOMENT ──▶ next_at = first moment after now

The key makes it once: whoever tries the same moment again, after a crash or because the clock was
set back, finds the job that is there. A clock that was far ahead leaves schedules that wait for a
moment far away: pausing and resuming one counts it anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    bindparam,
    column,
    delete,
    null,
    select,
    update,
)
from sqlalchemy.schema import conv

from ledgerstone.engine.duties import Duty
from ledgerstone.errors import BadInput, NotFound, StoreError
from ledgerstone.jobs import cron as crons
from ledgerstone.jobs.accepting import (
    NO_ORG,
    PRIORITY_MAX,
    Enqueued,
    NewJob,
    accept,
    bounded,
    check_type,
    org_of,
)
from ledgerstone.jobs.cron import CRON_CHARS_MAX, ZONE_CHARS_MAX, Misfire
from ledgerstone.jobs.kinds import Kinds, NoLimitKey
from ledgerstone.jobs.tables import QUEUE_CHARS_MAX, TYPE_CHARS_MAX, tables
from ledgerstone.store.batch import ClaimEach, InsertEach, UpdateEach
from ledgerstone.store.body import encode
from ledgerstone.store.expressions import as_json, json_text, now_ms
from ledgerstone.store.names import check_name
from ledgerstone.store.pages import Keyset, Page
from ledgerstone.store.schema import MYSQL_TABLE, id_type, json_type
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

NAME_CHARS_MAX = 190
MISFIRE_CHARS_MAX = 8
PREVIEW_MAX = 1000
EVERY_SECONDS = 1.0
DUE_MAX = 100
"""Schedules that one turn of the duty takes; the others have the next one."""

_MISFIRES = ", ".join(f"'{policy.value}'" for policy in Misfire)
_log = logging.getLogger("ledgerstone.jobs")

job_schedule = Table(
    "job_schedule",
    tables,
    Column("name", String(NAME_CHARS_MAX), primary_key=True),
    Column("type", String(TYPE_CHARS_MAX), nullable=False),
    Column("payload", json_type(), nullable=False),
    Column("org_id", id_type(), nullable=False),
    Column("queue", String(QUEUE_CHARS_MAX)),
    Column("cron", String(CRON_CHARS_MAX), nullable=False),
    Column("time_zone", String(ZONE_CHARS_MAX), nullable=False),
    Column("misfire", String(MISFIRE_CHARS_MAX), nullable=False),
    Column("priority", Integer),
    Column("next_at_ms", BigInteger, nullable=False),
    Column("last_at_ms", BigInteger),
    Column("last_job_id", id_type()),
    Column("paused_at_ms", BigInteger),
    Column("created_at_ms", BigInteger, nullable=False),
    CheckConstraint(f"misfire IN ({_MISFIRES})", name=conv("ck_job_schedule__misfire")),
    **MYSQL_TABLE,
)
"""What has no queue or priority of its own takes that of its kind, at each run."""
Index(
    "idx_job_schedule__due",
    job_schedule.c.paused_at_ms,
    job_schedule.c.next_at_ms,
    job_schedule.c.name,
)


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it stands; a paused one has no next moment."""

    name: str
    type: str
    payload: Any
    org_id: str
    queue: str | None
    cron: str
    time_zone: str
    misfire: Misfire
    priority: int | None
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: str | None
    paused_at: datetime | None
    created_at: datetime


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be put; what is left out comes from the job's kind."""

    name: str
    job: str | Callable[..., Any]
    cron: str
    payload: Mapping[str, Any] = {}
    time_zone: str = "UTC"
    misfire: str | Misfire = Misfire.ONCE
    org: str | UUID = NO_ORG
    queue: str | None = None
    priority: int | None = None


class _Content(msgspec.Struct, frozen=True):
    """What makes a schedule another one, as it is kept; the payload as JSON text."""

    type: str
    payload: str
    org_id: str
    queue: str | None
    cron: str
    time_zone: str
    misfire: str
    priority: int | None

    def same_times(self, other: _Content) -> bool:
        return (self.cron, self.time_zone) == (other.cron, other.time_zone)

    def read(self) -> crons.Cron:
        """When it is due; BadInput if that cannot be read here."""
        return crons.parsed(self.cron, self.time_zone)


_content_columns: tuple[Any, ...] = (
    job_schedule.c.type,
    json_text(job_schedule.c.payload).label("payload"),
    job_schedule.c.org_id,
    job_schedule.c.queue,
    job_schedule.c.cron,
    job_schedule.c.time_zone,
    job_schedule.c.misfire,
    job_schedule.c.priority,
)
_WIDTH = 1 + len(_content_columns)
_columns: tuple[Any, ...] = (
    job_schedule.c.name,
    *_content_columns,
    job_schedule.c.next_at_ms,
    job_schedule.c.last_at_ms,
    job_schedule.c.last_job_id,
    job_schedule.c.paused_at_ms,
    job_schedule.c.created_at_ms,
)
_named = job_schedule.c.name == bindparam("name_", type_=job_schedule.c.name.type)
_next = bindparam("next_", type_=BigInteger())
_now = Statement("schedules.now", select(now_ms()))
_get = Statement("schedules.get", select(*_columns).where(_named))
_hold = Statement("schedules.hold", select(*_columns).where(_named).with_for_update())
_add = InsertEach(
    "schedules.add",
    job_schedule,
    incoming=(
        job_schedule.c.name,
        job_schedule.c.type,
        column("payload", Text()),
        job_schedule.c.org_id,
        job_schedule.c.queue,
        job_schedule.c.cron,
        job_schedule.c.time_zone,
        job_schedule.c.misfire,
        job_schedule.c.priority,
        job_schedule.c.next_at_ms,
    ),
    values=lambda row: {"payload": as_json(row.payload), "created_at_ms": now_ms()},
)
_replace = Statement(
    "schedules.replace",
    update(job_schedule)
    .where(_named)
    .values(
        type=bindparam("type_", type_=job_schedule.c.type.type),
        payload=as_json(bindparam("payload_", type_=Text())),
        org_id=bindparam("org_id_", type_=job_schedule.c.org_id.type),
        queue=bindparam("queue_", type_=job_schedule.c.queue.type),
        cron=bindparam("cron_", type_=job_schedule.c.cron.type),
        time_zone=bindparam("time_zone_", type_=job_schedule.c.time_zone.type),
        misfire=bindparam("misfire_", type_=job_schedule.c.misfire.type),
        priority=bindparam("priority_", type_=job_schedule.c.priority.type),
        next_at_ms=_next,
    ),
)
_remove = Statement("schedules.remove", delete(job_schedule).where(_named))
_pause = Statement(
    "schedules.pause",
    update(job_schedule)
    .where(_named, job_schedule.c.paused_at_ms.is_(None))
    .values(paused_at_ms=now_ms()),
)
_resume = Statement(
    "schedules.resume",
    update(job_schedule).where(_named).values(paused_at_ms=null(), next_at_ms=_next),
)
_triggered = Statement(
    "schedules.triggered",
    update(job_schedule)
    .where(_named)
    .values(
        last_at_ms=now_ms(),
        last_job_id=bindparam("job_id_", type_=job_schedule.c.last_job_id.type),
    ),
)
_due = ClaimEach(
    "schedules.due",
    job_schedule,
    key=job_schedule.c.name,
    due=job_schedule.c.paused_at_ms.is_(None) & (job_schedule.c.next_at_ms <= now_ms()),
    order_by=(job_schedule.c.next_at_ms, job_schedule.c.name),
    # Nothing is changed yet: what is wanted is the lock. Where it moves to is known only then.
    set_={"next_at_ms": job_schedule.c.next_at_ms},
    returning=(
        job_schedule.c.name,
        *_content_columns,
        job_schedule.c.next_at_ms,
        now_ms().label("looked_at_ms"),
    ),
)
_ran = UpdateEach(
    "schedules.ran",
    key=job_schedule.c.name,
    incoming=(job_schedule.c.name, job_schedule.c.next_at_ms, job_schedule.c.last_job_id),
    build=lambda row: (
        update(job_schedule)
        .where(job_schedule.c.name == row.name)
        .values(next_at_ms=row.next_at_ms, last_at_ms=now_ms(), last_job_id=row.last_job_id)
    ),
)
_passed = UpdateEach(
    "schedules.passed",
    key=job_schedule.c.name,
    incoming=(job_schedule.c.name, job_schedule.c.next_at_ms),
    build=lambda row: (
        update(job_schedule)
        .where(job_schedule.c.name == row.name)
        .values(next_at_ms=row.next_at_ms)
    ),
)


class Schedules:
    """Schedules, inside one transaction."""

    def __init__(self, tx: Transaction, kinds: Kinds) -> None:
        self._tx = tx
        self._kinds = kinds

    def put(
        self,
        name: str,
        job: str | Callable[..., Any],
        cron: str,
        *,
        payload: Mapping[str, Any] | None = None,
        time_zone: str = "UTC",
        misfire: str | Misfire = Misfire.ONCE,
        org: str | UUID = NO_ORG,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Schedule:
        """Add a schedule, or make the one of this name like this.

        - The same content changes nothing.
        - Other times count from now. With the same times a moment that is due stays due.
        - A paused one stays paused.
        """
        return self.put_new(
            NewSchedule(
                name=name,
                job=job,
                cron=cron,
                payload=payload or {},
                time_zone=time_zone,
                misfire=misfire,
                org=org,
                queue=queue,
                priority=priority,
            )
        )

    def put_new(self, new: NewSchedule) -> Schedule:
        """As `put`."""
        check_name(new.name, "the name of a schedule", chars_max=NAME_CHARS_MAX)
        content = _checked(self._kinds, new, self._tx.database.settings.body_bytes_max)
        next_ms = content.read().after(now_of(self._tx))
        added = (new.name, *msgspec.structs.astuple(content), next_ms)
        if _add.run(self._tx, [added]):
            row = self._held(new.name)
            kept = _content(row)
            if kept != content:
                next_ms = row[_WIDTH] if kept.same_times(content) else next_ms
                values = {f"{k}_": v for k, v in msgspec.structs.asdict(content).items()}
                _replace.run(self._tx, name_=new.name, next_=next_ms, **values)
        return self.get(new.name)

    def get(self, name: str) -> Schedule:
        """The schedule as it stands."""
        return _schedule(_found(_get.one(self._tx, name_=name), name))

    def remove(self, name: str) -> None:
        """It is gone; jobs that it has enqueued are not."""
        if not _remove.run(self._tx, name_=name):
            raise _missing(name)

    def pause(self, name: str) -> None:
        """Its moments pass without a job."""
        self._held(name)
        _pause.run(self._tx, name_=name)

    def resume(self, name: str) -> None:
        """It goes on with its first moment after now; nothing is made up for."""
        schedule = _schedule(self._held(name))
        if schedule.paused_at is not None:
            cron = crons.parsed(schedule.cron, schedule.time_zone)
            _resume.run(self._tx, name_=name, next_=cron.after(now_of(self._tx)))

    def trigger(self, name: str, *, by: str | None = None) -> Enqueued:
        """Enqueue its job now, paused or not; its own moments stay as they are."""
        content = _content(self._held(name))
        (enqueued,) = accept(self._tx, self._kinds, [_job(name, content, requested_by=by)])
        _triggered.run(self._tx, name_=name, job_id_=enqueued.id)
        return enqueued

    def preview(self, cron: str, time_zone: str = "UTC", count: int = 5) -> Sequence[datetime]:
        """The next moments of an expression, in its zone."""
        return previewed(cron, time_zone, count, now_of(self._tx))

    def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Schedule]:
        """Schedules by name."""
        return _listing.read(self._tx, limit=limit, cursor=cursor)

    def _held(self, name: str) -> Row:
        """The row, which nobody else changes until this transaction ends."""
        return _found(_hold.one(self._tx, name_=name), name)


class Declared:
    """The schedules that code declares: collected while it is loaded, put when a worker starts.

    One that is declared no longer stays in the table until it is removed there.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, NewSchedule] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, new: NewSchedule) -> None:
        """Declare one; BadInput if its name is taken or its times cannot be read."""
        check_name(new.name, "the name of a schedule", chars_max=NAME_CHARS_MAX)
        if new.name in self._by_name:
            message = f"there is a schedule {new.name!r} already"
            raise BadInput(message, hint="give each schedule its own name")
        crons.parsed(new.cron, new.time_zone)
        _policy(new.misfire)
        self._by_name[new.name] = new

    def put(self, tx: Transaction, kinds: Kinds) -> None:
        """Put them all, in the order of their names."""
        # Two workers that start at once lock them in the same order, so neither waits for ever.
        for name in sorted(self._by_name):
            Schedules(tx, kinds).put_new(self._by_name[name])


class Runner:
    """Enqueues the jobs of the schedules whose moment has come.

    - A job of a type that is not known here is enqueued for those who know it.
    - A payload that no longer fits is enqueued too: it becomes a dead letter that says why.
    - A schedule that cannot be read here (a time zone that this machine has not) is told in
      `trouble` and stays due, for a worker that can; the others go on.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self.trouble: dict[str, str] = {}

    def run(self, tx: Transaction) -> int:
        """Enqueue what is due, at most `DUE_MAX` schedules; how many jobs."""
        ran: list[Row] = []
        passed: list[Row] = []
        count = 0
        for row in _due.run(tx, limit=DUE_MAX):
            name, next_ms = row[0], row[_WIDTH]
            try:
                content = _content(row)
                cron, now = content.read(), row[_WIDTH + 1]
                moments = crons.due(cron, next_ms, now, Misfire(content.misfire))
                following = cron.after(now)
                created = self._enqueue(tx, name, content, moments) if moments else []
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - told; a limit key is the user's own code
                self._tell(name, error)
                continue
            self.trouble.pop(name, None)
            count += len(created)
            if created:
                ran.append((name, following, created[-1]))
            else:
                passed.append((name, following))
        if ran:
            _ran.run(tx, ran)
        if passed:
            _passed.run(tx, passed)
        return count

    def _enqueue(
        self, tx: Transaction, name: str, content: _Content, moments: Sequence[int]
    ) -> list[str]:
        """The ids of the jobs that are new."""
        jobs = [_job(name, content, key=key_of(name, moment)) for moment in moments]
        try:
            answers = accept(tx, self._kinds, jobs)
        except NoLimitKey:
            # Unchecked it would run without its limit.
            raise
        except BadInput:
            # Nothing was written. The queue is still that of its kind, whose worker says no to it.
            answers = accept(tx, Kinds(), [self._unchecked(new) for new in jobs])
        return [enqueued.id for enqueued in answers if enqueued.created]

    def _unchecked(self, new: NewJob) -> NewJob:
        kind = self._kinds.get(str(new.type))
        if kind is None:
            return new
        return msgspec.structs.replace(
            new,
            queue=new.queue or kind.queue,
            priority=kind.priority if new.priority is None else new.priority,
            max_attempts=kind.max_attempts,
        )

    def _tell(self, name: str, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        if self.trouble.get(name) != told:
            _log.warning("schedule %s: %s", name, told)
        self.trouble[name] = told


def duty(kinds: Kinds) -> Duty:
    """What a worker does for schedules."""
    return Duty("schedules", EVERY_SECONDS, Runner(kinds).run)


def now_of(tx: Transaction) -> int:
    """The moment that schedules go by."""
    row = _now.one(tx)
    assert row is not None
    return int(row[0])


def key_of(name: str, moment_ms: int) -> str:
    """The key of the job of a schedule for one of its moments."""
    moment = datetime.fromtimestamp(moment_ms // 1000, UTC)
    return f"schedule:{name}:{moment:%Y-%m-%dT%H:%M:%SZ}"


def previewed(cron: str, time_zone: str, count: int, after_ms: int) -> Sequence[datetime]:
    """The moments of an expression after this one, in its zone."""
    bounded("the number of moments", count, 1, PREVIEW_MAX)
    parsed = crons.parsed(cron, time_zone)
    parsed.after(after_ms)
    return crons.preview(parsed, after_ms, count)


def _checked(kinds: Kinds, new: NewSchedule, bytes_max: int) -> _Content:
    check_type("job", new.job, str | Callable, "the name of a job or its function")
    name = kinds.name_of(new.job)
    payload = encode(new.payload, bytes_max=bytes_max)
    if not payload.startswith("{"):
        message = f"the arguments of {name} are given by name, not as {payload[:20]}"
        raise BadInput(message, hint='give them as a dict: {"order": 7}')
    kind = kinds.get(name)
    if kind is not None:
        kind.checked(payload)
    if new.queue is not None:
        check_name(new.queue, "a queue", chars_max=QUEUE_CHARS_MAX)
    if new.priority is not None:
        bounded("priority", new.priority, -PRIORITY_MAX, PRIORITY_MAX)
    return _Content(
        name,
        _canonical(payload),
        org_of(new.org),
        new.queue,
        new.cron,
        new.time_zone,
        _policy(new.misfire).value,
        new.priority,
    )


def _policy(given: str | Misfire) -> Misfire:
    try:
        return Misfire(given)
    except ValueError as error:
        names = ", ".join(policy.value for policy in Misfire)
        message = f"misfire is one of {names}, not {given!r}"
        raise BadInput(message) from error


def _job(
    name: str, content: _Content, *, key: str | None = None, requested_by: str | None = None
) -> NewJob:
    whose = f"schedule:{name}"
    return NewJob(
        type=content.type,
        payload=msgspec.json.decode(content.payload),
        key=key,
        org=content.org_id,
        queue=content.queue,
        priority=content.priority,
        requested_by=requested_by or whose,
        correlation_id=whose,
    )


def _content(row: Row) -> _Content:
    """The content of a row of `_columns`."""
    type_, payload, org_id, *rest = row[1:_WIDTH]
    return _Content(type_, _canonical(payload), str(org_id), *rest)


def _canonical(payload: str) -> str:
    # A database may keep a document in other words: with blanks, its keys in another order.
    return msgspec.json.encode(msgspec.json.decode(payload), order="sorted").decode()


def _schedule(row: Row) -> Schedule:
    content = _content(row)
    next_ms, last_ms, job_id, paused_ms, created_ms = row[_WIDTH:]
    created_at = _moment(created_ms)
    assert created_at is not None
    return Schedule(
        name=row[0],
        type=content.type,
        payload=msgspec.json.decode(content.payload),
        org_id=content.org_id,
        queue=content.queue,
        cron=content.cron,
        time_zone=content.time_zone,
        misfire=Misfire(content.misfire),
        priority=content.priority,
        next_at=_moment(next_ms) if paused_ms is None else None,
        last_at=_moment(last_ms),
        last_job_id=None if job_id is None else str(job_id),
        paused_at=_moment(paused_ms),
        created_at=created_at,
    )


_listing = Keyset("schedules.list", select(*_columns), order=(job_schedule.c.name,), make=_schedule)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _found(row: Row | None, name: str) -> Row:
    if row is None:
        raise _missing(name)
    return row


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}", hint="`ledgerstone schedules` lists them")

"""Schedules: jobs that are enqueued at the moments of a cron expression, once per cluster.

A schedule is a row with its next moment. One worker at a time (see `engine.duties`) selects the
rows that are due, enqueues their jobs and computes their next moments, in one transaction:

    next_at ≤ now ──▶ job with the key schedule:NAME:MOMENT ──▶ next_at = first moment after now

The key makes each job once: a second try of the same moment, after a crash or because the clock was
set back, finds the existing job. A clock that was far ahead leaves schedules that wait for a moment
far away: pause and resume such a schedule to compute its next moment again.

The worker that holds the duty may belong to another application, which does not know the type of
the job, and so neither its queue nor its limit. A ledger that knows the type therefore keeps these
terms in the schedule when it puts it: the arguments are fixed, and with them the limit key. The
schedule does not wait for workers that know the type: if none runs at its moment, another worker
enqueues the job, in the queue where they will find it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from ledgerstone.engine.duties import Duty
from ledgerstone.errors import BadInput, NotFound, StoreError
from ledgerstone.jobs.accepting import (
    NO_ORG,
    Enqueued,
    NewJob,
    accept,
    bounded,
    check_type,
    org_of,
)
from ledgerstone.jobs.handlers.kinds import PRIORITY_MAX, Kinds, NoLimitKey, Terms
from ledgerstone.jobs.schedules import cron as crons
from ledgerstone.jobs.schedules import rows
from ledgerstone.jobs.schedules.cron import Misfire
from ledgerstone.jobs.schedules.rows import (
    NAME_CHARS_MAX,
    WIDTH,
    Content,
    Schedule,
    content_of,
    schedule_of,
)
from ledgerstone.jobs.tables import QUEUE_CHARS_MAX
from ledgerstone.store.sql.json_body import canonical, encode
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.pages import Page
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

PREVIEW_MAX = 1000
EVERY_SECONDS = 1.0
DUE_MAX = 100
"""How many schedules one turn of the duty handles; the next turn handles the others."""
PAGES_MAX = 5
"""How many pages of DUE_MAX one turn reads, if they are full of schedules that cannot be read."""

_FIRST = (-1, "")
"""The cursor before the first schedule, in the order of moments and names."""
_log = logging.getLogger("ledgerstone.jobs")


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be put; the fields are the parameters of `Schedules.put`."""

    name: str
    job: str | Callable[..., object]
    cron: str
    payload: Mapping[str, Any] = {}
    time_zone: str = "UTC"
    misfire: str | Misfire = Misfire.ONCE
    org: str | UUID = NO_ORG
    queue: str | None = None
    priority: int | None = None


class Schedules:
    """The schedules of a ledger, inside one transaction: `tx.schedules`."""

    def __init__(self, tx: Transaction, kinds: Kinds) -> None:
        self._tx = tx
        self._kinds = kinds

    def put(
        self,
        name: str,
        job: str | Callable[..., object],
        cron: str,
        *,
        payload: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
        misfire: str | Misfire = Misfire.ONCE,
        org: str | UUID = NO_ORG,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Schedule:
        """Add a schedule, or replace the content of the schedule with this name.

        - `name`: names the schedule. The same content changes nothing, and a paused schedule stays
          paused.
        - `job`: the name of a type, or the function that `@ledger.job` has made a job.
        - `cron`: five fields: minute, hour, day, month, weekday. Other times count from now; with
          the same times a moment that is due stays due.
        - `payload`: the arguments of each job, storable as JSON.
        - `time_zone`: the IANA name of the zone of `cron`.
        - `misfire`: what becomes of moments that no worker saw: "skip", "once" (one job for all of
          them) or "all".
        - `org`: the organisation of the jobs.
        - `queue`, `priority`: in place of those of the type. Name the queue if this ledger does not
          know the type and none that knows it has put the schedule before.
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
        """As `put`, with the parameters as one value."""
        check_name(new.name, "the name of a schedule", chars_max=NAME_CHARS_MAX)
        content = _checked(self._kinds, new, self._tx.database.settings.body_bytes_max)
        next_ms = content.read().after(now_of(self._tx))
        added = (new.name, *msgspec.structs.astuple(content), next_ms)
        if rows.add.run(self._tx, [added]):
            row = self._held(new.name)
            kept = content_of(row)
            content = _remembering(kept, content)
            if kept != content:
                next_ms = row[WIDTH] if kept.same_times(content) else next_ms
                values = {f"{k}_": v for k, v in msgspec.structs.asdict(content).items()}
                rows.replace.run(self._tx, name_=new.name, next_=next_ms, **values)
        return self.get(new.name)

    def get(self, name: str) -> Schedule:
        """The schedule with this name; raises NotFound."""
        return schedule_of(_found(rows.get.one(self._tx, name_=name), name))

    def remove(self, name: str) -> None:
        """Remove the schedule; jobs that it has enqueued stay."""
        if not rows.remove.run(self._tx, name_=name):
            raise _missing(name)

    def pause(self, name: str) -> None:
        """Enqueue nothing for this schedule until `resume`."""
        self._held(name)
        rows.pause.run(self._tx, name_=name)

    def resume(self, name: str) -> None:
        """Go on with the first moment after now; missed moments stay missed."""
        schedule = schedule_of(self._held(name))
        if schedule.paused_at is not None:
            cron = crons.parsed(schedule.cron, schedule.time_zone)
            rows.resume.run(self._tx, name_=name, next_=cron.after(now_of(self._tx)))

    def trigger(self, name: str, *, by: str | None = None) -> Enqueued:
        """Enqueue the job now, also if the schedule is paused; its moments stay as they are.

        `by` is kept with the job as `requested_by`.
        """
        content = content_of(self._held(name))
        kinds = _kinds_for(content, self._kinds)
        (enqueued,) = accept(self._tx, kinds, [_job(name, content, requested_by=by)])
        rows.triggered.run(self._tx, name_=name, job_id_=enqueued.id)
        return enqueued

    def preview(self, cron: str, time_zone: str = "UTC", count: int = 5) -> Sequence[datetime]:
        """The next `count` moments of a cron expression, in its zone."""
        return previewed(cron, time_zone, count, now_of(self._tx))

    def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Schedule]:
        """One page of the schedules, by name; `cursor` is `next` of the page before."""
        return rows.listing.read(self._tx, limit=limit, cursor=cursor)

    def _held(self, name: str) -> Row:
        """The row, locked until this transaction ends."""
        return _found(rows.hold.one(self._tx, name_=name), name)


class Declared:
    """The schedules that code declares: collected while it is loaded, put when a worker starts.

    One that is declared no longer stays in the table until it is removed there.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, NewSchedule] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, new: NewSchedule) -> None:
        """Declare a schedule; BadInput if its name is taken or its times cannot be read."""
        check_name(new.name, "the name of a schedule", chars_max=NAME_CHARS_MAX)
        if new.name in self._by_name:
            message = f"there is a schedule {new.name!r} already"
            raise BadInput(message, hint="give each schedule its own name")
        crons.parsed(new.cron, new.time_zone)
        _policy(new.misfire)
        self._by_name[new.name] = new

    def put(self, tx: Transaction, kinds: Kinds) -> None:
        """Put all of them, in the order of their names."""
        # Two workers that start at once lock them in the same order, so neither waits for ever.
        for name in sorted(self._by_name):
            Schedules(tx, kinds).put_new(self._by_name[name])


class ScheduleRunner:
    """Enqueues the jobs of the schedules whose moment has come.

    - A job of a type that is not known here is enqueued for those who know it, on the terms that
      were kept when it was put.
    - A payload that no longer fits is enqueued too: it becomes a dead letter that says why.
    - A schedule that cannot be read here (a time zone that this machine has not) is told in
      `trouble` and stays due, for a worker that can; the others go on, however many those are.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._after = _FIRST
        self.trouble: dict[str, str] = {}

    def run(self, tx: Transaction) -> int:
        """Enqueue what is due; how many jobs.

        A turn ends when it has moved on `DUE_MAX` schedules, in pages of as many. One that had to
        pass over pages of trouble goes on behind them the next time, and then from the start.
        """
        count = moved = 0
        for _ in range(PAGES_MAX):
            after_ms, after_name = self._after
            page = rows.due.run(tx, limit=DUE_MAX, after_ms_=after_ms, after_name_=after_name)
            fired = [one for one in (self._fire(tx, row) for row in page) if one is not None]
            _move_on(tx, fired)
            count += sum(len(one.created) for one in fired)
            moved += len(fired)
            if len(page) < DUE_MAX or moved >= DUE_MAX:
                self._after = _FIRST
                break
            self._after = (page[-1][WIDTH], page[-1][0])
        return count

    def _fire(self, tx: Transaction, row: Row) -> _DueSchedule | None:
        """Enqueue what is due of one; None if that cannot be done here."""
        name, next_ms, now = row[0], row[WIDTH], row[WIDTH + 1]
        try:
            content = content_of(row)
            cron = content.read()
            moments = crons.due(cron, next_ms, now, Misfire(content.misfire))
            following = cron.after(now)
            created = self._enqueue(tx, name, content, moments) if moments else []
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - told; a limit key is the user's own code
            self._tell(name, error)
            return None
        self.trouble.pop(name, None)
        return _DueSchedule(name, following, created)

    def _enqueue(
        self, tx: Transaction, name: str, content: Content, moments: Sequence[int]
    ) -> list[str]:
        """The ids of the jobs that are new."""
        jobs = [_job(name, content, key=key_of(name, moment)) for moment in moments]
        try:
            answers = accept(tx, _kinds_for(content, self._kinds), jobs)
        except NoLimitKey:
            # Unchecked it would run without its limit.
            raise
        except BadInput:
            kind = self._kinds.get(content.type)
            if kind is None:
                raise
            # Nothing was written. The queue is still that of its kind, whose worker says no to it.
            answers = accept(tx, kind.terms().kinds(kind.name), jobs)
        return [enqueued.id for enqueued in answers if enqueued.created]

    def _tell(self, name: str, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        if self.trouble.get(name) != told:
            _log.warning("schedule %s: %s", name, told)
        self.trouble[name] = told


class _DueSchedule(msgspec.Struct, frozen=True):
    """A schedule whose moment has come: its next one, and the jobs that are new."""

    name: str
    following: int
    created: list[str]


def _move_on(tx: Transaction, fired: Sequence[_DueSchedule]) -> None:
    ran = [(one.name, one.following, one.created[-1]) for one in fired if one.created]
    passed = [(one.name, one.following) for one in fired if not one.created]
    if ran:
        rows.ran.apply(tx, ran)
    if passed:
        rows.passed.apply(tx, passed)


def duty(kinds: Kinds) -> Duty:
    """The duty that enqueues the jobs of due schedules."""
    return Duty("schedules", EVERY_SECONDS, ScheduleRunner(kinds).run)


def now_of(tx: Transaction) -> int:
    """The moment that schedules go by."""
    row = rows.now.one(tx)
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


def _checked(kinds: Kinds, new: NewSchedule, bytes_max: int) -> Content:
    check_type("job", new.job, str | Callable, "the name of a job or its function")
    name = kinds.name_of(new.job)
    payload = encode(new.payload, bytes_max=bytes_max)
    if not payload.startswith("{"):
        message = f"the arguments of {name} are given by name, not as {payload[:20]}"
        raise BadInput(message, hint='give them as a dict: {"order": 7}')
    kind = kinds.get(name)
    terms = kind.terms(kind.checked(payload)) if kind is not None else None
    if new.queue is not None:
        check_name(new.queue, "a queue", chars_max=QUEUE_CHARS_MAX)
    if new.priority is not None:
        bounded("priority", new.priority, -PRIORITY_MAX, PRIORITY_MAX)
    return Content(
        name,
        canonical(payload),
        org_of(new.org),
        new.queue,
        new.cron,
        new.time_zone,
        _policy(new.misfire).value,
        new.priority,
        None if terms is None else canonical(msgspec.json.encode(terms).decode()),
    )


def _remembering(kept: Content, new: Content) -> Content:
    """The new content, on the terms of the old where they still hold and no others are known."""
    same = (new.type, new.payload) == (kept.type, kept.payload)
    return msgspec.structs.replace(new, terms=kept.terms) if same and not new.terms else new


def _kinds_for(content: Content, kinds: Kinds) -> Kinds:
    """The kinds by which its job is accepted: those known here, or what was kept of its own."""
    if content.terms is None or kinds.get(content.type) is not None:
        return kinds
    return msgspec.json.decode(content.terms, type=Terms).kinds(content.type)


def _policy(given: str | Misfire) -> Misfire:
    try:
        return Misfire(given)
    except ValueError as error:
        names = ", ".join(policy.value for policy in Misfire)
        message = f"misfire is one of {names}, not {given!r}"
        raise BadInput(message) from error


def _job(
    name: str, content: Content, *, key: str | None = None, requested_by: str | None = None
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


def _found(row: Row | None, name: str) -> Row:
    if row is None:
        raise _missing(name)
    return row


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}", hint="`ledgerstone schedules` lists them")

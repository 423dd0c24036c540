"""Adding jobs: each is checked, and written with its first event or found by its key."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from sqlalchemy import BigInteger, Text, bindparam, case, column, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.errors import BadInput, Duplicate
from ledgerstone.ids import new_id
from ledgerstone.items.keys import KeyHolder, KeyRequest, Keys
from ledgerstone.jobs import history
from ledgerstone.jobs.handlers.kinds import ATTEMPTS_LIMIT, PRIORITY_MAX, Kind, Kinds
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import (
    CORRELATION_CHARS_MAX,
    DEFAULT_QUEUE,
    KEY_CHARS_MAX,
    MAX_ATTEMPTS,
    POLICY_ENUM,
    QUEUE_CHARS_MAX,
    TRACE_CHARS_MAX,
    WHO_CHARS_MAX,
    channel_of,
    job,
    job_key,
)
from ledgerstone.store.schema.columns import text_type
from ledgerstone.store.sql.batch import AppendEach, Incoming, WithRows
from ledgerstone.store.sql.expressions import as_choice, as_json, json_text, now, now_ms
from ledgerstone.store.sql.json_body import encode
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.clock import Clock
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

NO_ORG = "00000000-0000-0000-0000-000000000000"
"""The organisation of jobs that were given none."""
_NOTHING = "{}"
DELAY_SECONDS_MAX = 10 * 366 * 86_400
ORGS_SEEN_MAX = 1024
SHAPES_MAX = 1024
"""How many shapes are cached: most programs enqueue jobs of a few shapes."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be added by `enqueue_many`; the fields are the parameters of `Jobs.enqueue`."""

    type: str | Callable[..., Any]
    payload: Mapping[str, Any] = {}
    key: str | None = None
    org: str | UUID = NO_ORG
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    run_at: datetime | None = None
    delay_seconds: float = 0.0
    requested_by: str | None = None
    correlation_id: str | None = None
    trace_context: str | None = None


class Accepted(Enum):
    """The result of `enqueue` for one job."""

    CREATED = "created"
    EXISTING = "existing"
    """The same key with the same content: the answer names the existing job."""
    CONFLICT = "conflict"
    """The same key with other content: nothing was added."""


class Enqueued(msgspec.Struct, frozen=True):
    """The answer for one job: its id, or that of the job that has its key."""

    id: str
    accepted: Accepted

    @property
    def created(self) -> bool:
        return self.accepted is Accepted.CREATED


class _Shape(msgspec.Struct, frozen=True):
    """The columns of a job that its key and arguments do not decide, shared by many jobs."""

    name: str
    kind: Kind | None
    org: str
    queue: str
    row: Row


class _Checked(msgspec.Struct, frozen=True):
    """A job that is checked and ready to be written."""

    shape: _Shape
    key: str | None
    payload: str
    limit_key: str | None


_FIELDS: tuple[tuple[str, Any, str], ...] = (
    ("type", str | Callable, "the name of a job or its function"),
    ("org", str | UUID, "a UUID"),
    *((name, str, "text") for name in ("queue", "requested_by", "correlation_id", "trace_context")),
    ("run_at", datetime, "a moment with a time zone"),
    ("delay_seconds", int | float, "a number of seconds"),
)
BY_HAND = ""
"""The hash of a key whose job another program has inserted into the table."""


def _added(row: Incoming) -> ColumnElement[str]:
    """The job with this key that another program has inserted."""
    mine = (job.c.org_id == row.org_id, job.c.idempotency_key == row.idempotency_key)
    return select(job.c.id).where(*mine).scalar_subquery()


KEYS = Keys(
    "jobs",
    scope=(job_key.c.org_id,),
    key=job_key.c.idempotency_key,
    item=job_key.c.job_id,
    content=job_key.c.content_hash,
    values=lambda _: {"used_at_ms": now_ms()},
    looks_up=lambda row: {
        "job_id": func.coalesce(_added(row), row.job_id),
        "content_hash": case((_added(row).is_not(None), BY_HAND), else_=row.content_hash),
    },
)
_insert = AppendEach(
    "jobs.enqueue",
    job,
    incoming=(
        job.c.id,
        job.c.idempotency_key,
        column("payload", text_type()),
        job.c.limit_key,
        job.c.org_id,
        job.c.type,
        job.c.max_attempts,
        column("backoff_policy", Text()),
        job.c.priority,
        job.c.requested_by,
        job.c.queue,
        # Milliseconds from now, or since 1970 where `relative` is 0.
        job.c.run_at_ms,
        column("relative", BigInteger()),
        job.c.limit_max,
        job.c.correlation_id,
        job.c.trace_context,
    ),
    values=lambda row: {
        "backoff_policy": as_choice(POLICY_ENUM, row.backoff_policy),
        "payload": as_json(row.payload),
        "run_at_ms": row.run_at_ms + row.relative * now_ms(),
        "gate": case(
            (row.run_at_ms + row.relative * now_ms() > now_ms(), Gate.SCHEDULED.value),
            else_=Gate.OPEN.value,
        ),
        "created_at": now(),
        "updated_at": now(),
    },
    journal=history.moved,
)
_org_id = bindparam("org_id", type_=job_key.c.org_id.type)
_key = bindparam("key", type_=job_key.c.idempotency_key.type)
_with_key = Statement(
    "jobs.with_key",
    select(job.c.id)
    .where(job.c.org_id == _org_id, job.c.idempotency_key == _key)
    .with_for_update(),
)
"""A unique constraint reports it, also if the transaction's snapshot is older."""
_give_key = Statement(
    "jobs.give_key",
    update(job_key)
    .where(
        job_key.c.org_id == _org_id,
        job_key.c.idempotency_key == _key,
        job_key.c.job_id == bindparam("mine", type_=job_key.c.job_id.type),
    )
    .values(job_id=bindparam("theirs", type_=job_key.c.job_id.type), content_hash=BY_HAND),
)
_there = WithRows(
    "jobs.there",
    incoming=(job.c.id,),
    build=lambda row: select(job.c.id).where(job.c.id.in_(select(row.id))),
)
_content = Statement(
    "jobs.content",
    select(job.c.type, json_text(job.c.payload).label("payload")).where(
        job.c.id == bindparam("id_", type_=job.c.id.type)
    ),
)


def accept(tx: Transaction, kinds: Kinds, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Accept each, or say by which job its key is taken; what is malformed refuses all."""
    tx.check_usable()
    desk = _JobChecker(kinds, tx.database)
    checked = [desk.checked(new) for new in jobs]
    ids = [new_id() for _ in checked]
    taken = _taken(tx, ids, checked)
    fresh = [i for i in range(len(checked)) if i not in taken] if taken else range(len(checked))
    if fresh:
        try:
            _write(tx, [_row(ids[i], checked[i]) for i in fresh])
        except Duplicate:
            # Not every database tells at once that a key is that of a job which somebody added.
            added = _added_by_hand(tx, ids, checked, fresh)
            if not added:
                raise
            # Some of this call may have been told of a twin that was not to be.
            gone = {ids[i] for i in added}
            twins = [i for i, enqueued in taken.items() if enqueued.id in gone]
            taken |= added | {i: _existing(tx, checked[i]) for i in twins}
            fresh = [i for i in fresh if i not in taken]
        for queue in {checked[i].shape.queue for i in fresh}:
            tx.wake(channel_of(queue))
    return [
        taken[i] if i in taken else Enqueued(ids[i], Accepted.CREATED) for i in range(len(checked))
    ]


def _taken(tx: Transaction, ids: Sequence[str], checked: Sequence[_Checked]) -> dict[int, Enqueued]:
    """Those whose key is taken, by their position."""
    keyed = [i for i, new in enumerate(checked) if new.key is not None]
    holders = KEYS.take(tx, [_wanted(ids[i], checked[i]) for i in keyed]) if keyed else {}
    return {keyed[n]: _held(tx, checked[keyed[n]], holder) for n, holder in holders.items()}


def _wanted(job_id: str, new: _Checked) -> KeyRequest:
    return KeyRequest(job_id, (new.shape.org,), new.key or "", _content_hash(new))


def _added_by_hand(
    tx: Transaction, ids: Sequence[str], checked: Sequence[_Checked], fresh: Sequence[int]
) -> dict[int, Enqueued]:
    """Those whose key is that of a job which somebody added; the others are written."""
    keyed = [i for i in fresh if checked[i].key is not None]
    for i in keyed:
        whose = {"org_id": checked[i].shape.org, "key": checked[i].key}
        row = _with_key.one(tx, **whose)
        if row is not None and str(row[0]) != ids[i]:
            _give_key.run(tx, **whose, mine=ids[i], theirs=str(row[0]))
    found = {i: _existing(tx, checked[i]) for i in keyed}
    taken = {i: enqueued for i, enqueued in found.items() if enqueued.id != ids[i]}
    if not taken:
        return taken
    written = {str(row[0]) for row in _there.rows(tx, [(ids[i],) for i in fresh])}
    left = [i for i in fresh if i not in taken and ids[i] not in written]
    _write(tx, [_row(ids[i], checked[i]) for i in left])
    return taken


def _existing(tx: Transaction, new: _Checked) -> Enqueued:
    return _held(tx, new, KEYS.holder(tx, _wanted("", new)))


def _held(tx: Transaction, new: _Checked, holder: KeyHolder) -> Enqueued:
    """The answer if another job has the key."""
    if holder.content_hash == BY_HAND:
        same = _is_like(tx, holder.item, new)
    else:
        same = holder.content_hash == _content_hash(new)
    return Enqueued(holder.item, Accepted.EXISTING if same else Accepted.CONFLICT)


def _is_like(tx: Transaction, job_id: Any, new: _Checked) -> bool:
    """Whether the job that somebody added has this content.

    The content of a job that is gone is unknown. It counts as other content: the caller is told,
    while another job that was taken for the same would be lost without a word.
    """
    row = _content.one(tx, id_=str(job_id))
    if row is None:
        return False
    payload = msgspec.json.decode(row[1]) if row[1] is not None else {}
    return bool(row[0] == new.shape.name and payload == msgspec.json.decode(new.payload))


def _write(tx: Transaction, rows: Sequence[Row]) -> None:
    """The jobs, and the first event of each."""
    _insert.run(tx, rows, **history.between(None, Status.QUEUED))


def _row(job_id: str, new: _Checked) -> Row:
    return (job_id, new.key, new.payload, new.limit_key, *new.shape.row)


class _JobChecker:
    """Where the jobs of one call are checked; what jobs have in common is checked once."""

    def __init__(self, kinds: Kinds, database: Database[Any]) -> None:
        self._kinds = kinds
        self._bytes_max = database.settings.body_bytes_max
        self._clock = database.clock
        # Of this call alone: those with a moment or a trace of their own.
        self._shapes: dict[Row, _Shape] = {}
        # The last one that was checked: many of a call are alike.
        self._known: tuple[_Shape | None, str, str | None] = (None, "", None)

    def checked(self, new: NewJob) -> _Checked:
        """The job as it will be written; BadInput says what is wrong with it."""
        shape = self._shape(new)
        payload = _NOTHING if new.payload == {} else encode(new.payload, bytes_max=self._bytes_max)
        if not payload.startswith("{"):
            message = f"the arguments of {shape.name} are given by name, not as {payload[:20]}"
            raise BadInput(message, hint='give them as a dict: {"order": 7}')
        if new.key is not None:
            check_name(new.key, "a key", chars_max=KEY_CHARS_MAX)
        if shape is not self._known[0] or payload != self._known[1]:
            limit_key = shape.kind.checked(payload) if shape.kind is not None else None
            self._known = (shape, payload, limit_key)
        return _Checked(shape, new.key, payload, self._known[2])

    def _shape(self, new: NewJob) -> _Shape:
        """The checked shape of a job, made once for all that have the same."""
        given = (
            *(new.type, new.org, new.queue, new.priority, new.max_attempts, new.run_at),
            *(new.delay_seconds, new.requested_by, new.correlation_id, new.trace_context),
            # 5 and 5.0 are the same key, and not both are taken. Nor does a moment compare
            # otherwise for coming second, in the hour that clocks go through twice.
            *(type(new.priority), type(new.max_attempts), getattr(new.run_at, "fold", 0)),
        )
        check_type("key", new.key, str, "text")
        own = new.run_at or new.correlation_id or new.trace_context
        shapes = self._kinds.shapes if own is None else self._shapes
        try:
            known = shapes.get(given)
        except TypeError:
            # An unhashable value has no accepted type: the checks name it.
            known = None
        if known is not None and known.kind is self._kinds.get(known.name):
            return known
        for field, kind, words in _FIELDS:
            value = getattr(new, field)
            if value is not None:
                check_type(field, value, kind, words)
        if len(shapes) >= SHAPES_MAX:
            shapes.clear()
        shapes[given] = made = self._made(new)
        return made

    def _made(self, new: NewJob) -> _Shape:
        name = self._kinds.name_of(new.type)
        kind = self._kinds.get(name)
        org = org_of(new.org)
        by_kind = kind.queue if kind is not None else DEFAULT_QUEUE
        queue = new.queue if new.queue is not None else by_kind
        _check_texts(new, queue)
        run_at_ms, relative = _due(new, self._clock)
        attempts = _given(new, kind, "max_attempts", MAX_ATTEMPTS)
        row = (
            org,
            name,
            bounded("max_attempts", attempts, 1, ATTEMPTS_LIMIT),
            kind.backoff.policy.value if kind is not None else "exp",
            bounded("priority", _given(new, kind, "priority", 0), -PRIORITY_MAX, PRIORITY_MAX),
            new.requested_by,
            queue,
            run_at_ms,
            relative,
            kind.limit.most if kind is not None and kind.limit is not None else None,
            new.correlation_id,
            new.trace_context,
            _first_words(new),
        )
        return _Shape(name, kind, org, queue, row)


def check_type(field: str, value: object, kind: Any, words: str) -> None:
    """Python lets anything be given; what is of another type is refused by its name."""
    if value is not None and not isinstance(value, kind):
        message = f"{field} is {words}, not {value!r}"
        raise BadInput(message)


def org_of(given: str | UUID) -> str:
    """The id of an organisation, as it is kept."""
    check_type("an organisation", given, str | UUID, "a UUID")
    return _org(given)


@lru_cache(maxsize=ORGS_SEEN_MAX)
def _org(given: str | UUID) -> str:
    try:
        return str(UUID(str(given)))
    except ValueError as error:
        message = f"an organisation is named by a UUID, not by {given!r}"
        raise BadInput(message) from error


def _first_words(new: NewJob) -> str | None:
    if new.requested_by is None and new.correlation_id is None:
        return None
    return history.detail(by=new.requested_by, correlation_id=new.correlation_id)


def _check_texts(new: NewJob, queue: str) -> None:
    check_name(queue, "a queue", chars_max=QUEUE_CHARS_MAX)
    for text, what, chars_max in (
        (new.requested_by, "requested_by", WHO_CHARS_MAX),
        (new.correlation_id, "a correlation id", CORRELATION_CHARS_MAX),
        (new.trace_context, "a trace context", TRACE_CHARS_MAX),
    ):
        if text is not None:
            check_name(text, what, chars_max=chars_max)


def _given(new: NewJob, kind: Kind | None, name: str, otherwise: int) -> Any:
    """The value of the call, otherwise that of the type, otherwise the default."""
    given = getattr(new, name)
    return given if given is not None else getattr(kind, name, otherwise)


def bounded(name: str, value: Any, least: int, most: int) -> int:
    """The whole number that was given; BadInput if it is none, or beyond these."""
    if type(value) is not int or not least <= value <= most:
        message = f"{name} is {least} to {most}, not {value!r}"
        raise BadInput(message)
    return value


def _due(new: NewJob, clock: Clock) -> tuple[int, int]:
    """When it is due: milliseconds, and 1 if they count from now by the database's clock."""
    delay: float | None = new.delay_seconds
    if delay is None or not 0 <= delay <= DELAY_SECONDS_MAX:
        message = f"delay_seconds is 0 to {DELAY_SECONDS_MAX}, not {delay}"
        raise BadInput(message)
    if new.run_at is None:
        return round(new.delay_seconds * 1000), 1
    if new.delay_seconds:
        message = "run_at and delay_seconds are two ways to say the same"
        raise BadInput(message, hint="give one of them")
    if new.run_at.tzinfo is None:
        message = f"run_at has no time zone: {new.run_at}"
        raise BadInput(message, hint="use datetime.now(UTC) or another zone")
    ms = round(new.run_at.timestamp() * 1000)
    now = clock.now_ms()
    if ms > (now if now is not None else time.time() * 1000) + DELAY_SECONDS_MAX * 1000:
        message = f"run_at is too far away: {new.run_at}"
        raise BadInput(message)
    # A moment in the past is due now; how far in the past makes no difference.
    return max(ms, 0), 0


def _content_hash(new: _Checked) -> str:
    return hashlib.sha256(f"{new.shape.name}\n{new.payload}".encode()).hexdigest()

"""Failed messages: messages that a consumer or a destination has given up.

An operator lists, retries or removes them. Each action is recorded.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
)

from ledgerstone.engine.attempt_log import FailedAttempt
from ledgerstone.engine.source import Failure
from ledgerstone.errors import BadInput, NotAllowedNow, NotFound
from ledgerstone.messaging.failed.rows import (
    Cause,
    FailedMessage,
    Raw,
    cause_of,
    made,
    row_of,
    storable,
)
from ledgerstone.messaging.inbox import crashes, inbox
from ledgerstone.messaging.message import PARTITION_CHARS_MAX, Message, check_partition
from ledgerstone.messaging.outbox import publishing
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.states import RecordKind
from ledgerstone.messaging.symfony.time_zone import kept, moment_in
from ledgerstone.messaging.tables import (
    OWN_FAILED_QUEUE,
    QUEUE_CHARS_MAX,
    SYMFONY_DELETED,
    SYMFONY_FAILED_QUEUE,
    failed_index,
)
from ledgerstone.store.sql.batch import AppendEach
from ledgerstone.store.sql.expressions import by_index, now_ms
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

RETRY_MAX = 1000
"""The maximum number of messages that one call retries."""
REMOVE_MAX = 1000
"""The maximum number of messages that one call removes."""
COUNTED_MAX = 1000
"""The newest failed messages that are grouped by default: one page."""
LAST_MS = 253_402_300_799_000
"""The last second that every database can store."""
UNKNOWN = ""
"""The consumer of a message for which no consumer was found."""

_log = logging.getLogger("ledgerstone.messaging")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Failed messages with the same cause."""

    consumer: str | None
    origin: str | None
    name: str
    code: str
    count: int
    oldest: datetime
    newest: datetime
    reason: str
    """The reason of the newest message of the group."""


class Groups(msgspec.Struct, frozen=True):
    """Failed messages by their cause, the largest group first.

    - `counted_all`: False if there may be more than were counted, which are older.
    """

    groups: list[Group]
    counted_all: bool


class BulkResult(msgspec.Struct, frozen=True):
    """The result of a bulk call, or of its dry run.

    - `left`: the ids of messages that cannot be retried.
    - `next`: not None if there may be more; give it as the `cursor` of the next call.
    """

    ids: list[int]
    left: list[int]
    next: str | None
    dry_run: bool


class Filters(TypedDict, total=False):
    """Selects failed messages. A filter that is missing or None selects all.

    - `consumer`, `name`, `code`, `origin`: exact values.
    - `since`: messages that failed at this time or later; it needs a time zone.
    """

    consumer: str | None
    name: str | None
    code: str | None
    origin: str | None
    since: datetime | None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The checked filters."""

    consumer: str | None = None
    name: str | None = None
    code: str | None = None
    origin: str | None = None
    since: datetime | None = None

    def fits(self, found: Cause) -> bool:
        return (
            self.consumer in {None, found.consumer}
            and self.name in {None, found.name}
            and self.code in {None, found.code}
            and self.origin in {None, found.origin}
        )

    @property
    def is_of_all(self) -> bool:
        """Whether an index alone can answer it."""
        return (self.consumer, self.name, self.code, self.origin) == (None, None, None, None)

    @property
    def since_ms(self) -> int:
        if self.since is None:
            return 0
        if self.since.tzinfo is None:
            raise BadInput(f"since must be a datetime with a time zone, not {self.since}")
        return min(max(0, round(self.since.timestamp() * 1000)), LAST_MS)


class _Statements:
    """The statements of a table of failed messages."""

    def __init__(self, failed: Table) -> None:
        # Not the type of the column: an unsigned type would reject a negative number.
        one = bindparam("id_", type_=BigInteger())
        deleted: ColumnElement[Any] = literal_column(f"'{SYMFONY_DELETED}'")
        queues = [failed.c.queue_name == name for name in (OWN_FAILED_QUEUE, SYMFONY_FAILED_QUEUE)]
        there = or_(failed.c.delivered_at.is_(None), failed.c.delivered_at != deleted)
        ours = and_(or_(*queues), there)
        since = kept(failed, bindparam("since_ms", type_=BigInteger()))
        about = select(failed.c.id, failed.c.headers, failed.c.created_at)
        self.add = AppendEach(
            "failed.put",
            failed,
            incoming=(failed.c.body, failed.c.headers),
            values=lambda _: {
                "queue_name": OWN_FAILED_QUEUE,
                "created_at": kept(failed, now_ms()),
                "available_at": kept(failed, now_ms()),
            },
        )
        self.get = Statement(
            "failed.get",
            select(failed.c.id, failed.c.headers, failed.c.created_at, failed.c.body).where(
                failed.c.id == one, ours
            ),
        )
        self.remove = Statement("failed.remove", delete(failed).where(failed.c.id == one, ours))
        listed: Select[Any] = by_index(
            about.where(there, failed.c.created_at >= since),
            failed,
            failed_index(failed),
        )
        # The order of the index by queue.
        order = (failed.c.created_at, failed.c.id)
        self.newest = Keyset(
            "failed.find",
            listed,
            order=order,
            descending=True,
            split=queues,
            crowded=True,
            make=_Listed.of,
        )
        self.oldest = Keyset(
            "failed.choose", listed, order=order, split=queues, crowded=True, make=_Listed.of
        )
        self.last = Statement("failed.last", select(func.max(failed.c.id)))
        some = select(failed.c.id).where(ours).limit(bindparam("most", type_=BigInteger()))
        self.count = Statement(
            "failed.count", select(func.count()).select_from(some.subquery("some_failed"))
        )


class _Listed(msgspec.Struct, frozen=True):
    """A row of the table, and its cause."""

    row: Row
    cause: Cause

    @classmethod
    def of(cls, row: Row) -> _Listed:
        return cls(row, cause_of(row[1]))


_statements = cache(_Statements)


def put(
    tx: Transaction,
    registry: MessagingRegistry,
    item: Message | Raw,
    *,
    consumer: str | None,
    failure: Failure,
    attempts: int,
    origin: str,
    what: RecordKind = RecordKind.FAILED,
) -> None:
    """Inserts a message into the failed table and records the event.

    - `item`: the message, or the raw delivery if it could not be parsed.
    - `consumer`: the consumer that failed; None if the destination `origin` gave the message up;
      empty if no consumer was found.
    - `failure`: the reason.
    - `attempts`: how many times it was tried.
    - `origin`: the destination or subscription that the message came from.
    - `what`: the kind of the recorded event.
    """
    registry.setup.ensure(tx, registry.shared.failed)
    if consumer and isinstance(item, Message):
        inbox.forget_unfinished(tx, registry, consumer, item)
        crashes.forget(tx, consumer, item)
    if consumer is None and isinstance(item, Message) and item.consumer is not None:
        # It was a retry for one consumer: the next retry is for this consumer too.
        consumer = item.consumer
        before = partition_in(item.partition, consumer)
        item = msgspec.structs.replace(item, partition=before, place=None)
    row = row_of(item, consumer=consumer, failure=failure, attempts=attempts, origin=origin)
    _statements(registry.shared.failed).add.run(tx, [row])
    who = f"{consumer}: " if consumer else ""
    known = item if isinstance(item, Message) else None
    record(tx, [_entry(what, origin, known, code=failure.code, reason=who + failure.message)])
    spelled = f"message {known.name} {known.id}" if known is not None else "a message"
    given_up = FailedAttempt(
        what=f"{spelled} for {consumer or origin}",
        attempt=attempts,
        failure=failure,
        next_seconds=None,
        end="it is in the failed table",
        ids={"message_name": known.name, "message_id": known.id} if known is not None else {},
    )
    tx.after_commit(partial(given_up.write, _log))


def lane_of(consumer: str, partition: str) -> str:
    """The partition of a message that is retried for one consumer, separate for each consumer."""
    partition = _sound(partition)
    lane = f"{consumer}/{partition}"
    if len(lane) > PARTITION_CHARS_MAX:
        lane = f"{_digest(consumer)}/{partition}"
    if len(lane) > PARTITION_CHARS_MAX:
        lane = f"{_digest(consumer)}/{_digest(partition)}"
    return lane


def partition_in(lane: str, consumer: str) -> str:
    """The partition that a message had before it was retried for this consumer."""
    for prefix in (f"{consumer}/", f"{_digest(consumer)}/"):
        if lane.startswith(prefix):
            return lane.removeprefix(prefix)
    return lane


class Failed:
    """The failed messages inside one transaction: `tx.failed`."""

    def __init__(self, tx: Transaction, registry: MessagingRegistry) -> None:
        self._tx = tx
        self._registry = registry

    def find(
        self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> Page[FailedMessage]:
        """Lists failed messages, newest first.

        A page may hold fewer rows than `limit`, even none, and still have a next page.

        - `limit`: the size of the page.
        - `cursor`: the `next` of the page before.
        - `filters`: see `Filters`.
        """
        return self._whole(self._sifted(self._ready().newest, _filter(filters), limit, cursor))

    def count(self, *, most: int) -> int:
        """Counts failed messages, at most `most`. The table must exist."""
        row = _statements(self._registry.shared.failed).count.one(self._tx, most=most)
        return int(row[0]) if row is not None else 0

    def last_id(self) -> int:
        """The highest id. Messages that fail later get higher ids."""
        row = self._ready().last.one(self._tx)
        return int(row[0] or 0) if row is not None else 0

    def get(self, failed_id: int) -> FailedMessage:
        """The failed message with this id, with its body. Raises NotFound if it does not exist."""
        row = self._ready().get.one(self._tx, id_=_checked_id(failed_id))
        if row is None:
            raise NotFound(f"no failed message has the id {failed_id}")
        return self._made(row)

    def groups(self, *, counted_max: int = COUNTED_MAX, **filters: Unpack[Filters]) -> Groups:
        """Groups the newest failed messages by cause. It costs as much as a page of so many.

        - `counted_max`: the most messages that are counted; up to 1000.
        - `filters`: see `Filters`.
        """
        page = self._sifted(self._ready().newest, _filter(filters), counted_max, None)
        found: dict[Cause, list[Row]] = {}
        for each in page.rows:
            found.setdefault(each.cause, []).append(each.row)
        groups = [
            _group(self._made(rows[0]), len(rows), self._failed_at(rows[-1]))
            for rows in found.values()
        ]
        groups.sort(key=lambda group: -group.count)
        return Groups(groups, counted_all=page.next is None)

    def retry(self, failed_id: int, *, by: str | None = None) -> None:
        """Sends a failed message again to the consumer or destination where it failed.

        The message keeps its id, key and headers, and at a destination its place in its partition.
        The row is deleted in the same transaction, so a second retry raises NotFound.

        - `failed_id`: the id of the row in the failed table.
        - `by`: who did it, for the record.
        """
        found = self.get(failed_id)
        problem = self._problem(found)
        if problem is not None:
            raise problem
        if not self._take(found):
            message = f"the failed message {failed_id} was retried or removed meanwhile"
            raise NotAllowedNow(message)
        self._send(found, by)

    def retry_all(
        self,
        *,
        limit: int = RETRY_MAX,
        cursor: str | None = None,
        dry_run: bool = False,
        by: str | None = None,
        **filters: Unpack[Filters],
    ) -> BulkResult:
        """Retries failed messages in bulk, the oldest first.

        - `limit`: how many at most; up to RETRY_MAX.
        - `cursor`: the `next` of the call before.
        - `dry_run`: only returns the ids of the messages that would be retried.
        - `by`: who did it, for the record.
        - `filters`: see `Filters`.
        """
        page = self._oldest(limit, RETRY_MAX, cursor, filters)
        left = [each.id for each in page.rows if self._problem(each) is not None]
        ids = [each.id for each in page.rows if each.id not in set(left)]
        if not dry_run:
            ids = [each for each in ids if self._retried(each, by)]
        return BulkResult(ids, left, next=page.next, dry_run=dry_run)

    def remove(self, failed_id: int, *, by: str | None = None) -> None:
        """Deletes a failed message. The record keeps that it existed.

        - `failed_id`: the id of the row in the failed table.
        - `by`: who did it, for the record.
        """
        found = self.get(failed_id)
        if not self._take(found):
            message = f"the failed message {failed_id} was retried or removed meanwhile"
            raise NotAllowedNow(message)
        record(self._tx, [_undone(RecordKind.REMOVED, found, by)])

    def remove_all(
        self,
        *,
        limit: int = REMOVE_MAX,
        cursor: str | None = None,
        dry_run: bool = False,
        by: str | None = None,
        **filters: Unpack[Filters],
    ) -> BulkResult:
        """Deletes failed messages in bulk, the oldest first.

        - `limit`: how many at most; up to REMOVE_MAX.
        - `cursor`: the `next` of the call before.
        - `dry_run`: only returns the ids of the messages that would be removed.
        - `by`: who did it, for the record.
        - `filters`: see `Filters`.
        """
        page = self._oldest(limit, REMOVE_MAX, cursor, filters)
        rows = page.rows if dry_run else [each for each in page.rows if self._take(each)]
        if not dry_run:
            record(self._tx, [_undone(RecordKind.REMOVED, each, by) for each in rows])
        ids = [each.id for each in rows]
        return BulkResult(ids, [], next=page.next, dry_run=dry_run)

    def _ready(self) -> _Statements:
        self._registry.setup.ensure(self._tx, self._registry.shared.failed)
        return _statements(self._registry.shared.failed)

    def _oldest(
        self, limit: int, limit_max: int, cursor: str | None, filters: Filters
    ) -> Page[FailedMessage]:
        if not 1 <= limit <= limit_max:
            message = f"limit must be 1 to {limit_max}, not {limit}"
            raise BadInput(message, hint="call it again for the rest")
        return self._whole(self._sifted(self._ready().oldest, _filter(filters), limit, cursor))

    def _sifted(
        self, rows: Keyset[_Listed], wanted: Filter, limit: int, cursor: str | None
    ) -> Page[_Listed]:
        """A page of messages that match filters, which no index can answer."""
        if wanted.is_of_all:
            return rows.read(self._tx, limit=limit, cursor=cursor, since_ms=wanted.since_ms)
        return rows.sifted(
            self._tx,
            lambda each: wanted.fits(each.cause),
            limit=limit,
            cursor=cursor,
            since_ms=wanted.since_ms,
        )

    def _whole(self, page: Page[_Listed]) -> Page[FailedMessage]:
        return Page([self._made(each.row) for each in page.rows], page.next)

    def _made(self, row: Row) -> FailedMessage:
        return made(row, self._origin, self._failed_at(row))

    def _failed_at(self, row: Row) -> datetime:
        return moment_in(self._registry.shared.failed, row[2])

    @property
    def _origin(self) -> str:
        """The identity of this table, for the ids of rows that have none."""
        identity = self._tx.database.identity_in(self._tx)
        return f"{identity}:{self._registry.shared.failed.name}"

    def _problem(self, found: FailedMessage) -> NotAllowedNow | None:
        """Why the message cannot be retried, or None."""
        words = f"the failed message {found.id} cannot be retried"
        if found.message is None:
            hint = "remove it, and correct the program that sent it"
            return NotAllowedNow(f"{words}: it could not be read ({found.reason})", hint=hint)
        if found.binary:
            hint = "let its sender send it again, and remove it"
            return NotAllowedNow(f"{words}: its body is not text", hint=hint)
        if found.consumer is None and found.origin not in self._registry.routes.destinations:
            hint = "add the destination to the settings, or remove the message"
            return NotAllowedNow(f"{words}: no destination is named {found.origin!r}", hint=hint)
        return None

    def _take(self, found: FailedMessage) -> bool:
        """Deletes the row; returns False if another transaction was first."""
        return _statements(self._registry.shared.failed).remove.run(self._tx, id_=found.id) == 1

    def _retried(self, failed_id: int, by: str | None) -> bool:
        row = _statements(self._registry.shared.failed).get.one(self._tx, id_=failed_id)
        if row is None:
            return False
        found = self._made(row)
        if not self._take(found):
            return False
        self._send(found, by)
        return True

    def _send(self, found: FailedMessage, by: str | None) -> None:
        message = found.message
        assert message is not None
        if found.consumer is None:
            assert found.origin is not None
            queue, place = found.origin, found.place
        else:
            queue, place = RETRY, None
        partition = _sound(message.partition)
        if found.consumer:
            partition = lane_of(found.consumer, partition)
        message = msgspec.structs.replace(
            message, partition=partition, consumer=found.consumer or None
        )
        publishing.put_back(self._tx, self._registry, queue=queue, message=message, place=place)
        record(self._tx, [_undone(RecordKind.RETRIED, found, by)])


def _filter(given: Filters) -> Filter:
    unknown = set(given) - set(Filter.__struct_fields__)
    if unknown:
        known = ", ".join(Filter.__struct_fields__)
        raise BadInput(f"unknown filter {', '.join(sorted(unknown))}", hint=f"use {known}")
    return Filter(**given)


def _checked_id(failed_id: Any) -> int:
    if not isinstance(failed_id, int) or not 0 <= failed_id < 2**63:
        raise NotFound(f"no failed message has the id {failed_id!r}")
    return failed_id


def _group(newest: FailedMessage, count: int, oldest: datetime) -> Group:
    return Group(
        consumer=newest.consumer,
        origin=newest.origin,
        name=newest.name,
        code=newest.code,
        count=count,
        oldest=oldest,
        newest=newest.failed_at,
        reason=newest.reason,
    )


def _entry(
    what: RecordKind,
    origin: str | None,
    message: Message | None,
    *,
    code: str,
    reason: str,
    by: str | None = None,
) -> Entry:
    partition = message.partition if message is not None else ""
    return Entry(
        what=what,
        queue=storable(origin or "")[:QUEUE_CHARS_MAX],
        partition=storable(partition)[:PARTITION_CHARS_MAX],
        message_id=message.id if message is not None else None,
        who=by,
        code=storable(code),
        reason=storable(reason),
    )


def _undone(what: RecordKind, found: FailedMessage, by: str | None) -> Entry:
    who = f"{found.consumer}: " if found.consumer else ""
    reason = who + found.reason
    return _entry(what, found.origin, found.message, code=found.code, reason=reason, by=by)


def _sound(partition: str) -> str:
    """The partition with characters removed that no database stores."""
    try:
        return check_partition(partition)
    except BadInput:
        return _digest(partition)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]

"""The calls of the outbox inside a transaction: `tx.outbox`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Table, bindparam, case, column, delete, func, insert, select

from ledgerstone.errors import BadInput, KeyConflict, NotAllowedNow, NotFound
from ledgerstone.messaging import retention
from ledgerstone.messaging.outbox import publishing
from ledgerstone.messaging.outbox.publishing import Accepted, NewMessage, Published, channel_of
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.relay import lanes, parked
from ledgerstone.messaging.relay.heads import waiting_index
from ledgerstone.messaging.relay.lanes import LaneRow
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.symfony import envelope
from ledgerstone.messaging.symfony.time_zone import moment_in
from ledgerstone.messaging.tables import Shared, available_index, pause
from ledgerstone.store.sql.batch import WithRows
from ledgerstone.store.sql.expressions import by_index, now_ms
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

_queue = bindparam("queue", type_=pause.c.queue_name.type)
_pause = Statement(
    "outbox.pause",
    insert(pause).values(
        queue_name=_queue,
        paused_at_ms=now_ms(),
        who=bindparam("by", type_=pause.c.who.type),
    ),
)
_resume = Statement("outbox.resume", delete(pause).where(pause.c.queue_name == _queue))
_paused = Statement("outbox.paused", select(pause.c.queue_name).order_by(pause.c.queue_name))


FEW_MAX = 1000
"""A destination with at most this many messages is sorted when its messages are listed."""
COUNTED_MAX = 10_000
"""The count of the messages of a destination stops here, so that its cost is bounded."""


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the outbox, for one of its destinations."""

    place: int
    destination: str
    partition: str
    name: str
    message_id: str | None
    created_at: datetime
    available_at: datetime
    delivered_at: datetime | None
    headers: Mapping[str, str]
    body: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The undelivered messages of a destination."""

    destination: str
    waiting: int
    oldest_at: datetime | None
    paused: bool
    parked: int
    """The number of parked partitions."""


class Outbox:
    """The outbox inside one transaction."""

    def __init__(self, tx: Transaction, registry: MessagingRegistry) -> None:
        self._tx = tx
        self._registry = registry

    def publish(
        self,
        name: str,
        body: object = None,
        *,
        partition: str = "",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        available_at: datetime | None = None,
    ) -> Published:
        """Publishes a message to every destination that its name is routed to.

        The message is sent only if this transaction commits. Messages of one partition are sent in
        the order in which their transactions commit.

        - `name`: the name of the message: lowercase parts joined by dots, such as `order.placed`.
        - `body`: any value that msgspec encodes as JSON.
        - `partition`: messages with the same partition keep their order.
        - `key`: detects a repeated call. The same key with the same content returns the existing
          message; with different content it raises KeyConflict.
        - `headers`: your own headers; their names and values must be text.
        - `available_at`: the earliest time to send it, with a time zone. Later messages of the same
          partition wait behind it.
        """
        new = NewMessage(
            name=name,
            body=body,
            partition=partition,
            key=key,
            headers=headers,
            available_at=available_at,
        )
        (published,) = self.publish_many((new,))
        if published.accepted is Accepted.CONFLICT:
            message = (
                f"the key {key!r} was used before with other content, by message {published.id}"
            )
            raise KeyConflict(message)
        return published

    def publish_many(self, messages: Sequence[NewMessage]) -> list[Published]:
        """Publishes up to MESSAGES_MAX messages, and returns a result for each in their order.

        A message whose key was used with different content has the result CONFLICT; the others are
        published. A malformed message raises BadInput, and nothing is published.
        """
        return publishing.publish(self._tx, self._registry, messages)

    def find(
        self,
        *,
        destination: str | None = None,
        waiting: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[OutboxRow]:
        """Lists messages in the outbox, newest first.

        A page may hold fewer rows than `limit`, even none, and still have a next page.

        - `destination`: only messages for this destination.
        - `waiting`: only undelivered messages, in the order in which they are sent.
        - `limit`: the size of the page.
        - `cursor`: the `next` of the page before.
        """
        self._ready()
        if destination is not None:
            self._known(destination)
        lists = _lists(self._registry.shared)
        if waiting:
            by = {"destination": destination} if destination is not None else {}
            found = lists.waiting[destination is not None]
            return found.read(self._tx, limit=limit, cursor=cursor, **by)
        if destination is None:
            return lists.all.read(self._tx, limit=limit, cursor=cursor)
        given = {"destination": destination}
        if len(lists.some.rows(self._tx, **given)) <= FEW_MAX:
            return lists.few.read(self._tx, limit=limit, cursor=cursor, **given)
        places = lists.many.sifted(
            self._tx, lambda place: place.fits, limit=limit, cursor=cursor, **given
        )
        rows = lists.whole.rows(self._tx, sorted((each.id,) for each in places.rows))
        return Page(sorted(map(lists.made, rows), key=lambda row: -row.place), places.next)

    def backlog(self, *, counted_max: int = COUNTED_MAX) -> list[Backlog]:
        """Counts the undelivered messages of each destination.

        - `counted_max`: the count stops here; the oldest message is the oldest of those counted.
        """
        self._ready()
        paused = {row[0] for row in _paused.rows(self._tx)}
        outbox = self._registry.shared.outbox
        waits = outbox.c.delivered_at.is_(None)
        some = select(outbox.c.queue_name).where(waits).limit(counted_max).subquery()
        others = self._tx.execute(select(some.c.queue_name).distinct()).scalars()
        names = dict.fromkeys([*self._registry.routes.destinations, *sorted(others)])
        found = {}
        for name in names:
            waiting = (
                select(outbox.c.created_at)
                .where(waits, outbox.c.queue_name == name)
                .limit(counted_max)
                .subquery()
            )
            counted = select(func.count(), func.min(waiting.c.created_at))
            count, oldest = self._tx.execute(counted).one()
            found[name] = (int(count), moment_in(outbox, oldest))
        return [
            Backlog(
                destination=name,
                waiting=found.get(name, (0, None))[0],
                oldest_at=found.get(name, (0, None))[1],
                paused=name in paused,
                parked=lanes.parked(self._tx, name, counted_max=counted_max),
            )
            for name in names
        ]

    def lanes(
        self,
        destination: str,
        *,
        state: LaneState | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[LaneRow]:
        """Lists the partitions of a destination and their state, ordered by partition.

        - `destination`: the name of the destination.
        - `state`: only partitions in this state.
        - `limit`: the size of the page.
        - `cursor`: the `next` of the page before.
        """
        self._known(destination)
        return lanes.find(self._tx, destination, state=_state_of(state), limit=limit, cursor=cursor)

    def pause(
        self, destination: str, *, partition: str | None = None, by: str | None = None
    ) -> None:
        """Stops sending to a destination. Raises NotAllowedNow if it is paused already.

        A message that a relay is sending may still be delivered.

        - `destination`: the name of the destination.
        - `partition`: pauses only this partition.
        - `by`: who did it, for the record.
        """
        self._known(destination)
        if partition is not None:
            lanes.pause(self._tx, destination, partition, by=by)
            return
        if (destination,) in _paused.rows(self._tx):
            raise NotAllowedNow(f"{destination} is paused already")
        _pause.run(self._tx, queue=destination, by=by)
        record(self._tx, [Entry(what=RecordKind.PAUSED, queue=destination, who=by)])

    def resume(
        self, destination: str, *, partition: str | None = None, by: str | None = None
    ) -> None:
        """Resumes a paused destination, or a paused or parked partition.

        A parked partition continues with the message that was refused.

        - `destination`: the name of the destination.
        - `partition`: resumes only this partition.
        - `by`: who did it, for the record.
        """
        self._known(destination)
        if partition is not None:
            lanes.resume(self._tx, destination, partition, by=by)
            return
        if not _resume.run(self._tx, queue=destination):
            raise NotAllowedNow(f"{destination} is not paused")
        record(self._tx, [Entry(what=RecordKind.RESUMED, queue=destination, who=by)])
        self._tx.wake(channel_of(destination))

    def resume_parked(
        self,
        destination: str,
        *,
        code: str | None = None,
        limit: int = parked.RESUME_MAX,
        dry_run: bool = False,
        by: str | None = None,
    ) -> list[str]:
        """Resumes parked partitions in bulk, and returns their names.

        - `destination`: the name of the destination.
        - `code`: only partitions that were parked with this code, such as `unroutable`.
        - `limit`: how many partitions at most.
        - `dry_run`: only returns the names of the partitions that would be resumed.
        - `by`: who did it, for the record.
        """
        self._known(destination)
        found = parked.find(self._tx, destination, code=code, limit=limit)
        return found if dry_run else parked.resume(self._tx, destination, found, by=by)

    def gone(self) -> list[str]:
        """The destinations that have rows in the outbox and are not in the settings."""
        self._ready()
        return retention.gone(self._tx, self._registry)

    def discard(self, destination: str, *, by: str | None = None) -> int:
        """Removes a bounded number of rows of a destination that is not in the settings.

        Also removes undelivered messages. Returns how many rows it removed; call it until it
        returns 0.

        - `destination`: a name that `gone` returned.
        - `by`: who did it, for the record.
        """
        self._ready()
        return retention.discard(self._tx, self._registry, destination, by=by)

    def cleanup(self, *, days: float, destination: str | None = None) -> int:
        """Removes a bounded number of delivered messages, and returns how many.

        - `days`: only messages that were delivered more than this many days ago.
        - `destination`: only messages for this destination.
        """
        self._ready()
        if destination is not None:
            self._known(destination)
        return retention.remove_delivered(
            self._tx, self._registry, days=days, destination=destination
        )

    def _ready(self) -> None:
        self._registry.setup.ensure(self._tx, self._registry.shared.outbox)

    def _known(self, destination: str) -> None:
        if destination not in self._registry.routes.destinations:
            known = ", ".join(self._registry.routes.destinations)
            message = f"no destination is named {destination!r}"
            raise NotFound(message, hint=f"the settings have {known}")


def _state_of(state: LaneState | str | None) -> LaneState | None:
    if state is None or isinstance(state, LaneState):
        return state
    try:
        return LaneState(state)
    except ValueError:
        words = ", ".join(each.value for each in LaneState)
        raise BadInput(f"{state!r} is not a state of a partition", hint=f"use {words}") from None


class _Place(NamedTuple):
    id: int
    fits: bool


class _Lists:
    """The list statements of an outbox.

    No index orders all messages of a destination. A destination with few messages is sorted; for
    one with many, the newest rows of the whole outbox are scanned. Both lists share their cursors.
    """

    def __init__(self, shared: Shared) -> None:
        outbox = shared.outbox
        columns = (
            outbox.c.id,
            outbox.c.queue_name,
            outbox.c.partition_key,
            outbox.c.headers,
            outbox.c.body,
            outbox.c.created_at,
            outbox.c.available_at,
            outbox.c.delivered_at,
        )
        newest = (outbox.c.id,)
        self.made = made = partial(_row, outbox)
        its = outbox.c.queue_name == bindparam("destination", type_=outbox.c.queue_name.type)
        self.all = Keyset("outbox.list", select(*columns), order=newest, descending=True, make=made)
        some = select(outbox.c.id).where(its).limit(FEW_MAX + 1)
        self.some = Statement("outbox.some", by_index(some, outbox, available_index(outbox)))
        self.few = Keyset(
            "outbox.list_of_one",
            by_index(select(*columns).where(its), outbox, available_index(outbox)),
            order=newest,
            descending=True,
            make=made,
        )
        self.many = Keyset(
            "outbox.list_of_one",
            select(outbox.c.id, case((its, 1), else_=0).label("fits")),
            order=newest,
            descending=True,
            make=_Place._make,
        )
        self.whole = WithRows(
            "outbox.whole",
            incoming=(column("place", BigInteger()),),
            build=lambda row: select(*columns).where(outbox.c.id.in_(select(row.place))),
        )
        waits = by_index(
            select(*columns).where(outbox.c.delivered_at.is_(None)), outbox, waiting_index(outbox)
        )
        leaving = (outbox.c.queue_name, outbox.c.partition_key, outbox.c.id)
        self.waiting = {
            False: Keyset("outbox.list_waiting", waits, order=leaving, crowded=True, make=made),
            True: Keyset(
                "outbox.list_of_one_waiting",
                waits.where(its),
                order=leaving[1:],
                crowded=True,
                make=made,
            ),
        }


_lists = cache(_Lists)


def _row(outbox: Table, row: Row) -> OutboxRow:
    try:
        headers = envelope.headers_in(row[3])
        message_id = envelope.id_in(headers)
    except BadInput:
        # A malformed row is listed too: an operator has to see it.
        headers, message_id = {}, None
    return OutboxRow(
        place=row[0],
        destination=row[1],
        partition=row[2],
        name=headers.get(envelope.TYPE, ""),
        message_id=message_id,
        headers=headers,
        body=row[4],
        created_at=moment_in(outbox, row[5]),
        available_at=moment_in(outbox, row[6]),
        delivered_at=moment_in(outbox, row[7]),
    )

"""What a caller can ask of the outbox, inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
"""Messages of a destination that are sorted to list them."""
COUNTED_MAX = 10_000
"""Messages of a destination that are counted: looking has a bounded cost."""


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
    """What waits for a destination."""

    destination: str
    waiting: int
    oldest_at: datetime | None
    paused: bool
    parked: int
    """Partitions that wait for an operator."""


class Outbox:
    """The outbox, inside one transaction."""

    def __init__(self, tx: Transaction, registry: MessagingRegistry) -> None:
        self._tx = tx
        self._registry = registry

    def publish(
        self,
        name: str,
        body: Any = None,
        *,
        partition: str = "",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        available_at: datetime | None = None,
    ) -> Published:
        """Publish one, to every destination that its name leads to, if this transaction commits.

        - Messages of one partition leave in the order of their commits.
        - Same key, same content: the message there is; other content: KeyConflict.
        - One that is available later keeps its place: those behind it in its partition wait.
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
        """Publish many, with an answer for each: created, existing or conflict."""
        return publishing.publish(self._tx, self._registry, messages)

    def find(
        self,
        *,
        destination: str | None = None,
        waiting: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[OutboxRow]:
        """Messages in the outbox, newest first; those that wait in the order in which they leave.

        With a destination a page may hold fewer than asked for, even none, and yet have a next one.
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
        """What waits, for each destination: counted up to a most, the oldest among those."""
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
        """Partitions of a destination, and where they stand."""
        self._known(destination)
        return lanes.find(self._tx, destination, state=_state_of(state), limit=limit, cursor=cursor)

    def pause(
        self, destination: str, *, partition: str | None = None, by: str | None = None
    ) -> None:
        """No message leaves for a destination, or of one partition for it."""
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
        """Messages leave again; of a parked partition the one that was refused is tried again."""
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
        """Let parked partitions go on, at most `limit` of them; answers which.

        - `code`: only those that were parked for this reason, as `unroutable`.
        - `dry_run` only answers which would.
        """
        self._known(destination)
        found = parked.find(self._tx, destination, code=code, limit=limit)
        return found if dry_run else parked.resume(self._tx, destination, found, by=by)

    def gone(self) -> list[str]:
        """Destinations that have rows here, and are in the settings no more."""
        self._ready()
        return retention.gone(self._tx, self._registry)

    def discard(self, destination: str, *, by: str | None = None) -> int:
        """Remove what is here for a destination that is gone, delivered or not, a bounded piece.

        How many rows it was; nothing is left when that is 0.
        """
        self._ready()
        return retention.discard(self._tx, self._registry, destination, by=by)

    def cleanup(self, *, days: float, destination: str | None = None) -> int:
        """Remove what was delivered so long ago, a bounded piece; how many it were."""
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
            raise NotFound(f"there is no destination {destination!r}", hint=f"there are {known}")


def _state_of(state: LaneState | str | None) -> LaneState | None:
    if state is None or isinstance(state, LaneState):
        return state
    try:
        return LaneState(state)
    except ValueError:
        words = ", ".join(each.value for each in LaneState)
        raise BadInput(f"{state!r} is no state of a partition", hint=f"use {words}") from None


class _Place(NamedTuple):
    id: int
    fits: bool


class _Lists:
    """The lists of an outbox of some name.

    No index has all messages of a destination in their order: few are sorted, many are met soon by
    looking through the newest of all. A cursor of the one list leads on in the other.
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
        # Shown all the same: whoever looks for it has to see it.
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

"""Publishing: a message is checked, encoded and written, one row for each of its destinations.

Where order is kept, a row's number is its place in its partition, and places follow the order of
the commits, not of the inserts. The database counts when a row is inserted, and one that was
inserted first may be committed last; so the last thing before a commit is to compare with the lane
of the partition, which then stays locked until the commit is through:

    lane.last_id < our first place    the usual case: it becomes our last place
    lane.last_id > our first place    others, who began later, have committed: our rows move behind

No publisher waits for another before its commit, and lanes are locked in the order of their ids, so
that two of them never wait in a circle. In a transaction that was joined the end is out of sight:
there the lane is locked when the message is published.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
from sqlalchemy import BigInteger, bindparam, case, column, delete, func, select, update

from ledgerstone.errors import BadInput, StoreBusy, TooLarge
from ledgerstone.ids import new_id
from ledgerstone.messaging import envelope, tracing
from ledgerstone.messaging.message import (
    KEY_CHARS_MAX,
    Message,
    check_headers,
    check_message_name,
    check_partition,
)
from ledgerstone.messaging.states import LaneState
from ledgerstone.messaging.tables import Shared, key, lane
from ledgerstone.store.batch import AddEach, InsertEach, UpdateEach, WithRows
from ledgerstone.store.body import encode
from ledgerstone.store.expressions import now_ms, second
from ledgerstone.store.names import check_name
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.office import Office
    from ledgerstone.store.transaction import Transaction

MESSAGES_MAX = 10_000
"""Messages in one call."""
AVAILABLE_DAYS_MAX = 3660
SECOND_MS = 1000


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published."""

    name: str
    body: Any = None
    partition: str = ""
    key: str | None = None
    headers: Mapping[str, str] | None = None
    available_at: datetime | None = None


class Accepted(Enum):
    """What became of a message that was to be published."""

    CREATED = "created"
    EXISTING = "existing"
    """The same key with the same content: it is the message there was."""
    CONFLICT = "conflict"
    """The same key with other content: nothing was published."""


class Published(msgspec.Struct, frozen=True):
    """The id of a message, what became of the call, and where the message goes."""

    id: str
    accepted: Accepted
    destinations: tuple[str, ...] = ()

    @property
    def created(self) -> bool:
        return self.accepted is Accepted.CREATED


class Placed(msgspec.Struct):
    """The rows that a transaction wrote into one lane."""

    queue: str
    partition: str
    places: list[int]
    due_ms: int | None
    """When the first of them may leave; None is at once."""
    returned: int | None = None
    """The highest place into which a message was put back: then the lane looks at once."""

    @property
    def last(self) -> int:
        """The highest of all."""
        return max([*self.places, self.returned or 0])


def lane_id(queue: str, partition: str) -> str:
    """The id of a lane, which follows from what it is the lane of."""
    return str(uuid5(NAMESPACE_OID, f"{queue}\0{partition}"))


def channel_of(queue: str) -> str:
    """What is rung when something waits for this destination."""
    return f"outbox:{queue}"


_take_keys = InsertEach(
    "outbox.take_key",
    key,
    incoming=(key.c.key, key.c.message_id, key.c.content_hash),
    values=lambda _: {"used_at_ms": now_ms()},
)
_by_key = Statement(
    "outbox.by_key",
    select(key.c.message_id, key.c.content_hash).where(
        key.c.key == bindparam("key_", type_=key.c.key.type)
    ),
)
_known_lanes = WithRows(
    "outbox.known_lanes",
    incoming=(lane.c.id,),
    build=lambda row: select(lane.c.id).where(lane.c.id.in_(select(row.id))),
)
_due = column("due_ms", BigInteger())


def _due_then(row: Any) -> Any:
    """When the lane is due: as before if something waits in it, for what is added waits behind."""
    return func.coalesce(lane.c.due_at_ms, row.due_ms, now_ms())


_follow = UpdateEach(
    "outbox.follow",
    key=lane.c.id,
    incoming=(lane.c.id, column("first", BigInteger()), column("last", BigInteger()), _due),
    build=lambda row: (
        update(lane)
        .where(lane.c.id == row.id, lane.c.last_id < row.first)
        .values(last_id=row.last, due_at_ms=_due_then(row))
    ),
)
_open_lanes = InsertEach(
    "outbox.open_lane",
    lane,
    incoming=(lane.c.id, lane.c.queue_name, lane.c.partition_key, lane.c.last_id, _due),
    values=lambda row: {
        "state": LaneState.OPEN.value,
        "due_at_ms": func.coalesce(row.due_ms, now_ms()),
        # Higher than any that a lane of this name had before it was removed.
        "token": now_ms(),
        "attempts": 0,
        "crashes": 0,
        "changed_at_ms": now_ms(),
    },
    locks=True,
)
_lock_lane = Statement(
    "outbox.lock_lane",
    select(lane.c.last_id)
    .where(lane.c.id == bindparam("id_", type_=lane.c.id.type))
    .with_for_update(),
)


class Statements:
    """What is written into an outbox of some name."""

    def __init__(self, shared: Shared) -> None:
        outbox = shared.outbox
        moved = [c for c in outbox.c if c.name not in {"id", "queue_name", "partition_key"}]
        self.add = AddEach(
            "outbox.publish",
            outbox,
            incoming=(
                outbox.c.body,
                outbox.c.headers,
                outbox.c.queue_name,
                outbox.c.partition_key,
                # Milliseconds since 1970; none is now.
                column("at_ms", BigInteger()),
            ),
            values=lambda row: {
                "created_at": second(now_ms()),
                "available_at": case(
                    (row.at_ms.is_(None), second(now_ms())), else_=second(row.at_ms)
                ),
            },
        )
        self.put_back = InsertEach(
            "outbox.put_back",
            outbox,
            incoming=(
                outbox.c.id,
                outbox.c.body,
                outbox.c.headers,
                outbox.c.queue_name,
                outbox.c.partition_key,
            ),
            values=lambda _: {
                "created_at": second(now_ms()),
                "available_at": second(now_ms()),
            },
        )
        self.copy = AddEach(
            "outbox.move",
            outbox,
            incoming=(
                outbox.c.queue_name,
                outbox.c.partition_key,
                column("place", BigInteger()),
            ),
            values=lambda row: {
                c.name: select(c).where(outbox.c.id == row.place).scalar_subquery() for c in moved
            },
        )
        self.remove = WithRows(
            "outbox.remove",
            incoming=(column("place", BigInteger()),),
            build=lambda row: delete(outbox).where(outbox.c.id.in_(select(row.place))),
        )
        self.there = WithRows(
            "outbox.there",
            incoming=(column("place", BigInteger()),),
            build=lambda row: (
                select(outbox.c.id).where(outbox.c.id.in_(select(row.place))).order_by(outbox.c.id)
            ),
        )


def publish(tx: Transaction, office: Office, messages: Sequence[NewMessage]) -> list[Published]:
    """Write each, or say by which message its key is taken; what is malformed refuses all."""
    if not isinstance(messages, Sequence):
        raise BadInput(f"messages are given as a list, not as {type(messages).__name__}")
    if len(messages) > MESSAGES_MAX:
        words = f"one call publishes at most {MESSAGES_MAX} messages, this one {len(messages)}"
        raise TooLarge(words, hint="call it several times")
    made = [_made(office, new) for new in messages]
    office.setup.ensure(tx, office.shared.outbox)
    taken = _taken(tx, [message for message, _ in made])
    answers = []
    rows: list[Row] = []
    for (message, at_ms), found in zip(made, taken, strict=True):
        if found is not None:
            answers.append(found)
            continue
        destinations = office.routes.of(message.name)
        headers = envelope.headers_of(message)
        body = message.raw.decode()
        rows += [(body, headers, queue, message.partition, at_ms) for queue in destinations]
        answers.append(Published(message.id, Accepted.CREATED, destinations))
    if rows:
        _place(tx, office, rows)
    return answers


def put_back(
    tx: Transaction, office: Office, *, queue: str, message: Message, place: int | None = None
) -> None:
    """Write a message anew: in its place of before if that is free, otherwise behind the others."""
    office.setup.ensure(tx, office.shared.outbox)
    headers = envelope.headers_of(msgspec.structs.replace(message, attempt=0), put_back=True)
    body = message.raw.decode()
    row = (body, headers, queue, message.partition)
    if place is None or office.statements.put_back.run(tx, [(place, *row)]):
        _place(tx, office, [(*row, None)])
        return
    # It is behind none that were committed since: the lane only has to look.
    new = Placed(queue, message.partition, [], None)
    placed = _noted(tx).setdefault(lane_id(queue, message.partition), new)
    placed.returned = max(placed.returned or 0, place)
    tx.wake(channel_of(queue))
    tx.at_commit("outbox.order", lambda: _follow_commits(tx, office))


def open_lanes(tx: Transaction, queue: str, partitions: Sequence[str]) -> None:
    """Lanes for partitions that others wrote into; those that are there stay as they are."""
    rows = [(lane_id(queue, each), queue, each, 0, None) for each in partitions]
    if rows:
        _open_lanes.run(tx, sorted(rows))


_look_again = Statement(
    "outbox.look_again",
    update(lane)
    .where(lane.c.id == bindparam("id_", type_=lane.c.id.type))
    .values(due_at_ms=now_ms()),
)


def _made(office: Office, new: NewMessage) -> tuple[Message, int | None]:
    """The message, and when it may leave in milliseconds since 1970, if not at once."""
    if not isinstance(new, NewMessage):
        raise BadInput(f"what is published is a NewMessage, not {type(new).__name__}")
    name = check_message_name(new.name)
    partition = check_partition(new.partition)
    headers = tracing.carried(check_headers(new.headers))
    if new.key is not None:
        if not isinstance(new.key, str):
            raise BadInput(f"a key is text, not {new.key!r}")
        check_name(new.key, "a key", chars_max=KEY_CHARS_MAX)
    body = encode(
        new.body,
        bytes_max=office.settings.body_bytes_max,
        setting="messaging.body_bytes_max",
        as_text=True,
    )
    message = Message(
        id=new_id(),
        name=name,
        raw=body.encode(),
        headers=headers,
        partition=partition,
        key=new.key,
        created_at=datetime.now(UTC),
    )
    return message, _moment_ms(new.available_at)


def _moment_ms(moment: Any) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        hint = "give datetime.now(UTC) + timedelta(…)"
        raise BadInput(f"available_at is a moment with a time zone, not {moment!r}", hint=hint)
    # The column has whole seconds: not before the moment.
    ms = math.ceil(moment.timestamp()) * SECOND_MS
    latest = datetime.now(UTC).timestamp() * SECOND_MS + AVAILABLE_DAYS_MAX * 86_400 * SECOND_MS
    if not 0 <= ms <= latest:
        raise BadInput(f"available_at lies within {AVAILABLE_DAYS_MAX} days, not at {moment}")
    return ms


def _taken(tx: Transaction, messages: Sequence[Message]) -> list[Published | None]:
    """For each, the message that has its key already, or None."""
    keyed = [i for i, message in enumerate(messages) if message.key is not None]
    found: list[Published | None] = [None] * len(messages)
    if not keyed:
        return found
    rows = [(messages[i].key, messages[i].id, _content_hash(messages[i])) for i in keyed]
    for n in _take_keys.run(tx, rows):
        i = keyed[n]
        found[i] = _existing(tx, messages[i])
    return found


def _existing(tx: Transaction, message: Message) -> Published:
    row = _by_key.one(tx, key_=message.key)
    if row is None:
        # Taken by a transaction that this one, begun earlier, is not allowed to see.
        words = f"the key {message.key!r} was taken by another transaction at the same time"
        raise StoreBusy(words, hint="run the transaction again")
    same = row[1] == _content_hash(message)
    return Published(str(row[0]), Accepted.EXISTING if same else Accepted.CONFLICT)


def _content_hash(message: Message) -> str:
    content = [message.name, message.partition, message.raw.decode()]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def _place(tx: Transaction, office: Office, rows: Sequence[Row]) -> None:
    """Write the rows, and have the lanes follow before the commit."""
    places = office.statements.add.run(tx, rows)
    lanes = _noted(tx)
    for (_, _, queue, partition, at_ms), place in zip(rows, places, strict=True):
        tx.wake(channel_of(queue))
        if not office.keeps_order(queue, tx.database):
            continue
        found = lanes.setdefault(lane_id(queue, partition), Placed(queue, partition, [], at_ms))
        found.places.append(place)
    if lanes:
        tx.at_commit("outbox.order", lambda: _follow_commits(tx, office))


def _noted(tx: Transaction) -> dict[str, Placed]:
    lanes: dict[str, Placed] = tx.notes.setdefault("outbox.placed", {})
    return lanes


def _follow_commits(tx: Transaction, office: Office) -> None:
    """Make the places of this transaction the last ones of their lanes."""
    lanes = dict(sorted(_noted(tx).items()))
    _noted(tx).clear()
    # Not in a joined one: at REPEATABLE READ, MySQL locks the gap in which a new lane is missing.
    if (len(lanes) == 1 and not tx.joined) or tx.database.dialect.one_writer:
        rows = [
            _following(each, placed)
            for each, placed in lanes.items()
            if placed.places and placed.returned is None
        ]
        left = {rows[i][0] for i in _follow.run(tx, rows)} if rows else set()
        done = {row[0] for row in rows} - left
        lanes = {each: placed for each, placed in lanes.items() if each not in done}
    if lanes:
        _take_places(tx, office, lanes)


def _take_places(tx: Transaction, office: Office, lanes: Mapping[str, Placed]) -> None:
    """The same for lanes that may be new, or in which others have committed meanwhile.

    New ones are made before any other is locked, and both in the order of their ids: so whoever
    waits for a lane holds none that another could wait for in turn.
    """
    known = {str(row[0]) for row in _known_lanes.rows(tx, [(each,) for each in lanes])}
    new = [
        (each, placed.queue, placed.partition, placed.last, placed.due_ms)
        for each, placed in lanes.items()
        if each not in known
    ]
    if new:
        _open_lanes.run(tx, new)
    locked = [(each, _lock_lane.later(tx, id_=each)) for each in lanes]
    rows = []
    for each, answer in locked:
        found = answer()
        if not found:
            message = "the lane of a partition was removed at this very moment"
            raise StoreBusy(message, hint="run the transaction again")
        last, placed = found[0][0], lanes[each]
        if placed.returned is not None:
            _look_again.run(tx, id_=each)
        if not placed.places or last == max(placed.places):
            # It is as this transaction has just made it: nobody else was given this place.
            continue
        if last > min(placed.places):
            placed.places = _moved(tx, office, placed)
        rows.append(_following(each, placed))
    if rows:
        _follow.run(tx, rows)


def _following(each: str, placed: Placed) -> Row:
    return each, min(placed.places), max(placed.places), placed.due_ms


def _moved(tx: Transaction, office: Office, placed: Placed) -> list[int]:
    """Put the rows behind all others; those that a savepoint took back are left out."""
    statements = office.statements
    there = statements.there.rows(tx, [(place,) for place in placed.places])
    if not there:
        return placed.places
    moved = statements.copy.run(tx, [(placed.queue, placed.partition, row[0]) for row in there])
    statements.remove.run(tx, [(row[0],) for row in there])
    return moved

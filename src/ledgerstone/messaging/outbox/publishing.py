"""Publishing: checks and encodes a message, and inserts one row for each destination.

Where order is kept, a lane is the head of the stream of a partition (see `store/commit_order.py`).
The id of a row is its place in the partition, and places follow the order of commits.
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
from sqlalchemy import BigInteger, case, column, func

from ledgerstone.errors import BadInput, TooLarge
from ledgerstone.ids import new_id
from ledgerstone.items.keys import KeyRequest, Keys
from ledgerstone.messaging import tracing
from ledgerstone.messaging.message import (
    KEY_CHARS_MAX,
    Message,
    check_headers,
    check_message_name,
    check_partition,
)
from ledgerstone.messaging.states import LaneState
from ledgerstone.messaging.symfony import envelope
from ledgerstone.messaging.symfony.time_zone import kept
from ledgerstone.messaging.tables import Shared, key, lane
from ledgerstone.store.commit_order import CommitOrder, OrderedRows, Stream
from ledgerstone.store.sql.batch import AddEach, InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.json_body import encode
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

MESSAGES_MAX = 10_000
"""The maximum number of messages in one call."""
AVAILABLE_DAYS_MAX = 3660
SECOND_MS = 1000


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to publish. See `Outbox.publish` for the fields."""

    name: str
    body: Any = None
    partition: str = ""
    key: str | None = None
    headers: Mapping[str, str] | None = None
    available_at: datetime | None = None


class Accepted(Enum):
    """The result of publishing a message."""

    CREATED = "created"
    EXISTING = "existing"
    """The key was used before with the same content: the result names the existing message."""
    CONFLICT = "conflict"
    """The key was used before with different content: nothing was published."""


class Published(msgspec.Struct, frozen=True):
    """The id of a message, the result of the call, and the destinations of the message."""

    id: str
    accepted: Accepted
    destinations: tuple[str, ...] = ()

    @property
    def created(self) -> bool:
        return self.accepted is Accepted.CREATED


def lane_id(queue: str, partition: str) -> str:
    """The id of a lane, derived from its destination and partition."""
    return str(uuid5(NAMESPACE_OID, f"{queue}\0{partition}"))


def channel_of(queue: str) -> str:
    """The wake-up channel of a destination."""
    return f"outbox:{queue}"


KEYS = Keys(
    "outbox",
    key=key.c.key,
    item=key.c.message_id,
    content=key.c.content_hash,
    values=lambda _: {"used_at_ms": now_ms()},
)
_due = column("due_ms", BigInteger())


def _due_then(row: Any) -> Any:
    """The due time of the lane. A lane that has undelivered messages keeps its due time."""
    return func.coalesce(lane.c.due_at_ms, row.due_ms, now_ms())


ORDER = CommitOrder(
    "outbox",
    key=lane.c.id,
    last=lane.c.last_id,
    named=(lane.c.queue_name, lane.c.partition_key),
    told=(_due,),
    opened=lambda row: {
        "state": LaneState.OPEN.value,
        "due_at_ms": func.coalesce(row.due_ms, now_ms()),
        # Higher than every token of a removed lane with the same id.
        "token": now_ms(),
        "attempts": 0,
        "crashes": 0,
        "changed_at_ms": now_ms(),
    },
    followed=lambda row: {"due_at_ms": _due_then(row)},
    again={"due_at_ms": now_ms()},
)


class Statements:
    """The statements that write into an outbox."""

    def __init__(self, shared: Shared) -> None:
        outbox = shared.outbox
        add = AddEach(
            "outbox.publish",
            outbox,
            incoming=(
                outbox.c.body,
                outbox.c.headers,
                outbox.c.queue_name,
                outbox.c.partition_key,
                # Milliseconds since 1970; NULL means now.
                column("at_ms", BigInteger()),
            ),
            values=lambda row: {
                "created_at": kept(outbox, now_ms()),
                "available_at": case(
                    (row.at_ms.is_(None), kept(outbox, now_ms())), else_=kept(outbox, row.at_ms)
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
                "created_at": kept(outbox, now_ms()),
                "available_at": kept(outbox, now_ms()),
            },
        )
        self.rows = OrderedRows("outbox", add, named=(outbox.c.queue_name, outbox.c.partition_key))


def publish(
    tx: Transaction, registry: MessagingRegistry, messages: Sequence[NewMessage]
) -> list[Published]:
    """Inserts the messages, and returns a result for each. A malformed message refuses all.

    If the call raises inside a joined transaction, a savepoint has undone everything it wrote.
    """
    tx.check_usable()
    if not isinstance(messages, Sequence):
        raise BadInput(f"messages must be a list of NewMessage, not {type(messages).__name__}")
    if len(messages) > MESSAGES_MAX:
        words = f"one call publishes at most {MESSAGES_MAX} messages, not {len(messages)}"
        raise TooLarge(words, hint="split them over several calls")
    made = [_made(registry, new) for new in messages]
    registry.setup.ensure(tx, registry.shared.outbox)
    with ORDER.all_or_nothing(tx):
        return _written(tx, registry, made)


def _written(
    tx: Transaction, registry: MessagingRegistry, made: Sequence[tuple[Message, int | None]]
) -> list[Published]:
    """Takes the keys of these messages, and inserts the rows of those whose key was free."""
    taken = _taken(tx, [message for message, _ in made])
    answers = []
    rows: list[Row] = []
    for (message, at_ms), found in zip(made, taken, strict=True):
        if found is not None:
            answers.append(found)
            continue
        destinations = registry.routes.of(message.name)
        headers = envelope.headers_of(message)
        body = message.raw.decode()
        rows += [(body, headers, queue, message.partition, at_ms) for queue in destinations]
        answers.append(Published(message.id, Accepted.CREATED, destinations))
    if rows:
        _place(tx, registry, rows)
    return answers


def put_back(
    tx: Transaction,
    registry: MessagingRegistry,
    *,
    queue: str,
    message: Message,
    place: int | None = None,
) -> None:
    """Inserts a message again: at its old place if that is free, otherwise at the end."""
    registry.setup.ensure(tx, registry.shared.outbox)
    headers = envelope.headers_of(msgspec.structs.replace(message, attempt=0), put_back=True)
    body = message.raw.decode()
    row = (body, headers, queue, message.partition)
    if place is None or registry.statements.put_back.run(tx, [(place, *row)]):
        _place(tx, registry, [(*row, None)])
        return
    # The message may lie before rows that were committed since, so the lane only becomes due.
    ORDER.came_back(tx, registry.statements.rows, _stream(queue, message.partition, None), place)
    tx.wake(channel_of(queue))


def open_lanes(tx: Transaction, queue: str, partitions: Sequence[str]) -> None:
    """Creates lanes for partitions of rows of other programs. Existing lanes do not change."""
    ORDER.open(tx, [_stream(queue, each, None) for each in partitions])


def _made(registry: MessagingRegistry, new: NewMessage) -> tuple[Message, int | None]:
    """The message, and its available_at in milliseconds since 1970 if it has one."""
    if not isinstance(new, NewMessage):
        raise BadInput(f"messages must be NewMessage values, not {type(new).__name__}")
    name = check_message_name(new.name)
    partition = check_partition(new.partition)
    headers = tracing.carried(check_headers(new.headers))
    if new.key is not None:
        if not isinstance(new.key, str):
            raise BadInput(f"a key must be text, not {new.key!r}")
        check_name(new.key, "a key", chars_max=KEY_CHARS_MAX)
    body = encode(
        new.body,
        bytes_max=registry.settings.body_bytes_max,
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
        raise BadInput(
            f"available_at must be a datetime with a time zone, not {moment!r}", hint=hint
        )
    # The column has whole seconds: round up, so that the message is not sent early.
    ms = math.ceil(moment.timestamp()) * SECOND_MS
    latest = datetime.now(UTC).timestamp() * SECOND_MS + AVAILABLE_DAYS_MAX * 86_400 * SECOND_MS
    if not 0 <= ms <= latest:
        raise BadInput(f"available_at must lie within {AVAILABLE_DAYS_MAX} days, not at {moment}")
    return ms


def _taken(tx: Transaction, messages: Sequence[Message]) -> list[Published | None]:
    """For each message, the existing message that has its key, or None."""
    found: list[Published | None] = [None] * len(messages)
    keyed = [(i, each, each.key) for i, each in enumerate(messages) if each.key is not None]
    wanted = [KeyRequest(each.id, (), key, _content_hash(each)) for _, each, key in keyed]
    for n, holder in KEYS.take(tx, wanted).items():
        same = holder.content_hash == wanted[n].content_hash
        accepted = Accepted.EXISTING if same else Accepted.CONFLICT
        found[keyed[n][0]] = Published(holder.item, accepted)
    return found


def _content_hash(message: Message) -> str:
    content = [message.name, message.partition, message.raw.decode()]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def _place(tx: Transaction, registry: MessagingRegistry, rows: Sequence[Row]) -> None:
    """Inserts the rows; the lanes follow just before the commit."""
    new = []
    for row in rows:
        _, _, queue, partition, at_ms = row
        tx.wake(channel_of(queue))
        ordered = registry.keeps_order(queue, tx.database)
        new.append((_stream(queue, partition, at_ms) if ordered else None, row))
    ORDER.add(tx, registry.statements.rows, new)


def _stream(queue: str, partition: str, due_ms: int | None) -> Stream:
    """The stream of a partition, with the due time of its lane."""
    return Stream(lane_id(queue, partition), (queue, partition), (due_ms,))

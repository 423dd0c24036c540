"""`deferred`: events for later, in order within their partition.

A partition is the unit of work (`deferred_lane`): one worker has it, and applies its events from
the head, each in a transaction of its own. The lane's row is locked before an event gets its
number, so the numbers of a partition follow the commits. A head that is not due yet, or that fails,
holds its partition and no other; one that fails too often is parked in `incoming`, and the next one
follows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, and_, bindparam, case, delete, or_, select, update

from ledgerstone.engine.outcomes import failure_of
from ledgerstone.engine.source import Claim, Handler, Snooze
from ledgerstone.errors import (
    BadInput,
    Interrupted,
    LeaseLost,
    StoreBusy,
    StoreUnavailable,
)
from ledgerstone.failpoints import hit
from ledgerstone.items import Begun, Delete, ItemClaim, Items, ItemSource, More
from ledgerstone.protocols import applying, incoming, keys, log
from ledgerstone.protocols.events import content_hash, decode, encode
from ledgerstone.protocols.refusals import refused_in
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.results import Blocked, DeferredEnqueue
from ledgerstone.protocols.tables import KEY_CHARS_MAX, deferred
from ledgerstone.protocols.tables import deferred_lane as lane
from ledgerstone.store.database import Database
from ledgerstone.store.sql.batch import UpdateEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.rows import InsertRows, UpsertRow
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

CHANNEL = "protocols.deferred"
SCOPE = "deferred"
TURN_EVENTS_MAX = 1000
"""So many events of one partition are applied before another has its turn."""
ADOPTED_MAX = 1000
"""Rows of another program that one transaction takes over."""
DELAY_SECONDS_MAX = 10 * 366 * 86_400.0

_delay = bindparam("delay_ms", type_=BigInteger())
_here = and_(
    lane.c.protocol == bindparam("protocol_"), lane.c.partition_key == bindparam("partition_")
)
_put_lane = UpsertRow(
    "protocols.lane",
    lane,
    key=("protocol", "partition_key"),
    columns=("protocol", "partition_key"),
    values={"due_ms": now_ms() + _delay, "generation": 1},
    changes={
        "due_ms": case(
            (or_(lane.c.due_ms.is_(None), lane.c.due_ms > now_ms() + _delay), now_ms() + _delay),
            else_=lane.c.due_ms,
        ),
        "generation": lane.c.generation + 1,
    },
)
_add = InsertRows(
    "protocols.defer",
    deferred,
    columns=("protocol", "partition_key", "payload", "idempotency_key"),
    values={"available_at_ms": now_ms() + _delay},
)
_head = Statement(
    "protocols.head",
    select(
        deferred.c.id,
        deferred.c.payload,
        deferred.c.attempts,
        deferred.c.available_at_ms - now_ms(),
    )
    .where(
        deferred.c.protocol == bindparam("protocol_"),
        deferred.c.partition_key == bindparam("partition_"),
    )
    .order_by(deferred.c.id)
    .limit(1),
)
_fence = Statement(
    "protocols.fence_lane",
    select(lane.c.token)
    .where(
        _here,
        lane.c.token == bindparam("token_", type_=BigInteger()),
        lane.c.lease_until_ms.is_not(None),
    )
    .with_for_update(),
)
_remove = Statement(
    "protocols.drop_deferred",
    delete(deferred).where(deferred.c.id == bindparam("id_", type_=BigInteger())),
)
_fail = Statement(
    "protocols.fail_deferred",
    update(deferred)
    .where(deferred.c.id == bindparam("id_", type_=BigInteger()))
    .values(
        attempts=deferred.c.attempts + 1,
        available_at_ms=now_ms() + _delay,
        last_error=bindparam("error_", type_=deferred.c.last_error.type),
    ),
)
_adoptable = Statement(
    "protocols.adoptable",
    select(deferred.c.id, deferred.c.partition_key)
    .where(deferred.c.protocol == "")
    .order_by(deferred.c.id)
    .limit(ADOPTED_MAX),
)
_adopt_rows = UpdateEach(
    "protocols.adopt",
    key=deferred.c.id,
    incoming=(deferred.c.id, deferred.c.partition_key),
    build=lambda row: (
        update(deferred)
        .where(deferred.c.id == row.id)
        .values(
            protocol=bindparam("protocol_", type_=deferred.c.protocol.type),
            partition_key=row.partition_key,
        )
    ),
)
LANES = Items(
    name=CHANNEL,
    table=lane,
    key=(lane.c.protocol, lane.c.partition_key),
    due=lane.c.due_ms,
    order=(lane.c.due_ms, lane.c.protocol, lane.c.partition_key),
    token=lane.c.token,
    lease=lane.c.lease_until_ms,
    attempt=Begun(lane.c.attempts),
    worker=lane.c.worker,
    crashes=lane.c.crashes,
    error=lane.c.last_error,
    done=Delete(),
    more=More(seen=(lane.c.generation,), arrived=lambda row: lane.c.generation != row.generation),
    index="idx_deferred_lane__due",
    refuse=refused_in(CHANNEL),
)


class Head(NamedTuple):
    """The first event of a partition."""

    id: int
    payload: bytes
    attempts: int
    waits_ms: int


def enqueue(tx: Transaction, protocol: str, wish: DeferredEnqueue) -> bool:
    """Defer an event; False if its key was used before with the same content."""
    check_name(wish.partition, "a partition", chars_max=KEY_CHARS_MAX)
    wish.envelope.check()
    if not 0 <= wish.delay_seconds <= DELAY_SECONDS_MAX:
        message = (
            f"an event is deferred by 0 to {DELAY_SECONDS_MAX:.0f} s, not {wish.delay_seconds}"
        )
        raise BadInput(message)
    payload = encode(wish.envelope)
    if wish.key is not None:
        taken = keys.take(
            tx, protocol, SCOPE, wish.key, content_hash([wish.partition, payload.decode()])
        )
        if taken is not None:
            return False
    delay_ms = round(wish.delay_seconds * 1000)
    # The lane first: another transaction that adds to the partition waits here for this commit.
    _put_lane.run(tx, protocol_=protocol, partition_key_=wish.partition, delay_ms=delay_ms)
    row: dict[str, Any] = {
        "protocol_": protocol,
        "partition_key_": wish.partition,
        "payload_": payload,
        "idempotency_key_": wish.key,
        "delay_ms": delay_ms,
    }
    _add.run(tx, [row])
    tx.wake(CHANNEL)
    return True


def adoptable(tx: Transaction) -> bool:
    """Whether another program, which knows the documented columns only, has deferred something."""
    return bool(_adoptable.rows(tx))


def adopt(tx: Transaction, protocol: str) -> int:
    """What another program has deferred is the protocol's, and its partitions are due."""
    rows = [(row[0], row[1] or "") for row in _adoptable.rows(tx)]
    for partition in sorted({row[1] for row in rows}):
        _put_lane.run(tx, protocol_=protocol, partition_key_=partition, delay_ms=0)
    _adopt_rows.run(tx, rows, protocol_=protocol)
    tx.wake(CHANNEL)
    return len(rows)


class DeferredSource(ItemSource):
    """Applies what was deferred, partition by partition."""

    def __init__(self, registry: Registry, database: Database[Any]) -> None:
        super().__init__(
            LANES,
            Handler(self._drain),
            backoff=registry.backoff,
            where=registry.has(lane.c.protocol),
        )
        self._registry = registry
        self._database = database

    def _drain(self, claim: Claim) -> Snooze | None:
        assert isinstance(claim, ItemClaim)
        for _ in range(TURN_EVENTS_MAX):
            with self._database.reading() as tx:
                head = self._head(tx, claim)
            if head is None:
                return None
            if head.waits_ms > 0:
                return Snooze(head.waits_ms / 1000)
            self._one(claim, head)
        # The others have their turn before this one goes on.
        return Snooze(0.001)

    def _head(self, tx: Transaction, claim: ItemClaim) -> Head | None:
        protocol, partition = claim.parts
        row = _head.one(tx, protocol_=protocol, partition_=partition)
        return None if row is None else Head(row[0], bytes(row[1]), row[2], int(row[3]))

    def _one(self, claim: ItemClaim, head: Head) -> None:
        """Apply the head, or put its failure on record."""
        protocol = self._registry.found(claim.parts[0])

        def work(tx: Transaction) -> None:
            self._fence(tx, claim)
            if _remove.run(tx, id_=head.id):
                applying.apply(tx, protocol, decode(head.payload), log.now_of(tx))
                hit("protocols.drained")

        def keep(tx: Transaction) -> None:
            self._fence(tx, claim)
            if _remove.run(tx, id_=head.id):
                applying.place(tx, protocol, decode(head.payload), log.now_of(tx))

        def fail(tx: Transaction, error: Exception) -> None:
            self._fence(tx, claim)
            self._failed(tx, protocol.name, head, error)

        try:
            try:
                self._database.run(work)
            except Blocked:
                self._database.run(keep)
        except (Interrupted, LeaseLost, StoreBusy, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a projector may raise anything
            failed = error
            self._database.run(lambda tx: fail(tx, failed))

    def _failed(self, tx: Transaction, protocol: str, head: Head, error: Exception) -> None:
        wait = self._registry.backoff.after(head.attempts + 1)
        hopeless = isinstance(error, incoming.NEVER)
        if head.attempts + 1 < self._registry.settings.attempts_max and not hopeless:
            failure = failure_of(error)
            words = f"{failure.code}: {failure.message}"[: incoming.ERROR_CHARS_MAX]
            _fail.run(tx, id_=head.id, delay_ms=round(wait * 1000), error_=words)
            return
        _remove.run(tx, id_=head.id)
        incoming.park(tx, protocol, head.payload, error)

    def _fence(self, tx: Transaction, claim: ItemClaim) -> None:
        """LeaseLost unless the claim holds its partition until the transaction ends."""
        protocol, partition = claim.parts
        if _fence.one(tx, protocol_=protocol, partition_=partition, token_=claim.token) is None:
            raise LeaseLost(f"the lease of {claim.title} ran out")

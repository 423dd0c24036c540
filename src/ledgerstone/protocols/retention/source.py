"""When retention happens: the row of a protocol is a leased item, due every so often.

    due ──claim──▶ remove what was broken off ──▶ a snapshot, if one is due ──▶ prune ──▶ due again
                   each step a transaction that compares the token of the claim

It runs in a place of the worker like any handler, so that a copy that takes minutes keeps no rescue
and no heartbeat waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, select, update

from ledgerstone.engine.source import Claim, Handler, Snooze
from ledgerstone.errors import LeaseLost
from ledgerstone.items import Begun, Idle, ItemClaim, Items, ItemSource
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.refusals import refused_in
from ledgerstone.protocols.registry import Registry, of_names
from ledgerstone.protocols.retention import pruning, records, snapshots
from ledgerstone.protocols.retention.records import DAY_MS
from ledgerstone.protocols.retention.snapshots import Fence
from ledgerstone.protocols.tables import protocol_retention as item
from ledgerstone.settings.protocols import Retention
from ledgerstone.store.database import Database
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

CHANNEL = "protocols.retention"
EVERY_SECONDS = 60.0
STEPS_MAX = 100
"""Steps of pruning in one claim: another protocol has its turn then."""

ITEMS = Items(
    name=CHANNEL,
    table=item,
    key=(item.c.protocol,),
    due=item.c.due_ms,
    order=(item.c.due_ms, item.c.protocol),
    token=item.c.token,
    lease=item.c.lease_until_ms,
    attempt=Begun(item.c.attempts),
    worker=item.c.worker,
    crashes=item.c.crashes,
    error=item.c.last_error,
    done=Idle(),
    index="idx_protocol_retention__due",
    refuse=refused_in(CHANNEL),
)
_mine = item.c.protocol == bindparam("protocol_")
_declare = InsertRows(
    "protocols.declare_retention", item, columns=("protocol",), values={"due_ms": now_ms()}
)
_there = Statement("protocols.retention_there", select(item.c.due_ms).where(_mine))
_now = Statement(
    "protocols.retention_now",
    update(item).where(_mine, item.c.lease_until_ms.is_(None)).values(due_ms=now_ms()),
)
_fence = Statement(
    "protocols.fence_retention",
    select(item.c.token)
    .where(
        _mine,
        item.c.token == bindparam("token_", type_=BigInteger()),
        item.c.lease_until_ms.is_not(None),
    )
    .with_for_update(),
)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for, in place of what is due by the protocol's retention."""

    snapshot: bool = False
    keep_days: float | None = None
    progress: Callable[[int], None] = lambda _: None


class Retained(msgspec.Struct, kw_only=True):
    """What was done; `busy`: another process is at it."""

    snapshot_position: int | None = None
    snapshot_rows: int = 0
    pruned: int = 0
    busy: bool = True


def declare(database: Database[Any], protocol: str, *, now: bool = False) -> None:
    """The protocol has an item; `now`: it is due."""
    with database.reading() as tx:
        there = _there.one(tx, protocol_=protocol) is not None
    if not there:
        database.run(lambda tx: _declare.run(tx, [{"protocol_": protocol}]))
    if now:
        database.run(lambda tx: _now.run(tx, protocol_=protocol))


class RetentionSource(ItemSource):
    """Makes snapshots of protocols, and prunes their events."""

    def __init__(
        self, registry: Registry, database: Database[Any], *, wanted: Wanted | None = None
    ) -> None:
        names = [each.name for each in registry if wanted or prunes(registry.retention(each))]
        where = of_names(item.c.protocol, names)
        super().__init__(ITEMS, Handler(self._run), backoff=registry.backoff, where=where)
        self.did = Retained()
        self.trouble: Exception | None = None
        self._registry = registry
        self._database = database
        self._wanted = wanted

    def _run(self, claim: Claim) -> Snooze:
        assert isinstance(claim, ItemClaim)
        try:
            return self._turn(claim)
        except Exception as error:
            # An operator who has asked for it is told.
            self.trouble = error
            raise

    def _turn(self, claim: ItemClaim) -> Snooze:
        protocol = self._registry.found(claim.key)

        def fence(tx: Transaction) -> None:
            if _fence.one(tx, protocol_=protocol.name, token_=claim.token) is None:
                raise LeaseLost(f"the lease of {claim.title} ran out")

        self.did.busy = False
        policy = self._registry.retention(protocol)
        snapshots.clean(self._database, protocol.name, fence)
        self._make(protocol, policy, fence)
        wanted = self._wanted
        keep_days = policy.keep_days if wanted is None else wanted.keep_days
        more = keep_days is not None and self._prune(protocol.name, keep_days, fence)
        return Snooze(0.001 if more else EVERY_SECONDS)

    def _make(self, protocol: Protocol, policy: Retention, fence: Fence) -> None:
        wanted = self._wanted
        due = self._is_due(protocol.name, policy) if wanted is None else wanted.snapshot
        if not due:
            return
        progress = wanted.progress if wanted is not None else lambda _: None
        made = snapshots.make(self._database, protocol, fence, progress=progress)
        if made is not None:
            self.did.snapshot_position = made.position
            self.did.snapshot_rows = made.row_count
            snapshots.clean(self._database, protocol.name, fence)

    def _is_due(self, protocol: str, policy: Retention) -> bool:
        with self._database.reading() as tx:
            last = snapshots.newest(tx, protocol)
        return last is None or last.age_ms >= policy.snapshot_days * DAY_MS

    def _prune(self, protocol: str, keep_days: float, fence: Fence) -> bool:
        """Prune; whether there is more to do."""
        with self._database.reading() as tx:
            within = pruning.bounds(tx, protocol, keep_days=keep_days)
        if within is None:
            return False
        steps = 1 << 62 if self._wanted is not None else STEPS_MAX
        self.did.pruned += pruning.prune(self._database, protocol, within, fence, steps_max=steps)
        with self._database.reading() as tx:
            return records.pruned_to(tx, protocol) < within.to


def prunes(policy: Retention) -> bool:
    """Whether anything is ever removed."""
    return policy.keep_days is not None

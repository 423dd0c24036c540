"""`incoming`: what comes in, each item applied and removed in one transaction.

    receive ──▶ queued ──claim, 100 at once──▶ processing ──▶ BEGIN; look, remove; apply; COMMIT
                  ▲                                 │
                  └── failed: again after a wait ───┴── failed too often: parked, with the reason

An item that fails waits behind its own due time: those behind it go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, delete, or_

from ledgerstone.engine.outcomes import failure_of, of_error
from ledgerstone.engine.source import Batch, Batches, Claim, Handler, Outcome, OutcomeKind
from ledgerstone.errors import (
    BadInput,
    Hopeless,
    Interrupted,
    KeyConflict,
    LeaseLost,
    StoreBusy,
    StoreUnavailable,
    TooLarge,
)
from ledgerstone.failpoints import hit
from ledgerstone.items import Begun, Delete, ItemClaim, Items, ItemSource, State
from ledgerstone.items.pop import Pop
from ledgerstone.protocols import applying, log
from ledgerstone.protocols.applying import Applied, Mixed
from ledgerstone.protocols.events import Envelope, decode, encode
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.refusals import refused_in
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.results import Blocked
from ledgerstone.protocols.states import MOVES, ItemState
from ledgerstone.protocols.tables import incoming
from ledgerstone.store.database import Database
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction

CHANNEL = "protocols.incoming"
CLAIM_ITEMS_MAX = 100
BATCH_ITEMS_MAX = 1000
LOCK_SECONDS_MAX = 1
"""How long an item waits for what another transaction holds: those behind it wait so long, too."""
ERROR_CHARS_MAX = 2000
NEVER = (BadInput, Hopeless, KeyConflict)
"""Errors that no retry changes: the item is parked at once."""

_mine = or_(incoming.c.protocol == bindparam("protocol_"), incoming.c.protocol == "")
_DELAY = bindparam("delay_ms", type_=BigInteger())
_receive = InsertRows(
    "protocols.receive",
    incoming,
    columns=("protocol", "received_by", "blob", "enveloped"),
    values={"created_at_ms": now_ms()},
)
_take_back = InsertRows(
    "protocols.take_back",
    incoming,
    columns=(
        *("protocol", "received_by", "blob", "enveloped", "created_at_ms", "last_error"),
        *("status", "attempts"),
    ),
    values={"available_at_ms": now_ms() + _DELAY},
)
_drop = Statement(
    "protocols.drop_incoming",
    delete(incoming).where(
        incoming.c.id == bindparam("id_", type_=BigInteger()),
        _mine,
    ),
)
_HELD = (
    incoming.c.protocol,
    incoming.c.blob,
    incoming.c.received_by,
    incoming.c.created_at_ms,
    incoming.c.enveloped,
    now_ms(),
)


def items(attempts_max: int | None) -> Items:
    """The declaration; an item is parked after so many attempts."""
    return Items(
        name=CHANNEL,
        table=incoming,
        key=(incoming.c.id,),
        due=incoming.c.available_at_ms,
        order=(incoming.c.available_at_ms, incoming.c.id),
        state=State(
            column=incoming.c.status,
            due=ItemState.QUEUED,
            held=ItemState.PROCESSING,
            moves=MOVES,
            ended=frozenset({ItemState.PARKED}),
            dead=ItemState.PARKED,
        ),
        attempt=Begun(incoming.c.attempts),
        attempts_max=attempts_max,
        token=incoming.c.token,
        lease=incoming.c.lease_until_ms,
        worker=incoming.c.worker,
        crashes=incoming.c.crashes,
        error=incoming.c.last_error,
        carries=(incoming.c.protocol,),
        done=Delete(),
        index="idx_incoming__due",
        refuse=refused_in(CHANNEL),
    )


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that came in; `enveloped` ones are an envelope of ours, and pass by the decoder."""

    blob: bytes
    received_by: str = ""
    enveloped: bool = False


def receive(tx: Transaction, protocol: Protocol, wires: Sequence[Wire], *, bytes_max: int) -> int:
    """Take in items, to be applied one by one; nothing is looked at yet but the size."""
    for wire in wires:
        if len(wire.blob) > bytes_max:
            message = f"an item has {len(wire.blob)} bytes, at most {bytes_max} are accepted"
            raise TooLarge(message, hint="raise store.body_bytes_max, or send it as a file")
    rows: list[dict[str, Any]] = [
        {
            "protocol_": protocol.name,
            "received_by_": wire.received_by,
            "blob_": wire.blob,
            "enveloped_": int(wire.enveloped),
        }
        for wire in wires
    ]
    taken = 0
    for start in range(0, len(rows), BATCH_ITEMS_MAX):
        taken += _receive.run(tx, rows[start : start + BATCH_ITEMS_MAX])
    if taken:
        tx.wake(CHANNEL)
    return taken


def take_back(
    tx: Transaction, protocol: str, envelope: bytes, error: BaseException, *, delay_seconds: float
) -> None:
    """An event that failed elsewhere: it is retried here, and parked if it goes on to fail."""
    if isinstance(error, NEVER):
        park(tx, protocol, envelope, error)
        return
    delay_ms = round(delay_seconds * 1000)
    _put_back(tx, protocol, envelope, error, state=ItemState.QUEUED, delay_ms=delay_ms)
    tx.wake(CHANNEL)


def park(tx: Transaction, protocol: str, envelope: bytes, error: BaseException) -> None:
    """An event that has failed too often elsewhere: it is kept here, with the reason."""
    _put_back(tx, protocol, envelope, error, state=ItemState.PARKED, delay_ms=0)


def _put_back(
    tx: Transaction,
    protocol: str,
    envelope: bytes,
    error: BaseException,
    *,
    state: ItemState,
    delay_ms: int,
) -> None:
    event = decode(envelope)
    is_wire = event.type == applying.WIRE
    failure = failure_of(error)
    row: dict[str, Any] = {
        "protocol_": protocol,
        "received_by_": event.received_by,
        "blob_": applying.wire_of(event) if is_wire else envelope,
        "enveloped_": int(not is_wire),
        "created_at_ms_": event.created_at_ms,
        "last_error_": f"{failure.code}: {failure.message}"[:ERROR_CHARS_MAX],
        "status_": state.value,
        "attempts_": 1,
        "delay_ms": delay_ms,
    }
    _take_back.run(tx, [row])


def remove(tx: Transaction, protocol: str, number: int) -> bool:
    """Take an item out; False if it is not there."""
    return bool(_drop.run(tx, id_=number, protocol_=protocol))


class IncomingSource(ItemSource):
    """Applies what comes in.

    - `together` items are applied and removed in one transaction; 1: each in its own. A batch in
      which one fails is done again item by item, so that the end is the same.
    """

    def __init__(self, registry: Registry, database: Database[Any], *, together: int = 1) -> None:
        if not 1 <= together <= BATCH_ITEMS_MAX:
            raise BadInput(f"1 to {BATCH_ITEMS_MAX} items are applied at once, not {together}")
        calls = 1 if database.dialect.one_writer else 4
        size = max(together, CLAIM_ITEMS_MAX)
        declared = items(registry.settings.attempts_max)
        super().__init__(
            declared,
            Handler(self._run),
            backoff=registry.backoff,
            where=registry.has(incoming.c.protocol),
            batches=Batches(
                calls_max=calls, long_calls_max=calls, call_items_max=size, items_max=calls * size
            ),
        )
        self._registry = registry
        self._database = (
            database
            if database.dialect.one_writer
            else database.sibling(connections=calls, lock_seconds_max=LOCK_SECONDS_MAX)
        )
        self._together = together
        self._pop = Pop(declared, _HELD)

    def _run(self, batch: Batch) -> None:
        claims = list(batch.open.values())
        if self._together > 1 and self._all_at_once(claims):
            return
        done: list[Claim] = []
        waiting: list[Claim] = []
        try:
            for claim in claims:
                self._judged(batch, claim, self._one(claim, self._work, waiting), done)
            # Only now: to be kept, an event waits for others that write its key at this moment.
            for claim in waiting:
                self._judged(batch, claim, self._one(claim, self._keep), done)
        finally:
            for claim in done:
                batch.settle(Outcome(claim, OutcomeKind.DONE))

    @staticmethod
    def _judged(batch: Batch, claim: Claim, came: Outcome | Applied, done: list[Claim]) -> None:
        if isinstance(came, Outcome):
            batch.settle(came)
        elif came is not Applied.BLOCKED:
            done.append(claim)

    def _work(self, tx: Transaction, claim: ItemClaim) -> Applied:
        protocol, envelope, now = self._popped(tx, claim)
        applied = applying.apply(tx, protocol, envelope, now)
        hit("protocols.applied")
        return applied

    def _keep(self, tx: Transaction, claim: ItemClaim) -> Applied:
        protocol, envelope, now = self._popped(tx, claim)
        applying.place(tx, protocol, envelope, now)
        hit("protocols.kept")
        return Applied.NEW

    def _one(
        self,
        claim: Claim,
        work: Callable[[Transaction, ItemClaim], Applied],
        waiting: list[Claim] | None = None,
    ) -> Outcome | Applied:
        """Apply an item and remove it; how it failed, if it did; BLOCKED: it is among `waiting`."""
        assert isinstance(claim, ItemClaim)
        try:
            return self._database.run(lambda tx: work(tx, claim), patient=False)
        except Blocked as blocked:
            if waiting is None:
                return of_error(claim, blocked)
            waiting.append(claim)
            return Applied.BLOCKED
        except (Interrupted, LeaseLost):
            raise
        except (StoreBusy, StoreUnavailable) as error:
            returned = OutcomeKind.RETURNED
            return Outcome(claim, returned, failure=failure_of(error), delay_seconds=1.0)
        except NEVER as error:
            return Outcome(claim, OutcomeKind.DEAD, failure=failure_of(error))
        except Exception as error:  # noqa: BLE001 - a projector may raise anything
            return of_error(claim, error)

    def _all_at_once(self, claims: Sequence[Claim]) -> bool:
        """Apply them in one transaction; False if one fails, and nothing is done then."""

        def fast(tx: Transaction) -> None:
            self._apply_popped(tx, claims, together=True)

        def careful(tx: Transaction) -> None:
            self._apply_popped(tx, claims, together=False)

        try:
            try:
                self._database.run(fast, patient=False)
            except Mixed:
                self._database.run(careful, patient=False)
        except Interrupted:
            raise
        except Exception:  # noqa: BLE001 - each is tried by itself, and tells what it met
            return False
        return True

    def _apply_popped(self, tx: Transaction, claims: Sequence[Claim], *, together: bool) -> None:
        now = log.now_of(tx)
        by_protocol: dict[str, list[Envelope]] = {}
        for claim in claims:
            assert isinstance(claim, ItemClaim)
            protocol, envelope, _ = self._popped(tx, claim)
            by_protocol.setdefault(protocol.name, []).append(envelope)
        for name, envelopes in by_protocol.items():
            apply = applying.apply_all if together else applying.place_all
            apply(tx, self._registry.found(name), envelopes, now)
        hit("protocols.applied")

    def _popped(self, tx: Transaction, claim: ItemClaim) -> tuple[Protocol, Envelope, int]:
        row: Row = self._pop.run(tx, claim)
        name, blob, received_by, created_at_ms, enveloped, now = row
        protocol = self._registry.found(name)
        if enveloped:
            return protocol, decode(bytes(blob)), now
        envelope = applying.received(protocol, bytes(blob), received_by, created_at_ms)
        return protocol, envelope, now


def enveloped(envelope: Envelope) -> Wire:
    """An envelope, to be taken in."""
    envelope.check()
    return Wire(blob=encode(envelope), enveloped=True, received_by=envelope.received_by)

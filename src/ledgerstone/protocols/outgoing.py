"""`outgoing`: bytes for an address, handed to the protocol's sender until it takes them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select

from ledgerstone.engine.source import Claim, Handler
from ledgerstone.errors import Hopeless, TooLarge
from ledgerstone.items import Begun, Delete, ItemClaim, Items, ItemSource, State
from ledgerstone.protocols.refusals import refused_in
from ledgerstone.protocols.registry import Registry, of_names
from ledgerstone.protocols.results import OutgoingEnqueue
from ledgerstone.protocols.states import MOVES, ItemState
from ledgerstone.protocols.tables import KEY_CHARS_MAX, outgoing
from ledgerstone.store.database import Database
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

CHANNEL = "protocols.outgoing"

_enqueue = InsertRows(
    "protocols.send",
    outgoing,
    columns=("protocol", "address", "blob"),
    values={"created_at_ms": now_ms()},
)
_blob = Statement(
    "protocols.outgoing_blob", select(outgoing.c.blob).where(outgoing.c.id == bindparam("id_"))
)


def items(attempts_max: int) -> Items:
    """The declaration; an item is parked after so many attempts."""
    return Items(
        name=CHANNEL,
        table=outgoing,
        key=(outgoing.c.id,),
        due=outgoing.c.available_at_ms,
        order=(outgoing.c.available_at_ms, outgoing.c.id),
        state=State(
            column=outgoing.c.status,
            due=ItemState.QUEUED,
            held=ItemState.PROCESSING,
            moves=MOVES,
            ended=frozenset({ItemState.PARKED}),
            dead=ItemState.PARKED,
        ),
        attempt=Begun(outgoing.c.attempts),
        attempts_max=attempts_max,
        token=outgoing.c.token,
        lease=outgoing.c.lease_until_ms,
        worker=outgoing.c.worker,
        crashes=outgoing.c.crashes,
        error=outgoing.c.last_error,
        carries=(outgoing.c.protocol, outgoing.c.address),
        done=Delete(),
        index="idx_outgoing__due",
        refuse=refused_in(CHANNEL),
    )


def enqueue(tx: Transaction, protocol: str, wish: OutgoingEnqueue, *, bytes_max: int) -> None:
    """Have bytes sent, once the transaction has committed."""
    if wish.address:
        check_name(wish.address, "an address", chars_max=KEY_CHARS_MAX)
    if len(wish.blob) > bytes_max:
        message = f"what goes out has {len(wish.blob)} bytes, at most {bytes_max} are accepted"
        raise TooLarge(message, hint="raise store.body_bytes_max, or send it as a file")
    row = {"protocol_": protocol, "address_": wish.address, "blob_": wish.blob}
    _enqueue.run(tx, [row])
    tx.wake(CHANNEL)


class OutgoingSource(ItemSource):
    """Sends what goes out, of the protocols that have a sender."""

    def __init__(self, registry: Registry, database: Database[Any]) -> None:
        senders = [each.name for each in registry if each.send is not None]
        super().__init__(
            items(registry.settings.attempts_max),
            Handler(self._send),
            backoff=registry.backoff,
            where=of_names(outgoing.c.protocol, senders),
        )
        self._registry = registry
        self._database = database

    def _send(self, claim: Claim) -> None:
        assert isinstance(claim, ItemClaim)
        name, address = claim.carries
        send = self._registry.found(name).send
        if send is None:
            raise Hopeless(f"the protocol {name} has no sender")
        with self._database.reading() as tx:
            row = _blob.one(tx, id_=claim.parts[0])
        if row is not None:
            send(address, bytes(row[0]))

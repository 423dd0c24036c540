"""Parked items of `incoming` and `outgoing`: listed, queued again, and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Column, Table, bindparam, delete, func, or_, select, update

from ledgerstone.protocols.states import ItemState
from ledgerstone.protocols.tables import incoming, outgoing
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.pages import Keyset
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

Queue = Literal["incoming", "outgoing"]
QUEUES: tuple[Queue, ...] = ("incoming", "outgoing")


class ParkedItem(msgspec.Struct, frozen=True):
    """An item that failed for good; `to` is who receives it, or the address that it goes to."""

    id: int
    to: str
    bytes: int
    created_at_ms: int
    attempts: int
    last_error: str | None


class _Statements(NamedTuple):
    page: Keyset[ParkedItem]
    retry: Statement
    retry_one: Statement
    drop_one: Statement


def _statements(table: Table, to: Column[str]) -> _Statements:
    mine = or_(table.c.protocol == bindparam("protocol_"), table.c.protocol == "")
    parked = (mine, table.c.status == ItemState.PARKED.value)
    one = (*parked, table.c.id == bindparam("id_", type_=BigInteger()))
    queued = {"status": ItemState.QUEUED.value, "attempts": 0, "crashes": 0}
    again = update(table).values(available_at_ms=now_ms(), **queued)
    shown = (table.c.created_at_ms, table.c.attempts, table.c.last_error)
    return _Statements(
        Keyset(
            f"protocols.parked_{table.name}",
            select(table.c.id, to, func.length(table.c.blob), *shown).where(*parked),
            order=[table.c.id],
            make=lambda row: ParkedItem(*row),
        ),
        Statement(f"protocols.retry_{table.name}", again.where(*parked)),
        Statement(f"protocols.retry_one_{table.name}", again.where(*one)),
        Statement(f"protocols.drop_parked_{table.name}", delete(table).where(*one)),
    )


_OF: dict[Queue, _Statements] = {
    "incoming": _statements(incoming, incoming.c.received_by),
    "outgoing": _statements(outgoing, outgoing.c.address),
}


def page_of(queue: Queue) -> Keyset[ParkedItem]:
    """Pages of what is parked in a queue, the oldest first; parameter: `protocol_`."""
    return _OF[queue].page


def retry(
    tx: Transaction, protocol: str, queue: Queue, *, numbers: Sequence[int] | None = None
) -> int:
    """Queue parked items again, with all their attempts; how many. Without numbers all of them."""
    of = _OF[queue]
    if numbers is None:
        count = of.retry.run(tx, protocol_=protocol)
    else:
        count = sum(of.retry_one.run(tx, protocol_=protocol, id_=each) for each in numbers)
    if count:
        tx.wake(f"protocols.{queue}")
    return count


def drop(tx: Transaction, protocol: str, queue: Queue, numbers: Sequence[int]) -> int:
    """Remove parked items for good; how many."""
    return sum(_OF[queue].drop_one.run(tx, protocol_=protocol, id_=each) for each in numbers)

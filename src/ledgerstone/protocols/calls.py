"""What can be asked of protocols in a transaction: `tx.protocols`."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerstone.errors import BadInput
from ledgerstone.protocols import deferred, incoming, outgoing, parked
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.incoming import Wire
from ledgerstone.protocols.parked import ParkedItem, Queue, page_of
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.results import DeferredEnqueue, OutgoingEnqueue
from ledgerstone.protocols.values import Values
from ledgerstone.store.sql.pages import Page
from ledgerstone.store.transaction import Transaction

PARKED_ROWS = 50


class Protocols:
    """The queues of the protocols of a ledger, in one transaction.

    `protocol` is the name of one; where a ledger has only one it may be left out.
    """

    def __init__(self, tx: Transaction, registry: Registry) -> None:
        self._tx = tx
        self._registry = registry

    def receive(self, blob: bytes, *, received_by: str = "", protocol: str = "") -> None:
        """Take in bytes that arrived."""
        self.receive_many([Wire(blob=blob, received_by=received_by)], protocol=protocol)

    def receive_many(self, wires: Sequence[Wire], *, protocol: str = "") -> int:
        """Take in many; how many items."""
        found = self._registry.found(protocol)
        bytes_max = self._tx.database.settings.body_bytes_max
        return incoming.receive(self._tx, found, wires, bytes_max=bytes_max)

    def put(self, envelope: Envelope, *, protocol: str = "") -> None:
        """Take in an event, to be applied like one that arrived."""
        self.receive_many([incoming.enveloped(envelope)], protocol=protocol)

    def defer(
        self,
        envelope: Envelope,
        *,
        partition: str,
        key: str | None = None,
        delay_seconds: float = 0.0,
        protocol: str = "",
    ) -> bool:
        """Apply an event later, in the order of its partition; False if the key was used before."""
        wish = DeferredEnqueue(envelope, partition, key, delay_seconds)
        return deferred.enqueue(self._tx, self._registry.found(protocol).name, wish)

    def send(self, blob: bytes, *, address: str = "", protocol: str = "") -> None:
        """Have the protocol's sender send bytes."""
        bytes_max = self._tx.database.settings.body_bytes_max
        name = self._registry.found(protocol).name
        outgoing.enqueue(self._tx, name, OutgoingEnqueue(blob, address), bytes_max=bytes_max)

    def parked(
        self,
        *,
        queue: Queue = "incoming",
        protocol: str = "",
        limit: int = PARKED_ROWS,
        cursor: str | None = None,
    ) -> Page[ParkedItem]:
        """A page of what is parked in a queue, the oldest first."""
        name = self._registry.found(protocol).name
        return page_of(queue).read(self._tx, limit=limit, cursor=cursor, protocol_=name)

    def retry_parked(
        self,
        *,
        queue: Queue | None = None,
        ids: Sequence[int] | None = None,
        protocol: str = "",
    ) -> int:
        """Queue what is parked again; how many items.

        - `queue` None: what is parked in both; `ids` are numbers of one queue.
        """
        name = self._registry.found(protocol).name
        if queue is None:
            if ids is not None:
                raise BadInput("numbers of items belong to a queue: name it")
            return sum(parked.retry(self._tx, name, each) for each in parked.QUEUES)
        return parked.retry(self._tx, name, queue, numbers=ids)

    def drop_parked(
        self, ids: Sequence[int], *, queue: Queue = "incoming", protocol: str = ""
    ) -> int:
        """Remove parked items for good; how many."""
        return parked.drop(self._tx, self._registry.found(protocol).name, queue, ids)

    def values(self, *, protocol: str = "") -> Values:
        """The flags and counters of a protocol."""
        return Values(self._tx, self._registry.found(protocol).name)

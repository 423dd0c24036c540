"""What can be asked of events in a transaction of an event loop."""

from __future__ import annotations

from ledgerstone.protocols.calls import Protocols
from ledgerstone.store.async_calls import AsyncCalls, awaited


class AsyncProtocols(AsyncCalls[Protocols]):
    """`Protocols`, awaited; values are read and written in `tx.run`."""

    receive = awaited(Protocols.receive)
    receive_many = awaited(Protocols.receive_many)
    put = awaited(Protocols.put)
    defer = awaited(Protocols.defer)
    send = awaited(Protocols.send)
    parked = awaited(Protocols.parked)
    retry_parked = awaited(Protocols.retry_parked)
    drop_parked = awaited(Protocols.drop_parked)

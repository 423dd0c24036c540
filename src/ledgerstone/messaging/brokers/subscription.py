"""The contract of a subscription, which receives from the queue of a broker.

Implementations lie under `subscriptions/`. A subscription does not use the database: it hands over
deliveries and is told for each whether the broker may delete it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Delivery(Protocol):
    """One delivery of a message.

    - `ack` acknowledges it; `back` returns it to the broker.
    - Both may be called once, from any thread. They have no effect after the connection was lost,
      because the broker redelivers the message.
    """

    @property
    def body(self) -> bytes: ...

    @property
    def content_type(self) -> str | None: ...

    @property
    def headers(self) -> Mapping[str, Any]: ...

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the protocol, where given: `message_id`, `type`, `timestamp`."""
        ...

    @property
    def redelivered(self) -> bool: ...

    def ack(self) -> None: ...

    def back(self) -> None: ...


class Subscription(Protocol):
    """Receives from one queue.

    - `start` connects, and calls `deliver` for each delivery in order, on a thread of its own.
      `deliver` must not block.
    - At most the prefetch count of deliveries is unacknowledged.
    - It reconnects after a lost connection, with growing pauses. `trouble` says why it is not
      connected, `connected` whether it is.
    - `stop` ends `deliver` calls; deliveries can still be acknowledged. `close` sends all
      acknowledgements and ends the connection; the broker requeues the rest.
    - Between `stop` and the end of the connection no other consumer of the queue becomes active:
      the broker requeues unacknowledged messages in their order before it delivers to another.
    """

    @property
    def connected(self) -> bool: ...

    @property
    def trouble(self) -> str | None: ...

    def start(self, deliver: Callable[[Delivery], None]) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

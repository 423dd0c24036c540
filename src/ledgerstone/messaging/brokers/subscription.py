"""What receives messages from a broker's queue. One file each under `subscriptions/`.

A subscription knows nothing of the database: it hands over what arrives and is told, for each,
whether the broker may forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Delivery(Protocol):
    """One arrival of a message, as it came.

    - `ack` tells the broker that it is done with; `back` that it is to be delivered again.
    - Both may be called from any thread, once; where the connection was lost meanwhile they do
      nothing, for the broker delivers it again anyway.
    """

    @property
    def body(self) -> bytes: ...

    @property
    def content_type(self) -> str | None: ...

    @property
    def headers(self) -> Mapping[str, Any]: ...

    @property
    def properties(self) -> Mapping[str, str]:
        """What the protocol has beside headers, where given: `message_id`, `type`, `timestamp`."""
        ...

    @property
    def redelivered(self) -> bool: ...

    def ack(self) -> None: ...

    def back(self) -> None: ...


class Subscription(Protocol):
    """Receives from one queue.

    - `start` connects and calls `deliver` for each arrival, in order, on a thread of its own;
      `deliver` does not block.
    - No more are outstanding than the prefetch allows.
    - A lost connection is made again by itself, with growing pauses; `trouble` says why there is
      none, `connected` whether there is.
    - `stop` hands over no more, what is outstanding may still be acknowledged; `close` tells the
      broker what was acknowledged and ends the connection, and the rest goes back to the queue.
    - Between `stop` and the end of the connection no other consumer of the queue is preferred: what
      goes back is there, in its order, before another consumer gets a message.
    """

    @property
    def connected(self) -> bool: ...

    @property
    def trouble(self) -> str | None: ...

    def start(self, deliver: Callable[[Delivery], None]) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

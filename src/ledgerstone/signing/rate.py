"""A rate limit for each peer: a bucket of tokens, of which every message takes one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

BURST = 100
PER_SECOND = 10
PEERS_MAX = 1024
NANOS_PER_SECOND = 1_000_000_000


class RateLimiter:
    """Allows each peer `burst` messages at once, and `per_second` in the long run.

    - `clock` answers nanoseconds: a monotonic clock, not the time of day.
    - At most `peers_max` peers are remembered. Peers whose buckets are full again are forgotten; if
      there are none, a new peer is refused, so that a flood of names refills nobody's bucket.
    - Threads may share it.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        burst: int = BURST,
        per_second: int = PER_SECOND,
        peers_max: int = PEERS_MAX,
    ) -> None:
        self._clock = clock
        self._cost_nanos = NANOS_PER_SECOND // per_second
        self._room_nanos = burst * self._cost_nanos
        self._peers_max = peers_max
        self._full_at: dict[str, int] = {}
        """When the bucket of each peer is full again if the peer sends nothing more."""
        self._lock = Lock()

    def allows(self, peer: str) -> bool:
        """Takes a token of the peer, if there is one."""
        now = self._clock()
        with self._lock:
            full_at = max(self._full_at.get(peer, now), now) + self._cost_nanos
            if full_at - now > self._room_nanos or not self._remembers(peer, now):
                return False
            self._full_at[peer] = full_at
            return True

    def _remembers(self, peer: str, now: int) -> bool:
        """Whether there is room to remember the peer."""
        if peer not in self._full_at and len(self._full_at) >= self._peers_max:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        return peer in self._full_at or len(self._full_at) < self._peers_max

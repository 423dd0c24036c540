"""Circuit breakers: while a target is down, nothing is sent to it, and no attempt is counted.

    closed ──so many failures in a row──▶ open ──after the cool-down──▶ half open
       ▲                                   ▲                               │
       │                                   └───────the probe fails─────────┤
       └──────────────────────────the probe succeeds───────────────────────┘

Half open, one claim is run as a probe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _State:
    __slots__ = ("failures", "open_until", "probing")

    def __init__(self) -> None:
        self.failures = 0
        self.open_until: float | None = None
        self.probing = False


class Breakers:
    """One breaker for each target, by its name."""

    def __init__(
        self, *, failures: int, cooldown_seconds: float, monotonic: Callable[[], float]
    ) -> None:
        self._failures = failures
        self._cooldown = cooldown_seconds
        self._monotonic = monotonic
        self._states: dict[str, _State] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._states)

    def allow(self, target: str) -> bool:
        """Whether something may be sent to the target now; a probe is allowed once."""
        with self._lock:
            state = self._states.get(target)
            if state is None or state.open_until is None:
                return True
            if self._monotonic() < state.open_until or state.probing:
                return False
            state.probing = True
            return True

    def succeeded(self, target: str) -> None:
        """The target answered: closed again."""
        with self._lock:
            self._states.pop(target, None)

    def undecided(self, target: str) -> None:
        """The attempt says nothing about the target.

        If it was the probe, another one may follow.
        """
        with self._lock:
            state = self._states.get(target)
            if state is not None:
                state.probing = False

    def failed(self, target: str) -> float:
        """The target did not answer; for how many seconds nothing should be sent to it."""
        with self._lock:
            state = self._states.setdefault(target, _State())
            state.failures += 1
            if state.probing or state.failures >= self._failures:
                state.probing = False
                state.open_until = self._monotonic() + self._cooldown
            return self._wait(state)

    def wait_seconds(self, target: str) -> float:
        """How long until the target may be tried again."""
        with self._lock:
            state = self._states.get(target)
            return self._wait(state) if state is not None else 0.0

    def open_targets(self) -> frozenset[str]:
        """Targets to which nothing may be sent now."""
        if not self._states:
            return frozenset()
        now = self._monotonic()
        with self._lock:
            return frozenset(
                name
                for name, state in self._states.items()
                if state.open_until is not None and (now < state.open_until or state.probing)
            )

    def _wait(self, state: _State) -> float:
        if state.open_until is None:
            return 0.0
        return max(0.0, state.open_until - self._monotonic())

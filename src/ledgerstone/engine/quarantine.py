"""Suspects: items with which workers died, and that are given up if one more does.

When a process dies, nobody knows which of its claims was the cause: each counts as one, also if it
only waited for a place. So items for which one more death is the end begin one after the other, and
that one is about to begin is on record before it does:

    claimed ──▶ waits ──▶ on record (its worker's row) ──▶ runs ──▶ settled, the next one's turn

If the process dies now, the one on record is given up. Those that waited go back with their attempt
refunded (`LastHeartbeat.waited`): an item that kills its workers takes none of its like along.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ledgerstone.engine.source import Claim
from ledgerstone.store.wakeup import WakeSignal

TURN_SECONDS_MAX = 5.0
"""One that runs for longer does not keep the next one waiting: what kills does so soon."""
WAIT_SECONDS_MAX = 10.0
"""A suspect that has waited here for so long goes back, for another worker."""


def is_suspect(crashes: int, crashes_max: int, *, last: bool) -> bool:
    """Whether workers died with an item, and it is given up with the next (`last`: by attempts)."""
    return crashes > 0 and (last or crashes + 1 >= crashes_max)


class Quarantine:
    """Where the suspects of a worker take turns, whichever of its pumps has claimed them."""

    def __init__(self, record: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self.begun: tuple[str, ...] = ()
        """The marks of those inside; when nobody is, of the last one."""
        self._record = record
        self._monotonic = monotonic
        self._inside: list[tuple[Claim, float]] = []
        self._lock = threading.Lock()
        self._wake_signals: list[WakeSignal] = []

    def subscribe(self, wake_signal: WakeSignal) -> None:
        """From now on `leave` notifies the signal."""
        self._wake_signals.append(wake_signal)

    def enter(self, claim: Claim) -> bool:
        """Put on record that it begins; False if it is not its turn yet."""
        with self._lock:
            now = self._monotonic()
            if any(now - since < TURN_SECONDS_MAX for _, since in self._inside):
                return False
            before = self.begun
            self._inside.append((claim, now))
            self.begun = tuple(each.mark for each, _ in self._inside)
        try:
            self._record()
        except BaseException:
            # It does not begin: nobody must be told that it had.
            self.leave(claim)
            self.begun = before
            raise
        return True

    def leave(self, claim: Claim) -> None:
        """It is settled, if it was inside."""
        with self._lock:
            left = [each for each in self._inside if each[0] is not claim]
            if len(left) == len(self._inside):
                return
            self._inside = left
            if left:
                self.begun = tuple(each.mark for each, _ in left)
        for wake_signal in self._wake_signals:
            wake_signal.notify()


class QuarantineQueue:
    """Those of one pump, in the order in which they were claimed."""

    def __init__(
        self,
        quarantine: Quarantine,
        *,
        crashes_max: int,
        wake_signal: WakeSignal,
        monotonic: Callable[[], float],
    ) -> None:
        quarantine.subscribe(wake_signal)
        self.quarantine = quarantine
        self._crashes_max = crashes_max
        self._wake_signal = wake_signal
        self._monotonic = monotonic
        # Several threads: one begins them, others take back what is late, lost or to be stopped.
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Claim, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def are(self, claim: Claim) -> bool:
        """Whether this is one."""
        return is_suspect(claim.crashes, self._crashes_max, last=claim.is_last)

    def kept_back(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Let the suspects among these wait; the others."""
        if not any(claim.crashes for claim in claims):
            return claims
        since = self._monotonic()
        with self._lock:
            self._waiting.extend((claim, since) for claim in claims if self.are(claim))
        self._wake_signal.notify()
        return [claim for claim in claims if not self.are(claim)]

    def admitted(self) -> Claim | None:
        """The next one, if it may begin now; that is on record then."""
        with self._lock:
            if not self._waiting:
                return None
            task = self._waiting.popleft()
        entered = False
        try:
            # Not under the lock: this asks the database.
            entered = self.quarantine.enter(task[0])
        finally:
            if not entered:
                with self._lock:
                    self._waiting.appendleft(task)
        return task[0] if entered else None

    def drop(self) -> list[Claim]:
        """Take back all that wait."""
        return self._drop(lambda _: True)

    def drop_late(self) -> list[Claim]:
        """Take back what has waited too long; the others look whether it is their turn."""
        moment = self._monotonic() - WAIT_SECONDS_MAX
        dropped = self._drop(lambda task: task[1] < moment)
        if self._waiting:
            self._wake_signal.notify()
        return dropped

    def drop_beyond(self, most: int) -> list[Claim]:
        """Take back the last ones, so that no more than this wait."""
        with self._lock:
            return [self._waiting.pop()[0] for _ in range(len(self._waiting) - most)]

    def remove(self, claim: Claim) -> bool:
        """Take this one back; False if it does not wait."""
        return bool(self._drop(lambda task: task[0] is claim))

    def _drop(self, goes: Callable[[tuple[Claim, float]], bool]) -> list[Claim]:
        with self._lock:
            before, self._waiting = self._waiting, deque()
            self._waiting.extend(task for task in before if not goes(task))
            return [task[0] for task in before if goes(task)]

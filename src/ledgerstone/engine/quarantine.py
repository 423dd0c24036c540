"""Quarantine: crash suspects, items that become dead letters after one more crash, run one by one.

After a crash nobody knows which claim of the worker caused it, so a crash is counted for each of
them, also for claims that only waited for a place. Therefore items for which one more crash is the
last begin one after the other, and each is on record before it begins:

    claimed ──▶ waits ──▶ on record (row of the worker) ──▶ runs ──▶ settled ──▶ the next one

If the process crashes now, the item on record is given up. Suspects that waited are returned with
their attempt refunded (`LastHeartbeat.waited`), so that one fatal item does not end the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ledgerstone.engine.source import Claim
from ledgerstone.store.wakeup import WakeSignal

TURN_SECONDS_MAX = 5.0
"""After this time the next suspect begins beside a running one: a fatal item crashes soon."""
WAIT_SECONDS_MAX = 10.0
"""A suspect that has waited for so long is returned, for another worker."""


def is_suspect(crashes: int, crashes_max: int, *, last: bool) -> bool:
    """Whether an item has crashed workers and one more crash is its last (`last`: by attempts)."""
    return crashes > 0 and (last or crashes + 1 >= crashes_max)


class Quarantine:
    """Admits the crash suspects of all pumps of a worker one by one.

    `record` writes the row of the worker, which names the suspects that have begun.
    """

    def __init__(self, record: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self.begun: tuple[str, ...] = ()
        """The marks of the running suspects; if none runs, of the last one."""
        self._record = record
        self._monotonic = monotonic
        self._inside: list[tuple[Claim, float]] = []
        self._lock = threading.Lock()
        self._wake_signals: list[WakeSignal] = []

    def subscribe(self, wake_signal: WakeSignal) -> None:
        """From now on `leave` notifies the signal."""
        self._wake_signals.append(wake_signal)

    def enter(self, claim: Claim) -> bool:
        """Put on record that this claim begins; False if another suspect runs."""
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
            # The claim does not begin: no later record may name it.
            self.leave(claim)
            self.begun = before
            raise
        return True

    def leave(self, claim: Claim) -> None:
        """The claim is settled, if it was admitted."""
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
    """The crash suspects of one pump, in the order of their claims."""

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
        # One thread begins suspects; others remove those that are late, lost or to be returned.
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Claim, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def are(self, claim: Claim) -> bool:
        """Whether this claim is a crash suspect."""
        return is_suspect(claim.crashes, self._crashes_max, last=claim.is_last)

    def kept_back(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Queue the suspects among these; the other claims."""
        if not any(claim.crashes for claim in claims):
            return claims
        since = self._monotonic()
        with self._lock:
            self._waiting.extend((claim, since) for claim in claims if self.are(claim))
        self._wake_signal.notify()
        return [claim for claim in claims if not self.are(claim)]

    def admitted(self) -> Claim | None:
        """The next suspect, if it may begin now; its begin is on record then."""
        with self._lock:
            if not self._waiting:
                return None
            task = self._waiting.popleft()
        entered = False
        try:
            # Not under the lock: this is a round trip to the database.
            entered = self.quarantine.enter(task[0])
        finally:
            if not entered:
                with self._lock:
                    self._waiting.appendleft(task)
        return task[0] if entered else None

    def drop(self) -> list[Claim]:
        """Remove all that wait."""
        return self._drop(lambda _: True)

    def drop_late(self) -> list[Claim]:
        """Remove those that have waited too long, and wake the pump for the others."""
        moment = self._monotonic() - WAIT_SECONDS_MAX
        dropped = self._drop(lambda task: task[1] < moment)
        if self._waiting:
            self._wake_signal.notify()
        return dropped

    def drop_beyond(self, most: int) -> list[Claim]:
        """Remove the last ones, so that at most `most` wait."""
        with self._lock:
            return [self._waiting.pop()[0] for _ in range(len(self._waiting) - most)]

    def remove(self, claim: Claim) -> bool:
        """Remove this one; False if it does not wait."""
        return bool(self._drop(lambda task: task[0] is claim))

    def _drop(self, goes: Callable[[tuple[Claim, float]], bool]) -> list[Claim]:
        with self._lock:
            before, self._waiting = self._waiting, deque()
            self._waiting.extend(task for task in before if not goes(task))
            return [task[0] for task in before if goes(task)]

"""One attempt: a claim, the handler that runs it, and who reports how it came out.

    begin ──▶ run ──▶ ended by its handler ──────────▶ judged, reported
                └───▶ told to stop ──▶ takes no notice ──▶ abandoned: reported at once

Either the handler's thread reports an attempt or the engine does, never both: `end` answers True
once. An abandoned handler may go on; its claim is settled, so nothing that it writes counts.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.cancellation import Cancellation
from ledgerstone.engine import outcomes
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.errors import HandlerTimeout, LedgerstoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledgerstone.engine.source import Claim, Handler, Outcome

_lock = threading.Lock()
_abandoned: set[Attempt] = set()
"""Those whose handler still runs."""


class Attempt:
    """One handler at work on one claim."""

    __slots__ = (
        "_over",
        "abandoned",
        "begun",
        "cancellation",
        "claim",
        "error",
        "handler",
        "started",
        "told_at",
        "value",
    )

    def __init__(self, claim: Claim, handler: Handler) -> None:
        self.claim = claim
        self.handler = handler
        self.cancellation = Cancellation()
        self.begun = False
        """Of an async handler: whether its task has come to its first step."""
        self.started = perf_counter()
        self.told_at: float | None = None
        self.value: Any = None
        """What the handler returned."""
        self.error: BaseException | None = None
        """What the handler raised."""
        self.abandoned = False
        self._over = False

    def cancel(self, reason: LedgerstoneError) -> bool:
        """Tell the handler to stop; False if it has settled its claim, or does so now."""
        if self.told_at is None:
            self.told_at = perf_counter()
        return self.cancellation.cancel(reason)

    def is_overdue(self, now: float) -> bool:
        """Whether the handler ran past its limit and was not told so yet."""
        limit = self.claim.timeout_seconds
        return limit is not None and self.told_at is None and now - self.started > limit

    def end(self) -> bool:
        """Whether the caller is the one to report it; nobody else is, from now on."""
        with _lock:
            mine, self._over = not self._over, True
            if not mine:
                _abandoned.discard(self)
            return mine

    def abandon(self) -> bool:
        """Give up the handler, which runs on; False if it has just ended."""
        with _lock:
            if self._over:
                return False
            self._over = self.abandoned = True
            _abandoned.add(self)
            return True

    def judged(self, came_out: Callable[[Claim, Any], Outcome | None]) -> Outcome | None:
        """How it came out, by what the handler returned or raised and what it was told.

        - A handler that ran past its limit has timed out, whatever it returned.
        - One that heard of another reason ends with that reason.
        - One that had finished before it could hear of it has finished.
        """
        error, self.error = self.error, None
        reason = self.cancellation.reason
        if reason is not None and (self.cancellation.heard or isinstance(reason, HandlerTimeout)):
            return self.told(reason)
        if error is not None:
            return self._given_up(outcomes.of_error(self.claim, error), error)
        try:
            return came_out(self.claim, self.value)
        except Exception as unreadable:  # noqa: BLE001 - the value's own code may raise anything
            return outcomes.of_error(self.claim, unreadable)

    def told(self, reason: LedgerstoneError) -> Outcome:
        """How it came out, if this is why its handler had to stop."""
        return self._given_up(outcomes.told(self.claim, reason), reason)

    def _given_up(self, outcome: Outcome, error: BaseException) -> Outcome:
        """The outcome; dead at once if the handler gives up after such an error."""
        gives_up = self.handler.gives_up
        if gives_up is None or outcome.verdict is not OutcomeKind.FAILED or not gives_up(error):
            return outcome
        return msgspec.structs.replace(outcome, verdict=OutcomeKind.DEAD)


def abandoned_handlers() -> int:
    """Handlers of this process that run on though they were given up."""
    return len(_abandoned)

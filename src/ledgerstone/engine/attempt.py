"""One attempt: a claim, the handler that runs it, and how it came out.

    begin ──▶ run ──▶ the handler ends ─────────────────▶ judge ──▶ record
                └───▶ told to stop ──▶ takes no notice ──▶ abandoned ──▶ record

Either the handler's thread records an attempt or the engine does, never both: `end` answers True
once. An abandoned handler may go on; its claim is settled, so nothing that it writes counts.
`engine/attempt_steps.py` has the four steps.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.cancellation import Cancellation
from ledgerstone.engine import outcomes
from ledgerstone.engine.source import OutcomeKind

if TYPE_CHECKING:
    from ledgerstone.engine.source import Claim, Handler, Outcome
    from ledgerstone.errors import LedgerstoneError

_lock = threading.Lock()
_abandoned: set[Attempt] = set()
"""Those whose handler still runs."""


class Attempt:
    """One call of a handler for one claim."""

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
        "waiting_since",
    )

    def __init__(self, claim: Claim, handler: Handler) -> None:
        self.claim = claim
        self.handler = handler
        self.cancellation = Cancellation()
        self.begun = False
        """Of an async handler: whether its task has come to its first step."""
        self.waiting_since = self.started = perf_counter()
        """When it began to wait for a place, and when it got one."""
        self.told_at: float | None = None
        self.value: Any = None
        """The return value of the handler."""
        self.error: BaseException | None = None
        """The error that the handler raised."""
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
        """Whether the caller has to record it; no other caller gets True."""
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

    def told(self, reason: LedgerstoneError) -> Outcome:
        """The outcome, if this is why the handler had to stop."""
        return self._given_up(outcomes.told(self.claim, reason), reason)

    def failed(self, error: BaseException) -> Outcome:
        """The outcome, if the handler raised this error."""
        return self._given_up(outcomes.of_error(self.claim, error), error)

    def _given_up(self, outcome: Outcome, error: BaseException) -> Outcome:
        """The outcome; dead at once if the handler gives up after such an error."""
        gives_up = self.handler.gives_up
        if gives_up is None or outcome.verdict is not OutcomeKind.FAILED or not gives_up(error):
            return outcome
        return msgspec.structs.replace(outcome, verdict=OutcomeKind.DEAD)


def abandoned_handlers() -> int:
    """How many handlers of this process run on after they were abandoned."""
    return len(_abandoned)

"""Cancellation of handlers: the next call of the handler raises the reason.

Nothing is raised into a running thread from outside. An exception that arrives between two
bytecodes may interrupt a driver's call, or come between a lock and its release.

    engine             cancel(reason) ──▶ reason
    handler's thread   check()            raises the reason, before a call starts
                       close_gate()       the handler settles its own claim: from here on only the
                                          fencing token decides, and a reason comes too late

The store calls `check` before it begins a transaction, before each statement and before each
commit; a job does so in each of its methods. A handler that computes for long calls `job.check()`.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar, Token

from ledgerstone.errors import LedgerstoneError

_current: ContextVar[Cancellation | None] = ContextVar("ledgerstone_cancellation", default=None)
_lock = threading.Lock()
"""Between `cancel` and `close_gate`; both only set a flag."""


class Cancellation:
    """Whether one running handler has to stop, and why.

    - Only the first reason counts.
    - While the gate is closed, the reason is not raised.
    - `heard`: the reason was raised in the handler, or its task was canceled.
    """

    __slots__ = ("_closed", "given", "heard")

    def __init__(self) -> None:
        self.given: LedgerstoneError | None = None
        """The reason, also one that came too late."""
        self._closed = False
        self.heard = False

    @property
    def reason(self) -> LedgerstoneError | None:
        """Why the handler has to stop; None while it may go on."""
        return None if self._closed else self.given

    def cancel(self, reason: LedgerstoneError) -> bool:
        """Have the handler stop; False if it settles its claim now, or has done so."""
        with _lock:
            if self.given is None:
                self.given = reason
            return not self._closed

    def check(self) -> None:
        """Raise the reason, if there is one."""
        reason = self.reason
        if reason is not None:
            self.heard = True
            # A new error for each raise: an error keeps the traceback of its last raise.
            raise type(reason)(reason.message)

    def close_gate(self) -> None:
        """The handler settles its claim now; raises the reason if there is one."""
        with _lock:
            if self.given is None:
                self._closed = True
        self.check()

    def open_gate(self) -> None:
        """Open the gate: the settlement did not commit."""
        self._closed = False

    def begin(self) -> Token[Cancellation | None]:
        """Use this one for the checks of this thread or task from now on."""
        return _current.set(self)

    @staticmethod
    def leave(token: Token[Cancellation | None]) -> None:
        """The handler has ended."""
        _current.reset(token)


def current() -> Cancellation:
    """The one of the running handler; outside of a handler, one that is never canceled."""
    return _current.get() or Cancellation()


def check() -> None:
    """Raise the reason for the running handler to stop, if there is one."""
    running = _current.get()
    if running is not None:
        running.check()

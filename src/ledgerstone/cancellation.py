"""How a running handler is told to stop: it meets the reason at its next call.

Nothing is raised into a running thread from outside. An error that arrives between two bytecodes
may land inside a driver's call, or between a lock and its release, and corrupts what it hits.

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

    - The first reason counts.
    - Once the gate is closed, a reason waits until it is opened again.
    - `heard`: the reason was raised in the handler, or an async handler was canceled with it.
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
            # One of its own for each raise: an error collects the traceback of where it was raised.
            raise type(reason)(reason.message)

    def close_gate(self) -> None:
        """The handler settles its claim now; raises the reason if one was first."""
        with _lock:
            if self.given is None:
                self._closed = True
        self.check()

    def open_gate(self) -> None:
        """What would have settled the claim did not commit."""
        self._closed = False

    def begin(self) -> Token[Cancellation | None]:
        """From now on what this thread or task calls is checked against this one."""
        return _current.set(self)

    @staticmethod
    def leave(token: Token[Cancellation | None]) -> None:
        """The handler has ended."""
        _current.reset(token)


def current() -> Cancellation:
    """That of the handler that runs here; where none runs, one that nobody cancels."""
    return _current.get() or Cancellation()


def check() -> None:
    """Raise the reason why the handler that runs here has to stop, if there is one."""
    running = _current.get()
    if running is not None:
        running.check()

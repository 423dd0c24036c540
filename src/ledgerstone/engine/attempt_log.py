"""Log lines about attempts that failed: one for each, with its traceback and what follows.

    WARNING  job mail.send 0190…: attempt 2 of 5 failed: ValueError: no address; next try in 90 s
    ERROR    job mail.send 0190…: attempt 5 of 5 failed: ValueError: no address; it is a dead letter

A line about a settlement is written when the settlement has committed: `tx.after_commit`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from ledgerstone import log_context
from ledgerstone.engine.source import Failure

DEAD_LETTER = "it is a dead letter"


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that failed, for the log."""

    what: str
    """The item, for people: "job mail.send 0190…"."""
    attempt: int
    attempts_max: int | None = None
    failure: Failure
    next_seconds: float | None
    """When it is tried again; None: no other attempt is made."""
    end: str = DEAD_LETTER
    """The end of the item if no other attempt is made."""
    ids: Mapping[str, str | int] = {}

    def write(self, log: logging.Logger) -> None:
        """Write the line: a warning, or an error if no other attempt is made."""
        level = logging.ERROR if self.next_seconds is None else logging.WARNING
        if not log.isEnabledFor(level):
            return
        of = f" of {self.attempts_max}" if self.attempts_max is not None else ""
        follows = self.end if self.next_seconds is None else _next_try(self.next_seconds)
        code, message = self.failure.code, self.failure.message
        words = f"{code}: {message}" if message else code
        with log_context.bound(**self.ids):
            record = log.makeRecord(
                log.name,
                level,
                __file__,
                0,
                "%s: attempt %d%s failed: %s; %s",
                (self.what, self.attempt, of, words, follows),
                None,
            )
            # The traceback is text: every formatter appends `exc_text`.
            record.exc_text = (self.failure.traceback or "").rstrip() or None
            log.handle(record)


def _next_try(seconds: float) -> str:
    return f"next try in {seconds:.3g} s" if seconds > 0 else "next try at once"

"""What the running handler works on, for log lines: ids of a job or of a message.

A handler's own log lines, and those of every library that it calls, belong to one job or message.
The ids are kept in a context variable, which threads of our executors and tasks have by themselves;
whoever writes log lines asks for `current()`. `ledgerstone work` adds the ids to every line.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType

_NOTHING: Mapping[str, str | int] = {}

_current: ContextVar[Mapping[str, str | int]] = ContextVar(
    "ledgerstone_log_context", default=_NOTHING
)


def current() -> Mapping[str, str | int]:
    """The ids of the job or message that is worked on here; empty where none is."""
    return _current.get()


class bound:  # noqa: N801 - used as a function is
    """`with bound(job_id=…):` log lines of the block belong to this."""

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: str | int) -> None:
        self._ids = ids
        self._token: Token[Mapping[str, str | int]] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self._ids)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)

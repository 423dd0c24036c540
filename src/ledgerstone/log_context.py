"""The ids of the running handler's job or message, for log lines.

The ids are in a context variable of the thread or task. `ledgerstone work` adds them to each log
line of a handler and of the libraries that it calls.
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
    """The ids of the running handler's job or message; empty outside of a handler."""
    return _current.get()


class bound:  # noqa: N801 - used as a function is
    """`with bound(job_id=…):` sets the ids for the block."""

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

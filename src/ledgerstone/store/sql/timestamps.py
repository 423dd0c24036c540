"""Timestamps as the databases return them, as datetimes in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@overload
def moment_of(kept: datetime | str) -> datetime: ...


@overload
def moment_of(kept: None) -> None: ...


def moment_of(kept: datetime | str | None) -> datetime | None:
    """A datetime in UTC: PostgreSQL returns a time zone, MySQL none, SQLite text."""
    if kept is None:
        return None
    moment = datetime.fromisoformat(kept) if isinstance(kept, str) else kept
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def moment_at(ms: int) -> datetime:
    """Milliseconds since 1970 as a datetime in UTC, limited to the range of datetime."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _FIRST if ms < 0 else _LAST

"""Moments as the databases give them back, as one kind of value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def moment_of(kept: datetime | str) -> datetime: ...


@overload
def moment_of(kept: None) -> None: ...


def moment_of(kept: datetime | str | None) -> datetime | None:
    """A moment in UTC: PostgreSQL answers it in a zone, MySQL without one, SQLite as text."""
    if kept is None:
        return None
    moment = datetime.fromisoformat(kept) if isinstance(kept, str) else kept
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)

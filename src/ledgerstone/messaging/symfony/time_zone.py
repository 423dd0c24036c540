"""Timestamps in the tables that are shared with Symfony Messenger, which writes local time.

The columns have no time zone; `messaging.time_zone` names it. The database converts, because its
clock decides, with the changes of daylight saving time around today. In the hour that is repeated
in autumn a timestamp may be read one hour early.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import BigInteger, ColumnElement, Table, case, literal_column

from ledgerstone.errors import SettingsError
from ledgerstone.store.sql.expressions import second
from ledgerstone.store.sql.timestamps import moment_of

ZONE = "time_zone"
"""The key of the time zone in the info of a table."""
UTC_ZONE = "UTC"
DAYS_BEFORE = 400
DAYS_AFTER = 11 * 366
"""A message is published at most ten years ahead."""
_STEP = timedelta(days=1)


def check_zone(name: str) -> None:
    """Raises SettingsError unless the time zone exists."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        problem = f"messaging.time_zone: unknown time zone {name!r}"
        raise SettingsError([f"{problem}; allowed: a name such as Europe/Berlin"]) from None


def kept(table: Table, ms: ColumnElement[int]) -> ColumnElement[Any]:
    """Milliseconds since 1970 as the timestamp that the table stores."""
    zone = table.info[ZONE]
    return second(ms) if zone == UTC_ZONE else second(ms + _offset(zone, ms))


@overload
def moment_in(table: Table, found: datetime | str) -> datetime: ...


@overload
def moment_in(table: Table, found: None) -> None: ...


def moment_in(table: Table, found: datetime | str | None) -> datetime | None:
    """A timestamp that the table stores, in UTC."""
    zone = table.info[ZONE]
    if found is None or zone == UTC_ZONE:
        return moment_of(found)
    return moment_of(found).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


class _Span(NamedTuple):
    """The offset of local time until a moment."""

    until_ms: int
    ahead_ms: int


def _offset(zone: str, ms: ColumnElement[int]) -> ColumnElement[int]:
    """The offset of this time zone at that moment."""
    *spans, last = _spans(zone)
    rest = _constant(last)
    if not spans:
        return rest
    return case(*[(ms < span.until_ms, _constant(span)) for span in spans], else_=rest)


def _constant(span: _Span) -> ColumnElement[int]:
    return literal_column(str(span.ahead_ms), BigInteger())


@cache
def _spans(zone: str) -> list[_Span]:
    place = ZoneInfo(zone)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    spans = []
    at, end = today - DAYS_BEFORE * _STEP, today + DAYS_AFTER * _STEP
    while at < end:
        if _ahead(place, at) != _ahead(place, at + _STEP):
            spans.append(_Span(_ms(_change(place, at)), _ahead(place, at)))
        at += _STEP
    return [*spans, _Span(_ms(end), _ahead(place, end))]


def _change(place: ZoneInfo, day: datetime) -> datetime:
    """The moment of this day at which the offset changes."""
    before, after = day, day + _STEP
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) / 2
        if _ahead(place, middle) == _ahead(place, day):
            before = middle
        else:
            after = middle
    return after


def _ahead(place: ZoneInfo, at: datetime) -> int:
    offset = at.astimezone(place).utcoffset() or timedelta()
    return round(offset.total_seconds() * 1000)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)

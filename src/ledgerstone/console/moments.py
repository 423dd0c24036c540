"""Moments: those that people write, an exact one or how long ago, and the database's own."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sqlalchemy import select

from ledgerstone.errors import BadInput
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

_now = Statement("console.now", select(now_ms()))

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"([0-9]{1,6})([smhd])")


def given(option: str, text: str | None) -> datetime | None:
    """The moment that an option names; BadInput that says how to write one."""
    if text is None:
        return None
    hint = "write it as 2027-01-31T08:00:00Z or 2027-01-31T09:00:00+01:00"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{option} is no time: {text!r}", hint=hint) from error
    if moment.tzinfo is None:
        raise BadInput(f"{option} has no time zone: {text!r}", hint=hint)
    return moment


def given_or_ago(option: str, text: str | None) -> datetime | None:
    """The same; `90s`, `30m`, `2h` and `7d` are so long ago."""
    if text is None or (found := _AGO.fullmatch(text)) is None:
        return given(option, text)
    return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})


def now_of(tx: Transaction) -> datetime:
    """The moment by the database's clock, which is the one that its jobs go by."""
    ((ms,),) = _now.rows(tx)
    return datetime.fromtimestamp(ms / 1000, UTC)

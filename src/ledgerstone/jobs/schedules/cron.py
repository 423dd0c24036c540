"""Cron expressions: five fields, read in a time zone, as moments in milliseconds since 1970.

The behaviour at a change of clocks depends on the hour field alone:

- An expression that names hours means times of the day. A time that is skipped runs once, at the
  next one that exists; several that are skipped together run once together. A time that comes twice
  runs the first time only.
- An expression of all hours (`*`, `0-23`) means intervals. It goes on by time that really passes:
  an hour that is skipped is left out, an hour that comes twice is run through twice.

cronsim does the same with one difference, kept from Debian's cron: there a minute or hour field
that begins with `*` makes any expression one of intervals, so that `*/15 2 * * *` would be left out
on one day of the year and run twice as often on another. Fields are therefore spelled out before
they are given to it. It also answers a time that comes twice always as the first one, which may lie
before the moment that was asked about: such answers are passed over here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from enum import Enum
from itertools import islice
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from ledgerstone.errors import BadInput
from ledgerstone.store.sql.names import check_name

CRON_CHARS_MAX = 100
ZONE_CHARS_MAX = 64
ON_TIME_SECONDS = 60
"""A moment that is not longer past is on time; it is no misfire."""
MISSED_MAX = 100
"""Moments that are made up for after a standstill: the latest ones."""
YEARS_MAX = 50
"""How far ahead a moment is looked for."""

FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31, L (the last) or LW (the last weekday)"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of the week", "0 to 7 or SUN to SAT, 5L (the last Friday), 5#2 (the second)"),
)
_HOURS = set(range(24))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_WINDOW_MS = 60_000


class Misfire(Enum):
    """How moments are handled at which no worker ran."""

    SKIP = "skip"
    """No job."""
    ONCE = "once"
    """One run stands for all that is due, for the latest moment of it."""
    ALL = "all"
    """Each is made up for, at most `MISSED_MAX`."""


class Cron(msgspec.Struct, frozen=True):
    """A cron expression in a time zone: made by `parsed`."""

    text: str
    time_zone: str
    spelled: str
    zone: tzinfo

    def moments(self, after_ms: int) -> Iterator[int]:
        """Its moments after this one, in order; it ends where none comes for 50 years."""
        last = after_ms
        start = datetime.fromtimestamp(after_ms // 1000, UTC).astimezone(self.zone)
        for found in CronSim(self.spelled, start):
            moment = _ms(found)
            if moment > last:
                last = moment
                yield moment

    def after(self, after_ms: int) -> int:
        """Its first moment after this one; BadInput if there is none."""
        moment = next(self.moments(after_ms), None)
        if moment is None:
            message = f"the cron expression {self.text!r} names no moment in {YEARS_MAX} years"
            raise BadInput(message, hint="its day, month and day of the week do not go together")
        return moment

    def latest(self, first_ms: int, last_ms: int, count: int) -> list[int]:
        """The latest of its moments from the first to the last of these, in order."""
        # Looked for in windows that grow backwards: after a long standstill there may be millions.
        window = _FIRST_WINDOW_MS
        while True:
            start = max(first_ms, last_ms - window)
            found = self._between(start, last_ms)
            if len(found) >= count or start == first_ms:
                return found[-count:]
            window *= 2

    def _between(self, first_ms: int, last_ms: int) -> list[int]:
        found: list[int] = []
        for moment in self.moments(first_ms - 1):
            if moment > last_ms:
                break
            found.append(moment)
        return found


def parsed(text: str, time_zone: str) -> Cron:
    """The expression, checked; BadInput says which field is wrong."""
    check_name(text, "a cron expression", chars_max=CRON_CHARS_MAX)
    zone = zone_of(time_zone)
    fields = text.split()
    if len(fields) != len(FIELDS):
        message = f"a cron expression has {len(FIELDS)} fields, {text!r} has {len(fields)}"
        raise BadInput(message, hint=f"they are {', '.join(name for name, _ in FIELDS)}")
    for i, ((name, takes), field) in enumerate(zip(FIELDS, fields, strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[i] = field
        if _read(" ".join(alone)) is None:
            message = f"the {name} of the cron expression {text!r} is wrong: {field!r}"
            raise BadInput(message, hint=f"it takes {takes}; *, lists (1,2), ranges (1-5), /steps")
    whole = _read(" ".join(fields))
    if whole is None:
        message = f"the day of the month of {text!r} is in none of its months: {fields[2]!r}"
        raise BadInput(message)
    return Cron(text, time_zone, _spelled(whole, fields), zone)


def zone_of(name: str) -> tzinfo:
    """A time zone by its name; BadInput if this machine does not know it."""
    check_name(name, "a time zone", chars_max=ZONE_CHARS_MAX)
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        message = f"no time zone {name!r} is known here"
        hint = "name one like Europe/Berlin; if it is one, install the package tzdata"
        raise BadInput(message, hint=hint) from error


def due(cron: Cron, first_ms: int, now_ms: int, misfire: Misfire) -> list[int]:
    """The moments to run now, of those from the first that was not run yet.

    - A moment that is less than `ON_TIME_SECONDS` past is run whatever the policy.
    """
    match misfire:
        case Misfire.SKIP:
            on_time = now_ms - ON_TIME_SECONDS * 1000 + 1
            return cron.latest(max(first_ms, on_time), now_ms, 1)
        case Misfire.ONCE:
            return cron.latest(first_ms, now_ms, 1)
        case Misfire.ALL:
            return cron.latest(first_ms, now_ms, MISSED_MAX)


def preview(cron: Cron, after_ms: int, count: int) -> list[datetime]:
    """Its next moments, in its zone."""
    return [moment_in(ms, cron.zone) for ms in islice(cron.moments(after_ms), count)]


def moment_in(ms: int, zone: tzinfo) -> datetime:
    """A moment as the clocks of a zone show it."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone(zone)


def _ms(moment: datetime) -> int:
    # Not timestamp(): a float is not needed for what is a whole number of seconds.
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1000


def _read(expression: str) -> CronSim | None:
    try:
        return CronSim(expression, _EPOCH)
    except CronSimError:
        return None


def _spelled(read: CronSim, fields: list[str]) -> str:
    """The expression with its minutes, and its hours unless they are all, one by one."""
    hours = "*" if read.hours == _HOURS else _listed(read.hours)
    return " ".join([_listed(read.minutes), hours, *fields[2:]])


def _listed(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))

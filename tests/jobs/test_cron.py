"""Cron expressions: what they name, when clocks are changed, and what is made up for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerstone.errors import BadInput
from ledgerstone.jobs.schedules.cron import FIELDS, MISSED_MAX, Cron, Misfire, due, parsed, preview
from tests.harness.sizes import sized

EXAMPLES = sized(30, full=1000)
"""How many are drawn for each clause."""
UNHURRIED = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo")
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@st.composite
def fields(draw: st.DrawFn, least: int, most: int) -> str:
    """A field: everything, every so many, or a list."""
    number = st.integers(least, most)
    kind = draw(st.sampled_from(("*", "step", "list", "range")))
    match kind:
        case "step":
            return f"*/{draw(st.integers(1, most))}"
        case "list":
            return ",".join(map(str, draw(st.lists(number, min_size=1, max_size=4))))
        case "range":
            first, last = sorted((draw(number), draw(number)))
            return f"{first}-{last}"
        case _:
            return "*"


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """An expression that comes at least once a year: its day is one that every month has."""
    minute, hour, _, month, weekday = (draw(fields(*bounds)) for bounds in RANGES)
    return f"{minute} {hour} {draw(fields(1, 28))} {month} {draw(st.sampled_from(('*', weekday)))}"


MOMENTS = st.integers(
    int(datetime(2001, 1, 1, tzinfo=UTC).timestamp() * 1000),
    int(datetime(2090, 1, 1, tzinfo=UTC).timestamp() * 1000),
)
CHANGES = st.sampled_from(
    (
        datetime(2026, 3, 8, 7, tzinfo=UTC),
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 1, tzinfo=UTC),
        datetime(2026, 11, 1, 6, tzinfo=UTC),
        datetime(2026, 4, 4, 15, tzinfo=UTC),
        datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
        datetime(2017, 10, 15, 3, tzinfo=UTC),
    )
)
AROUND = st.builds(
    lambda change, ms: int(change.timestamp() * 1000) + ms,
    CHANGES,
    st.integers(-3 * HOUR_MS, 3 * HOUR_MS),
)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def shown(text: str, zone: str, start: str, count: int) -> list[str]:
    """The moments after this one, by the clocks of the zone."""
    after = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
    return [f"{at:%m-%d %H:%M %z}" for at in preview(parsed(text, zone), ms(after), count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
        ("30 6 * * MON-FRI", ["01-01 06:30", "01-02 06:30", "01-05 06:30"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
        ("0 9 * * 5#2", ["01-09 09:00", "02-13 09:00", "03-13 09:00"]),
        ("0 9 * jan,feb 5L", ["01-30 09:00", "02-27 09:00", "01-29 09:00"]),
        # Two kinds of day mean either.
        ("0 0 13 * 5", ["01-02 00:00", "01-09 00:00", "01-13 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
    ],
)
def test_what_expressions_mean(text: str, expected: list[str]) -> None:
    """Steps, lists, ranges, names, last and n-th days are as in cron."""
    found = shown(text, "UTC", "2026-01-01T00:00", 3)

    assert found == [f"{moment} +0000" for moment in expected]


@pytest.mark.parametrize(
    ("zone", "start", "expected"),
    [
        ("Europe/Berlin", "2026-03-28T12:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
        ("America/New_York", "2026-03-07T12:00", ["03-08 03:00 -0400", "03-09 02:30 -0400"]),
    ],
)
def test_a_time_that_is_skipped(zone: str, start: str, expected: list[str]) -> None:
    """A time that does not exist runs once, at the next one that does."""
    assert shown("30 2 * * *", zone, start, 2) == expected
    assert shown("30 */2 * * *", zone, start, 20)[7:9] == [
        expected[0],
        expected[0].replace("03:00", "04:30"),
    ]
    # Several that are skipped run once together, also where the field begins with a star.
    for several in ("0,15,30 2 * * *", "*/15 2 * * *", "* 2 * * *"):
        assert shown(several, zone, start, 1) == expected[:1]
        assert shown(several, zone, start, 2)[1].startswith(expected[1][:6] + "02:00")
    # One that is skipped and one that exists at the moment it moves to are one.
    assert shown("0 2,3 * * *", zone, start, 2)[1].startswith(expected[1][:6])


@pytest.mark.parametrize(
    ("zone", "hour", "start", "first", "second"),
    [
        ("Europe/Berlin", 2, "2026-10-24T12:00", "10-25 02:{} +0200", "10-26 02:{} +0100"),
        ("America/New_York", 1, "2026-10-31T12:00", "11-01 01:{} -0400", "11-02 01:{} -0500"),
    ],
)
def test_a_time_that_comes_twice(zone: str, hour: int, start: str, first: str, second: str) -> None:
    """A time that exists twice runs the first time only, also where a field begins with a star."""
    assert shown(f"30 {hour} * * *", zone, start, 2) == [first.format("30"), second.format("30")]
    assert shown(f"*/30 {hour} * * *", zone, start, 4) == [
        first.format("00"),
        first.format("30"),
        second.format("00"),
        second.format("30"),
    ]


@pytest.mark.parametrize(
    ("zone", "hour", "again"),
    [("Europe/Berlin", 2, "2026-10-25T02:10"), ("America/New_York", 1, "2026-11-01T01:10")],
)
def test_asked_when_it_comes_the_second_time(zone: str, hour: int, again: str) -> None:
    """Within the hour that comes again, the next moment is not the one of the first time."""
    now = datetime.fromisoformat(again).replace(tzinfo=ZoneInfo(zone), fold=1)

    (following,) = preview(parsed(f"30 {hour} * * *", zone), ms(now), 1)

    assert following - now > timedelta(hours=23)
    assert due(parsed(f"30 {hour} * * *", zone), ms(now) - 2 * HOUR_MS, ms(now), Misfire.ONCE) == [
        ms(now) - 40 * MINUTE_MS
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("text", ["0 * * * *", "0 0-23 * * *", "*/30 */1 * * *"])
def test_intervals_go_on(zone: str, text: str) -> None:
    """An expression of all hours goes by time that really passes, whatever the clocks do."""
    step = 30 * MINUTE_MS if text.startswith("*") else HOUR_MS
    for month in (3, 10):
        start = ms(datetime(2026, month, 1, tzinfo=UTC))
        found = parsed(text, zone)._between(start, start + 40 * DAY_MS)

        assert {after - before for before, after in pairwise(found)} == {step}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("60 * * * *", "the minute of"),
        ("* 24 * * *", "the hour of"),
        ("* * 0 * *", "the day of the month of"),
        ("* * * 13 *", "the month of"),
        ("* * * * 8", "the day of the week of"),
        ("* * * MON *", "the month of"),
        ("5-1 * * * *", "the minute of"),
        ("*/0 * * * *", "the minute of"),
        ("* * * * 1#6", "the day of the week of"),
        ("0 0 30 2 *", "is in none of its months: '30'"),
        ("* * * *", "has 5 fields, '* * * *' has 4"),
        ("0 * * * * *", "has 5 fields, '0 * * * * *' has 6"),
        ("@daily", "has 5 fields, '@daily' has 1"),
        ("", "has 1 to 100 characters"),
        ("* * * * " + "1," * 50, "has 1 to 100 characters"),
        ("* * * *\0 *", "no text"),
    ],
)
def test_a_wrong_field_is_named(text: str, words: str) -> None:
    """BadInput says which field is wrong, and what it holds."""
    with pytest.raises(BadInput, match=re.escape(words)):
        parsed(text, "UTC")


def test_what_never_comes_is_refused() -> None:
    """An expression whose fields are fine but never meet has no next moment: BadInput."""
    never = parsed("* * */20 * 1L", "Europe/Berlin")

    with pytest.raises(BadInput, match="names no moment in 50 years"):
        never.after(0)


@pytest.mark.parametrize(
    "zone", ["", "Mars/Olympus", "Europe", "../UTC", "/etc/localtime", "tzdata.zi", "x" * 65, "a\0"]
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    """A zone that is none, in whatever way, is BadInput."""
    with pytest.raises(BadInput):
        parsed("* * * * *", zone)


@pytest.mark.torture
@UNHURRIED
@given(st.text(max_size=30) | st.lists(st.text("0159*/-,#LWMON", max_size=6)).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is given, it is read or it is BadInput; nothing else is raised."""
    try:
        read = parsed(text, "Europe/Berlin")
    except BadInput:
        return
    assert len(read.spelled.split()) == len(FIELDS)


@pytest.mark.torture
@UNHURRIED
@given(expressions(), st.sampled_from(ZONES), MOMENTS | AROUND)
def test_moments_follow_each_other(text: str, zone: str, start: int) -> None:
    """Moments come in order, each once, after what was asked, also if that is one of them."""
    cron = parsed(text, zone)

    found = [ms(moment) for moment in preview(cron, start, 5)]

    assert found == sorted(set(found))
    assert all(moment > start and moment % MINUTE_MS == 0 for moment in found)
    assert [cron.after(moment) for moment in found[:-1]] == found[1:]


@pytest.mark.torture
@UNHURRIED
@given(expressions(), MOMENTS)
def test_moments_match_their_fields(text: str, start: int) -> None:
    """In UTC each moment has the minute, hour and month that the fields name."""
    minute, hour, _, month, _ = text.split()

    for moment in preview(parsed(text, "UTC"), start, 3):
        assert moment.minute in named(minute, 0, 59)
        assert moment.hour in named(hour, 0, 23)
        assert moment.month in named(month, 1, 12)


@pytest.mark.torture
@UNHURRIED
@given(
    expressions(),
    st.sampled_from(ZONES),
    MOMENTS | AROUND,
    st.integers(0, 2 * DAY_MS),
    st.integers(1, 100),
)
def test_the_latest_are_the_last_of_all(
    text: str, zone: str, first: int, lasting: int, count: int
) -> None:
    """Looking from the end finds the same moments as going through all of them."""
    cron = parsed(text, zone)

    every = cron._between(first, first + lasting)

    assert cron.latest(first, first + lasting, count) == every[-count:]


@pytest.mark.parametrize("text", ["* * * * *", "* 0 1 1 *", "0 0 1 1 *"])
def test_a_long_standstill_is_cheap(text: str) -> None:
    """After thirty years only the latest moments are looked for."""
    now = ms(datetime(2056, 6, 1, tzinfo=UTC))

    found = due(parsed(text, "UTC"), ms(datetime(2026, 1, 1, tzinfo=UTC)), now, Misfire.ALL)

    assert len(found) == (31 if text.startswith("0 0") else MISSED_MAX)
    assert found == sorted(found)


def test_misfires() -> None:
    """Of what was missed `skip` runs nothing, `once` the latest, `all` each; the punctual runs."""
    hourly = parsed("0 * * * *", "UTC")
    midnight = ms(datetime(2026, 1, 1, tzinfo=UTC))
    hours = [midnight + i * HOUR_MS for i in range(4)]

    def run(now: int) -> dict[str, list[int]]:
        return {policy.value: due(hourly, midnight, now, policy) for policy in Misfire}

    assert run(hours[0]) == {"skip": hours[:1], "once": hours[:1], "all": hours[:1]}
    assert run(hours[0] + MINUTE_MS - 1)["skip"] == hours[:1]
    assert run(hours[0] + MINUTE_MS)["skip"] == []
    assert run(hours[2] + 30 * MINUTE_MS) == {"skip": [], "once": hours[2:3], "all": hours[:3]}
    assert run(hours[3]) == {"skip": hours[3:4], "once": hours[3:4], "all": hours}


@pytest.mark.torture
@UNHURRIED
@given(
    expressions(),
    st.sampled_from(ZONES),
    MOMENTS | AROUND,
    st.lists(st.integers(1, 3 * HOUR_MS), min_size=1, max_size=8),
)
def test_looking_often_runs_each_once(text: str, zone: str, start: int, pauses: list[int]) -> None:
    """However irregularly it is looked, `all` runs each moment once, in order."""
    cron = parsed(text, zone)
    following, now, ran = cron.after(start), start, list[int]()
    for pause in pauses:
        now += pause
        if following <= now:
            ran += due(cron, following, now, Misfire.ALL)
            following = cron.after(now)

    assert ran == due_all(cron, start, pauses)


def due_all(cron: Cron, start: int, pauses: list[int]) -> list[int]:
    """All moments, without those that are more than can be made up for after one pause."""
    found, now = list[int](), start
    for pause in pauses:
        found += cron._between(now + 1, now + pause)[-MISSED_MAX:]
        now += pause
    return found


def named(field: str, least: int, most: int) -> set[int]:
    """The numbers that a field names."""
    if field.startswith("*"):
        return set(range(least, most + 1, int(field[2:] or 1)))
    if "-" in field:
        first, last = map(int, field.split("-"))
        return set(range(first, last + 1))
    return set(map(int, field.split(",")))

"""The schedule contract: each moment once per cluster, whatever workers and clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from ledgerstone import errors
from ledgerstone.engine.duties import Duties
from ledgerstone.jobs import JobRow, Limit, Status
from ledgerstone.jobs.schedules.cron import MISSED_MAX, Misfire
from ledgerstone.jobs.schedules.rows import Schedule, job_schedule
from ledgerstone.jobs.schedules.schedules import (
    DUE_MAX,
    Declared,
    NewSchedule,
    ScheduleRunner,
    Schedules,
    duty,
    key_of,
)
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from tests.harness.ledgers import undone
from tests.harness.threads import together

RACERS = 4
MINUTE, HOUR, DAY = 60, 3600, 86_400
START = datetime(2026, 1, 1, tzinfo=UTC)
ORG = "00000000-0000-0000-0000-00000000002a"


class ScheduleContract:
    """What holds for schedules. Fixtures: `ledger` and `clock`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """A clock that stands at the beginning of a day."""
        return ManualClock(round(START.timestamp() * 1000))

    def test_it_comes_again_and_again(self, ledger: Ledger, clock: ManualClock) -> None:
        """At each of its moments one job is enqueued, with its payload, and none in between."""
        put(ledger, "report", "0 * * * *", payload={"day": 1}, org=ORG, queue="slow", priority=7)

        ran = []
        for _ in range(12):
            ran.append(run(ledger))
            clock.advance(15 * MINUTE)

        assert ran == [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
        newest, oldest = enqueued(ledger)
        assert oldest.key == "schedule:report:2026-01-01T01:00:00Z"
        assert newest.key == "schedule:report:2026-01-01T02:00:00Z"
        assert (newest.type, newest.payload, newest.org_id) == ("work", {"day": 1}, ORG)
        assert (newest.queue, newest.priority) == ("slow", 7)
        assert newest.requested_by == newest.correlation_id == "schedule:report"
        kept = got(ledger, "report")
        assert (kept.last_job_id, kept.last_at) == (newest.id, START + timedelta(hours=2))
        assert kept.next_at == START + timedelta(hours=3)

    def test_it_goes_by_its_zone(self, ledger: Ledger, clock: ManualClock) -> None:
        """The moments are those of the clocks in its zone, in summer and in winter."""
        put(ledger, "early", "30 6 * * *", time_zone="America/New_York")
        clock.advance(180 * DAY)
        put(ledger, "late", "30 6 * * *", time_zone="America/New_York")

        assert got(ledger, "early").next_at == datetime(2026, 1, 1, 11, 30, tzinfo=UTC)
        assert got(ledger, "late").next_at == datetime(2026, 6, 30, 10, 30, tzinfo=UTC)

    def test_runners_race(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of several workers whose duty is due at the same moment, together they enqueue one."""
        put(ledger, "report", "* * * * *")
        runners = [Duties(ledger.database, [duty(ledger.kinds)]) for _ in range(RACERS)]
        ran = []

        for _ in range(5):
            clock.advance(MINUTE)
            ran += together(*[runner.tick for runner in runners])

        assert sum(did.get("schedules", 0) for did in ran) == 5
        assert len({job.key for job in enqueued(ledger)}) == len(enqueued(ledger)) == 5

    def test_runners_race_without_a_lease(self, ledger: Ledger, clock: ManualClock) -> None:
        """Also where the lease does not keep them apart, each moment has one job."""
        for number in range(10):
            put(ledger, f"report {number}", "* * * * *", misfire="all")
        clock.advance(3 * MINUTE)

        ran = together(*[partial(run, ledger) for _ in range(RACERS)])

        assert sum(ran) == len(enqueued(ledger)) == 30

    def test_what_is_undone_comes_again(self, ledger: Ledger, clock: ManualClock) -> None:
        """A turn that did not commit has enqueued nothing; the next one does it."""
        put(ledger, "report", "* * * * *")
        clock.advance(MINUTE)

        with undone(ledger) as tx:
            assert ScheduleRunner(ledger.kinds).run(tx) == 1

        assert enqueued(ledger) == []
        assert run(ledger) == 1

    def test_missed_and_skipped(self, ledger: Ledger, clock: ManualClock) -> None:
        """`skip`: what was missed while no worker ran is left out; it goes on with the next."""
        put(ledger, "report", "0 * * * *", misfire="skip")
        clock.advance(3.5 * HOUR)

        assert run(ledger) == 0
        skipped = got(ledger, "report")
        assert (skipped.last_at, skipped.next_at) == (None, START + timedelta(hours=4))
        clock.advance(0.5 * HOUR + 5)
        assert run(ledger) == 1
        assert keys(ledger) == [key_at("report", 4)]

    def test_missed_and_run_once(self, ledger: Ledger, clock: ManualClock) -> None:
        """`once`: all that was missed while no worker ran is one job."""
        put(ledger, "report", "0 * * * *", misfire="once")
        clock.advance(3.5 * HOUR)

        assert [run(ledger), run(ledger)] == [1, 0]
        assert keys(ledger) == [key_at("report", 3)]
        assert got(ledger, "report").next_at == START + timedelta(hours=4)

    def test_missed_and_all_run(self, ledger: Ledger, clock: ManualClock) -> None:
        """`all`: each moment that was missed while no worker ran has its job."""
        put(ledger, "report", "0 * * * *", misfire="all")
        clock.advance(3.5 * HOUR)

        assert [run(ledger), run(ledger)] == [3, 0]
        assert sorted(keys(ledger)) == [key_at("report", hour) for hour in (1, 2, 3)]

    def test_not_more_than_a_hundred(self, ledger: Ledger, clock: ManualClock) -> None:
        """`all` makes up for the latest hundred, however long nobody was there."""
        put(ledger, "report", "* * * * *", misfire="all")
        clock.advance(2 * 365 * DAY)

        assert [run(ledger), run(ledger)] == [MISSED_MAX, 0]
        latest = START + timedelta(days=2 * 365)
        assert key_of("report", round(latest.timestamp() * 1000)) in keys(ledger)

    def test_many_take_turns(self, ledger: Ledger, clock: ManualClock) -> None:
        """One turn takes a bounded number of schedules, those that wait longest; none is lost."""
        with ledger.transaction() as tx:
            for number in range(DUE_MAX + 5):
                Schedules(tx, ledger.kinds).put(f"report {number}", "work", "0 * * * *")
        clock.advance(HOUR)

        assert [run(ledger), run(ledger), run(ledger)] == [DUE_MAX, 5, 0]

    def test_paused_and_resumed(self, ledger: Ledger, clock: ManualClock) -> None:
        """While it is paused its moments pass; resumed, it goes on with the next one."""
        put(ledger, "report", "0 * * * *", misfire="all")
        at(ledger).pause("report")
        clock.advance(2.5 * HOUR)
        while_paused = run(ledger)

        at(ledger).pause("report")
        paused = got(ledger, "report")
        at(ledger).resume("report")

        assert (while_paused, run(ledger)) == (0, 0)
        assert (paused.paused_at, paused.next_at) == (START, None)
        assert got(ledger, "report").paused_at is None
        assert got(ledger, "report").next_at == START + timedelta(hours=3)
        clock.advance(HOUR)
        assert run(ledger) == 1

    def test_resuming_what_runs(self, ledger: Ledger, clock: ManualClock) -> None:
        """Resuming one that is not paused changes nothing: what is due stays due."""
        put(ledger, "report", "0 * * * *")
        clock.advance(HOUR)

        at(ledger).resume("report")

        assert run(ledger) == 1

    def test_put_again(self, ledger: Ledger, clock: ManualClock) -> None:
        """The same content changes nothing: what is due stays due, what is paused stays paused."""
        given: dict[str, Any] = {"payload": {"b": [1, 2.5, None], "a": "ä"}, "priority": 3}
        first = put(ledger, "report", "0 * * * *", **given)
        clock.advance(HOUR)

        second = put(ledger, "report", "0 * * * *", **given)

        assert second == first
        assert run(ledger) == 1
        at(ledger).pause("report")
        assert put(ledger, "report", "0 * * * *", **given).paused_at is not None

    def test_put_otherwise(self, ledger: Ledger, clock: ManualClock) -> None:
        """Other content replaces it, and other times count from now."""
        put(ledger, "report", "0 * * * *", payload={"n": 1})
        clock.advance(1.25 * HOUR)

        replaced = put(
            ledger, "report", "30 * * * *", payload={"n": True}, misfire="skip", queue="slow"
        )

        assert run(ledger) == 0
        assert replaced.next_at == START + timedelta(hours=1.5)
        assert (replaced.payload, replaced.misfire) == ({"n": True}, Misfire.SKIP)
        assert (replaced.queue, replaced.created_at) == ("slow", START)
        clock.advance(0.25 * HOUR)
        assert run(ledger) == 1
        assert enqueued(ledger)[0].payload == {"n": True}
        moved = put(ledger, "report", "30 * * * *", time_zone="Asia/Kathmandu")
        assert moved.next_at == START + timedelta(hours=1.75)

    def test_what_is_due_survives_new_content(self, ledger: Ledger, clock: ManualClock) -> None:
        """With the same times and another payload, a moment that is due runs, with the new one."""
        put(ledger, "report", "0 * * * *", payload={"n": 1})
        clock.advance(HOUR)

        put(ledger, "report", "0 * * * *", payload={"n": 2})

        assert run(ledger) == 1
        assert enqueued(ledger)[0].payload == {"n": 2}

    def test_put_at_once(self, ledger: Ledger) -> None:
        """Of several workers that put the same name at the same moment, none fails."""
        racing = [partial(put, ledger, "report", "0 * * * *") for _ in range(RACERS)]

        found = together(*racing)

        assert len(set(map(str, found))) == 1

    def test_removed(self, ledger: Ledger, clock: ManualClock) -> None:
        """A removed one enqueues no more; its jobs stay; its name is free and knows no past."""
        put(ledger, "report", "0 * * * *")
        clock.advance(HOUR)
        run(ledger)

        at(ledger).remove("report")

        clock.advance(HOUR)
        assert (run(ledger), len(enqueued(ledger))) == (0, 1)
        assert put(ledger, "report", "0 * * * *").last_at is None

    def test_what_is_not_there(self, ledger: Ledger) -> None:
        """A name that no schedule has is NotFound, whatever is asked of it."""
        for ask in ("get", "remove", "pause", "resume", "trigger"):
            with pytest.raises(errors.NotFound, match="'nobody'"):
                getattr(at(ledger), ask)("nobody")

    def test_triggered(self, ledger: Ledger, clock: ManualClock) -> None:
        """Triggered, it runs now, each time, with who did it on record, and also when paused."""
        put(ledger, "report", "0 * * * *", payload={"n": 1})
        at(ledger).pause("report")
        clock.advance(90)

        first = at(ledger).trigger("report", by="ann")
        second = at(ledger).trigger("report")

        assert first.id != second.id
        with ledger.reading() as tx:
            (event,) = tx.jobs.events(first.id).rows
            row = tx.jobs.get(first.id)
        assert event.detail == {"by": "ann", "correlation_id": "schedule:report"}
        assert (row.payload, row.requested_by, row.key) == ({"n": 1}, "ann", None)
        kept = got(ledger, "report")
        assert kept.last_job_id == second.id
        assert kept.last_at == START + timedelta(seconds=90)

    def test_triggering_moves_nothing(self, ledger: Ledger, clock: ManualClock) -> None:
        """A schedule that was triggered keeps its moments."""
        put(ledger, "report", "0 * * * *")
        at(ledger).trigger("report")
        triggered = got(ledger, "report")
        clock.advance(HOUR)

        assert triggered.next_at == START + timedelta(hours=1)
        assert run(ledger) == 1

    def test_the_clock_is_set_back(self, ledger: Ledger, clock: ManualClock) -> None:
        """When the clock jumps back, no moment is enqueued twice."""
        put(ledger, "report", "0 * * * *", misfire="all")
        clock.advance(2 * HOUR)
        run(ledger)
        clock.jump(-1.5 * HOUR)

        ran = []
        for _ in range(4):
            ran.append(run(ledger))
            clock.advance(0.5 * HOUR)

        assert ran == [0, 0, 0, 0]
        clock.advance(0.5 * HOUR)
        assert run(ledger) == 1
        assert sorted(keys(ledger)) == [key_at("report", hour) for hour in (1, 2, 3)]

    def test_counted_anew_after_the_clock_was_set_back(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """Counted anew, by a resume or by other content, it still repeats no moment."""
        put(ledger, "report", "0 * * * *", payload={"n": 1}, misfire="all")
        clock.advance(2 * HOUR)
        run(ledger)
        clock.jump(-1.75 * HOUR)
        at(ledger).pause("report")
        at(ledger).resume("report")
        clock.advance(HOUR)
        same = run(ledger)
        put(ledger, "report", "0 */1 * * *", payload={"n": 2}, misfire="all")
        clock.advance(HOUR)

        other = run(ledger)

        assert (same, other) == (0, 0)
        assert len(enqueued(ledger)) == 2
        clock.advance(HOUR)
        assert run(ledger) == 1

    def test_the_clock_is_set_forward(self, ledger: Ledger, clock: ManualClock) -> None:
        """When the clock jumps forward, what it jumped over counts as missed."""
        put(ledger, "report", "0 * * * *", misfire="once")
        clock.jump(10 * HOUR)

        assert [run(ledger), run(ledger)] == [1, 0]
        assert keys(ledger) == [key_at("report", 10)]

    def test_a_night_with_an_hour_less(self, ledger: Ledger, clock: ManualClock) -> None:
        """When clocks go forward, the job of a time that does not exist runs once that night."""
        night = datetime(2026, 3, 29, tzinfo=UTC)
        assert self._ran_over(ledger, clock, night) == ["2026-03-29T01:00:00Z"]

    def test_a_night_with_an_hour_more(self, ledger: Ledger, clock: ManualClock) -> None:
        """When clocks go back, the job of a time that comes twice runs once that night."""
        night = datetime(2026, 10, 25, tzinfo=UTC)
        assert self._ran_over(ledger, clock, night) == ["2026-10-25T00:30:00Z"]

    def _ran_over(self, ledger: Ledger, clock: ManualClock, night: datetime) -> list[str]:
        """The moments of 2:30 in Berlin that ran in this night, looked for every five minutes."""
        clock.advance((night - START).total_seconds() - HOUR)
        put(ledger, "report", "30 2 * * *", time_zone="Europe/Berlin", misfire="all")
        for _ in range(6 * 12):
            clock.advance(5 * MINUTE)
            run(ledger)
        return [key.removeprefix("schedule:report:") for key in keys(ledger)]

    def test_an_unknown_type_is_enqueued(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job whose type is not known here is enqueued all the same, for those who know it."""
        put(ledger, "report", "0 * * * *", job="of another program", payload={"x": 1})
        clock.advance(HOUR)

        assert run(ledger) == 1
        (job,) = enqueued(ledger)
        assert (job.type, job.status) == ("of another program", Status.QUEUED)

    def test_its_kind_decides_the_rest(self, ledger: Ledger, clock: ManualClock) -> None:
        """Queue, priority and attempts that the schedule does not say are those of the kind."""
        ledger.job("known", queue="fast", priority=4, max_attempts=2)(takes_a_number)
        put(ledger, "report", "0 * * * *", job=takes_a_number, payload={"number": 1})
        clock.advance(HOUR)
        run(ledger)

        (job,) = enqueued(ledger)
        assert (job.type, job.queue, job.priority, job.max_attempts) == ("known", "fast", 4, 2)

    def test_a_payload_that_no_longer_fits(self, ledger: Ledger, clock: ManualClock) -> None:
        """It is enqueued where its worker finds it, and becomes a dead letter that says why."""
        put(ledger, "report", "0 * * * *", job="known", payload={"number": "one"})
        put(ledger, "other", "0 * * * *")
        ledger.job("known", queue="fast")(takes_a_number)
        clock.advance(HOUR)

        assert run(ledger) == 2
        ledger.worker(ledger.job_source("fast")).tick()
        (job,) = [job for job in enqueued(ledger) if job.type == "known"]
        assert (job.queue, job.status) == ("fast", Status.DEAD_LETTER)
        assert "do not fit" in (job.last_error_message or "")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"cron": "61 * * * *"},
            {"cron": "* * * *"},
            {"cron": "* * */20 * 1L"},
            {"time_zone": "Mars/Olympus"},
            {"misfire": "perhaps"},
            {"name": ""},
            {"name": "n" * 191},
            {"name": "n "},
            {"job": "j" * 101},
            {"job": print},
            {"queue": "q" * 101},
            {"org": "nobody"},
            {"priority": 1_000_001},
            {"priority": "x"},
            {"priority": 1.0},
            {"queue": 5},
            {"cron": 5},
            {"name": 5},
            {"job": []},
            {"org": []},
            {"payload": [1]},
            {"payload": {"n": float("nan")}},
            {"job": "known", "payload": {"number": "one"}},
            {"job": "known", "payload": {"other": 1}},
        ],
        ids=str,
    )
    def test_a_malformed_one_is_refused(self, ledger: Ledger, wrong: dict[str, Any]) -> None:
        """What could not be run is BadInput, and nothing is written."""
        ledger.job("known")(takes_a_number)
        given = {"name": "report", "job": "work", "cron": "0 * * * *"} | wrong

        with pytest.raises(errors.BadInput), ledger.transaction() as tx:
            Schedules(tx, ledger.kinds).put(**given)

        with ledger.reading() as tx:
            assert Schedules(tx, ledger.kinds).list().rows == []

    def test_one_that_cannot_be_read_here(self, ledger: Ledger, clock: ManualClock) -> None:
        """It is told, stays due for a worker that can read it, and keeps no other from running."""
        put(ledger, "a foreign one", "0 * * * *")
        put(ledger, "report", "0 * * * *")
        zoned(ledger, "Mars/Olympus")
        clock.advance(HOUR)
        runner = ScheduleRunner(ledger.kinds)

        assert [ledger.run(runner.run), ledger.run(runner.run)] == [1, 0]
        assert "Mars/Olympus" in runner.trouble["a foreign one"]
        zoned(ledger, "UTC")
        assert ledger.run(runner.run) == 1
        assert runner.trouble == {}

    def test_a_limit_key_that_fails(self, ledger: Ledger, clock: ManualClock) -> None:
        """What the user's own code raises is told like that, and ends no worker."""
        put(ledger, "report", "0 * * * *", job="known", payload={"number": 1})
        ledger.job("known", limit=Limit(key=always_fails))(takes_a_number)
        clock.advance(HOUR)
        runner = ScheduleRunner(ledger.kinds)

        assert ledger.run(runner.run) == 0
        assert "ZeroDivisionError" in runner.trouble["report"]

    def test_an_unknown_policy_is_refused(self, ledger: Ledger) -> None:
        """The database itself keeps no policy that is none."""
        put(ledger, "report", "0 * * * *")

        with pytest.raises(errors.StoreError):
            ledger.run(lambda tx: tx.command("UPDATE job_schedule SET misfire = 'never'"))

    def test_listed(self, ledger: Ledger) -> None:
        """They are listed by name, page by page."""
        for name in ("b", "c", "a"):
            put(ledger, name, "0 * * * *")

        with ledger.reading() as tx:
            schedules = Schedules(tx, ledger.kinds)
            first = schedules.list(limit=2)
            second = schedules.list(limit=2, cursor=first.next)

        assert [row.name for row in [*first.rows, *second.rows]] == ["a", "b", "c"]
        assert second.next is None

    def test_preview(self, ledger: Ledger, clock: ManualClock) -> None:
        """The next moments of an expression are told in its zone; too many are refused."""
        clock.advance(1)

        found = at(ledger).preview("30 6 * * *", "Europe/Berlin", 2)

        assert [str(moment) for moment in found] == [
            "2026-01-01 06:30:00+01:00",
            "2026-01-02 06:30:00+01:00",
        ]
        for count in (0, 1001):
            with pytest.raises(errors.BadInput):
                at(ledger).preview("* * * * *", "UTC", count)

    def test_declared(self, ledger: Ledger, clock: ManualClock) -> None:
        """What code declares is put, by each worker that starts, and runs like any other."""
        declared = Declared()
        ledger.job("known")(takes_a_number)
        declared.add(
            NewSchedule(name="b", cron="0 * * * *", job=takes_a_number, payload={"number": 1})
        )
        declared.add(NewSchedule(name="a", cron="0 * * * *", job="work", misfire="all"))

        together(
            *[partial(ledger.run, lambda tx: declared.put(tx, ledger.kinds)) for _ in range(RACERS)]
        )

        assert len(declared) == 2
        clock.advance(HOUR)
        assert run(ledger) == 2

    def test_declared_wrongly(self) -> None:
        """A name that is taken and times that cannot be read are refused where they stand."""
        declared = Declared()
        declared.add(NewSchedule(name="a", cron="0 * * * *", job="work"))

        for wrong in (
            NewSchedule(name="a", cron="0 * * * *", job="work"),
            NewSchedule(name="b", cron="0 25 * * *", job="work"),
            NewSchedule(name="b", cron="0 * * * *", job="work", time_zone="Mars/Olympus"),
            NewSchedule(name="b", cron="0 * * * *", job="work", misfire="perhaps"),
        ):
            with pytest.raises(errors.BadInput):
                declared.add(wrong)

    def test_it_belongs_to_the_transaction(self, ledger: Ledger) -> None:
        """What is undone with the caller's transaction was never put."""
        with undone(ledger) as tx:
            Schedules(tx, ledger.kinds).put("report", "work", "0 * * * *")

        with pytest.raises(errors.NotFound):
            got(ledger, "report")

    def test_the_database_tells_the_time(self, ledger: Ledger) -> None:
        """Without an injected clock moments are counted by the database's own."""
        kept = put(ledger, "report", "* * * * *")

        assert kept.next_at is not None
        assert abs(kept.next_at - kept.created_at) <= timedelta(minutes=1)


class At:
    """Schedules, each call in a transaction of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            return self._ledger.run(
                lambda tx: getattr(Schedules(tx, self._ledger.kinds), name)(*arguments, **named)
            )

        return call


def at(ledger: Ledger) -> At:
    """Ask something of schedules."""
    return At(ledger)


def put(ledger: Ledger, name: str, cron: str, *, job: Any = "work", **options: Any) -> Schedule:
    """Put one, in a transaction of its own."""
    return ledger.run(lambda tx: Schedules(tx, ledger.kinds).put(name, job, cron, **options))


def got(ledger: Ledger, name: str) -> Schedule:
    """A schedule as it stands."""
    with ledger.reading() as tx:
        return Schedules(tx, ledger.kinds).get(name)


def run(ledger: Ledger) -> int:
    """One turn of the duty; how many jobs it enqueued."""
    return ledger.run(ScheduleRunner(ledger.kinds).run)


def enqueued(ledger: Ledger) -> list[JobRow]:
    """The jobs there are, newest first."""
    with ledger.reading() as tx:
        return tx.jobs.find(limit=1000).rows


def keys(ledger: Ledger) -> list[str]:
    """Their keys."""
    return [str(job.key) for job in enqueued(ledger)]


def key_at(name: str, hour: int) -> str:
    """The key of this hour of the first day."""
    return f"schedule:{name}:2026-01-01T{hour:02}:00:00Z"


def zoned(ledger: Ledger, zone: str) -> None:
    """Let the one that is called foreign have this time zone, past all checks."""
    with ledger.transaction() as tx:
        foreign = job_schedule.c.name == "a foreign one"
        tx.execute(update(job_schedule).where(foreign).values(time_zone=zone))


def takes_a_number(number: int) -> None:
    """A job that is given a number."""


def always_fails(number: int) -> str:
    """A limit key with a mistake in it."""
    return str(number // 0)

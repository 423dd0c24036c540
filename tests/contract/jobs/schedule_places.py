"""The schedule contract, second part: where a job goes, and what goes on when others cannot."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from ledgerstone import errors
from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.jobs import Kinds, Limit
from ledgerstone.jobs.accepting import accept
from ledgerstone.jobs.schedules import schedules as jobs_schedules
from ledgerstone.jobs.schedules.rows import job_schedule
from ledgerstone.jobs.schedules.schedules import (
    DUE_MAX,
    PAGES_MAX,
    Declared,
    NewSchedule,
    ScheduleRunner,
    Schedules,
)
from ledgerstone.jobs.tables import KEY_CHARS_MAX, job
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from tests.contract.jobs.schedules import (
    HOUR,
    MINUTE,
    enqueued,
    got,
    put,
    run,
    takes_a_number,
)
from tests.harness.threads import together

NOT_SAID = ("default", 0, 5, "exp", None, None)
"""Where a job goes of whose kind nobody has said anything."""
SAID = ("slow", 7, 2, "fixed", "store 1", 3)


class SchedulePlacesContract:
    """Whoever enqueues it, a job goes where its kind says. Fixtures: `ledger` and `clock`."""

    def test_a_worker_that_does_not_know_the_kind(self, ledger: Ledger, clock: ManualClock) -> None:
        """Queue, priority, attempts, back-off and limit are those that the kind had when put."""
        say(ledger)
        put(ledger, "report", "0 * * * *", job="known", payload={"number": 1})
        clock.advance(HOUR)

        assert ledger.run(ScheduleRunner(Kinds()).run) == 1
        assert places(ledger) == [SAID]

    def test_triggered_by_who_does_not_know_the_kind(self, ledger: Ledger) -> None:
        """So it is when it is triggered, as from a command line without the application."""
        say(ledger)
        put(ledger, "report", "0 * * * *", job="known", payload={"number": 1})

        ledger.run(lambda tx: Schedules(tx, Kinds()).trigger("report"))

        assert places(ledger) == [SAID]

    def test_what_the_schedule_says_itself(self, ledger: Ledger, clock: ManualClock) -> None:
        """Its own queue and priority go before those of the kind, whoever enqueues it."""
        say(ledger)
        own: dict[str, Any] = {"queue": "night", "priority": 9}
        put(ledger, "report", "0 * * * *", job="known", payload={"number": 1}, **own)
        clock.advance(HOUR)

        ledger.run(ScheduleRunner(Kinds()).run)

        assert places(ledger) == [("night", 9, *SAID[2:])]

    def test_not_limited_with_these_arguments(self, ledger: Ledger, clock: ManualClock) -> None:
        """One whose limit key is None is not limited there either."""
        say(ledger)
        put(ledger, "report", "0 * * * *", job="known", payload={"number": 0})
        clock.advance(HOUR)

        ledger.run(ScheduleRunner(Kinds()).run)

        assert places(ledger) == [(*SAID[:4], None, None)]

    def test_who_knows_the_kind_goes_by_it(self, ledger: Ledger, clock: ManualClock) -> None:
        """A worker that knows the kind goes by what it says now."""
        say(ledger)
        put(ledger, "report", "0 * * * *", job="known", payload={"number": 1})
        changed = Kinds()
        changed.add("known", takes_a_number, queue="fast")
        clock.advance(HOUR)

        ledger.run(ScheduleRunner(changed).run)

        assert places(ledger) == [("fast", *NOT_SAID[1:])]

    def test_put_again_by_who_does_not_know_the_kind(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """What was known of its kind stays, unless it has another type or other arguments."""
        say(ledger)
        for name in ("same", "other type", "other arguments"):
            put(ledger, name, "0 * * * *", job="known", payload={"number": 1})

        again(ledger, Kinds(), "same", "known", {"number": 1})
        again(ledger, Kinds(), "other type", "unknown", {"number": 1})
        again(ledger, Kinds(), "other arguments", "known", {"number": 2})

        clock.advance(HOUR)
        ledger.run(ScheduleRunner(Kinds()).run)
        assert sorted(places(ledger), key=str) == [NOT_SAID, NOT_SAID, SAID]

    def test_put_again_by_who_knows_the_kind(self, ledger: Ledger, clock: ManualClock) -> None:
        """What is known now replaces what was known; a moment that is due stays due."""
        again(ledger, Kinds(), "report", "known", {"number": 1})
        clock.advance(HOUR)
        say(ledger)

        put(ledger, "report", "0 * * * *", job="known", payload={"number": 1})

        ledger.run(ScheduleRunner(Kinds()).run)
        assert places(ledger) == [SAID]

    def test_a_limit_key_that_no_database_keeps(self, ledger: Ledger, clock: ManualClock) -> None:
        """One that is too long is told; its job is not enqueued without its limit."""
        again(ledger, Kinds(), "report", "known", {"number": 1})
        too_long = Limit(key=lambda: "k" * (KEY_CHARS_MAX + 1))
        ledger.job("known", limit=too_long)(takes_a_number)
        clock.advance(HOUR)
        runner = ScheduleRunner(ledger.kinds)

        assert ledger.run(runner.run) == 0
        assert "limit key" in runner.trouble["report"]


class ScheduleTroubleContract:
    """Schedules that cannot be read hold up no others. Fixtures: `ledger` and `clock`."""

    @pytest.mark.parametrize("pages", [1, 2, PAGES_MAX + 1])
    def test_many_in_trouble(self, ledger: Ledger, clock: ManualClock, pages: int) -> None:
        """However many cannot be read here, the others run, each time; those stay due."""
        foreign(ledger, pages * DUE_MAX)
        put(ledger, "zz", "*/2 * * * *")
        runner = ScheduleRunner(ledger.kinds)
        ran = 0

        for _ in range(3):
            clock.advance(2 * MINUTE)
            ran += ledger.run(runner.run) + ledger.run(runner.run)

        assert ran == 3
        assert len(runner.trouble) == pages * DUE_MAX
        assert got(ledger, "foreign 0").last_at is None

    @pytest.mark.slow
    def test_trouble_that_is_over(self, ledger: Ledger, clock: ManualClock) -> None:
        """What stayed due runs as soon as somebody can read it, those that wait longest first."""
        count = (PAGES_MAX + 1) * DUE_MAX
        foreign(ledger, count)
        clock.advance(HOUR)
        runner = ScheduleRunner(ledger.kinds)
        turns = [ledger.run(runner.run) for _ in range(2)]

        zoned(ledger, "UTC")

        turns += [ledger.run(runner.run) for _ in range(PAGES_MAX + 2)]
        assert turns == [0, 0, *[DUE_MAX] * (PAGES_MAX + 1), 0]
        assert runner.trouble == {}

    def test_a_database_that_is_busy(
        self, ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the database refuses ends the turn: it is no trouble of a schedule, and undone."""
        put(ledger, "first", "0 * * * *")
        put(ledger, "second", "0 * * * *")
        clock.advance(HOUR)
        runner, calls = ScheduleRunner(ledger.kinds), itertools.count()

        def busy_at_last(*given: Any) -> Any:
            if next(calls):
                raise errors.StoreBusy("busy")
            return accept(*given)

        with monkeypatch.context() as patched:
            patched.setattr(jobs_schedules, "accept", busy_at_last)
            with pytest.raises(errors.StoreBusy), ledger.transaction() as tx:
                runner.run(tx)

        assert (enqueued(ledger), runner.trouble) == ([], {})
        assert run(ledger) == 2

    def test_trouble_among_others(self, ledger: Ledger, clock: ManualClock) -> None:
        """One turn moves on as many as can be, though others among them cannot be read."""
        foreign(ledger, DUE_MAX - 5)
        with ledger.transaction() as tx:
            for number in range(DUE_MAX):
                Schedules(tx, ledger.kinds).put(f"fine {number}", "work", "* * * * *")
        clock.advance(MINUTE)

        assert ledger.run(ScheduleRunner(ledger.kinds).run) == DUE_MAX

    def test_it_is_logged_once(
        self, ledger: Ledger, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A trouble that lasts is logged when it begins, and not at each turn."""
        foreign(ledger, 1)
        clock.advance(MINUTE)
        runner = ScheduleRunner(ledger.kinds)

        for _ in range(3):
            ledger.run(runner.run)

        told = [each for each in caplog.records if "Mars/Olympus" in each.getMessage()]
        assert len(told) == 1

    def test_declared_at_once(self, ledger: Ledger) -> None:
        """Workers that declare the same schedules in other orders do not wait for each other."""
        names = [f"report {number:02}" for number in range(30)]

        def put_all(order: list[str]) -> None:
            declared = Declared()
            for name in order:
                declared.add(NewSchedule(name=name, cron="0 * * * *", job="work"))
            with ledger.transaction() as tx:
                declared.put(tx, ledger.kinds)

        together(*[partial(put_all, order) for order in (names, names[::-1])])

        with ledger.reading() as tx:
            listed = Schedules(tx, ledger.kinds).list(limit=100).rows
        assert [each.name for each in listed] == names


def say(ledger: Ledger) -> None:
    """Declare a kind that has something to say about everything."""
    ledger.job(
        "known",
        queue="slow",
        priority=7,
        max_attempts=2,
        backoff=Backoff(policy=BackoffPolicy.FIXED),
        limit=Limit(key=lambda number: f"store {number}" if number else None, most=3),
    )(takes_a_number)


def again(ledger: Ledger, kinds: Kinds, name: str, type_: str, payload: dict[str, Any]) -> None:
    """Put one as a process that knows these kinds."""
    ledger.run(lambda tx: Schedules(tx, kinds).put(name, type_, "0 * * * *", payload=payload))


def places(ledger: Ledger) -> list[tuple[Any, ...]]:
    """Where the jobs are that there are, and what holds for them there."""
    columns = (job.c.queue, job.c.priority, job.c.max_attempts, job.c.backoff_policy)
    with ledger.reading() as tx:
        found = tx.execute(select(*columns, job.c.limit_key, job.c.limit_max))
        return [tuple(row) for row in found]


def foreign(ledger: Ledger, count: int) -> None:
    """Put so many that cannot be read here, due before all others of the same minute."""
    with ledger.transaction() as tx:
        for number in range(count):
            Schedules(tx, ledger.kinds).put(f"foreign {number}", "work", "* * * * *")
    zoned(ledger, "Mars/Olympus")


def zoned(ledger: Ledger, zone: str) -> None:
    """Let the foreign ones have this time zone, past all checks."""
    with ledger.transaction() as tx:
        ours = job_schedule.c.name.startswith("foreign ")
        tx.execute(update(job_schedule).where(ours).values(time_zone=zone))

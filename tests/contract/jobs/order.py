"""The job contract, the order: urgent before late, and no organisation waits for another."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ledgerstone.engine.source import Ask, OutcomeKind
from ledgerstone.jobs import JobSource, NewJob, Status
from ledgerstone.jobs import claim_order as line
from ledgerstone.jobs import source as jobs_source
from ledgerstone.ledger import Ledger
from ledgerstone.store.sql.batch import LockFirst
from ledgerstone.testing.clock import ManualClock
from tests.contract.jobs.examples import (
    ADA,
    LEASE_SECONDS,
    claim,
    enqueue,
    nothing,
    settle,
    standing,
    tick,
)
from tests.harness.ledgers import Undone
from tests.harness.threads import together

CROWD = 2000
FEW = 10
BATCH = 5
BIG, SMALL, LAST = (
    "10000000-0000-4000-8000-000000000000",
    "20000000-0000-4000-8000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)
NAMES = {BIG: "big", SMALL: "small", LAST: "last"}


class OrderContract:
    """Who is next. Fixtures: `ledger`, `clock`."""

    @pytest.fixture
    def source(self, ledger: Ledger) -> JobSource:
        """Jobs that do nothing."""
        ledger.kinds.add("a", nothing)
        return ledger.job_source()

    def test_urgent_then_due(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """Within an organisation the more urgent come first, then the earlier due."""
        moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        given = [(0, 3), (5, 2), (-5, 9), (5, 8), (0, 7), (0, 3)]
        ids = [
            enqueue(ledger, "a", priority=priority, run_at=moment - timedelta(seconds=seconds))
            for priority, seconds in given
        ]

        taken = [c.key for _ in range(3) for c in claim(ledger, source, limit=2)]

        assert taken == [ids[3], ids[1], ids[4], ids[0], ids[5], ids[2]]

    def test_what_was_put_off(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """A delayed job takes its place in line when its time has come, by its urgency."""
        late = enqueue(ledger, "a", delay_seconds=10, priority=1)
        first = enqueue(ledger, "a")

        before = claim(ledger, source, limit=1)
        second = enqueue(ledger, "a")
        clock.advance(10)
        after = claim(ledger, source)

        assert [c.key for c in before] == [first]
        assert [c.key for c in after] == [late, second]

    def test_a_crowd_starves_nobody(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """However many jobs one organisation has, another waits for at most one batch of them."""
        with ledger.transaction() as tx:
            tx.jobs.enqueue_many([NewJob(type="a", org=BIG) for _ in range(CROWD)])
            tx.jobs.enqueue_many([NewJob(type="a", org=SMALL) for _ in range(FEW)])

        turns = [_orgs(ledger, source, BATCH) for _ in range(6)]

        assert turns[:4] == [["big"] * 5, ["small"] * 5, ["big"] * 5, ["small"] * 5]
        assert turns[4:] == [["big"] * 5, ["big"] * 5]

    def test_a_new_type_changes_no_turn(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """When a type becomes known in between, the next organisation is next all the same."""
        with ledger.transaction() as tx:
            for org in (BIG, SMALL):
                tx.jobs.enqueue_many([NewJob(type="a", org=org) for _ in range(2 * BATCH)])

        turns = [_orgs(ledger, source, BATCH)]
        ledger.kinds.add("new", nothing)
        turns += [_orgs(ledger, source, BATCH) for _ in range(2)]

        assert turns == [["big"] * 5, ["small"] * 5, ["big"] * 5]

    def test_a_slow_line_starves_nobody(
        self,
        ledger: Ledger,
        clock: ManualClock,
        source: JobSource,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Also where claims are slow and go on where the last one ended, everybody has a turn."""
        monkeypatch.setattr(line, "SLOW_SECONDS", 0.0)
        monkeypatch.setattr(line, "SLOW_ROW_SECONDS", 0.0)
        with ledger.transaction() as tx:
            for org in (BIG, SMALL, LAST):
                tx.jobs.enqueue_many([NewJob(type="a", org=org) for _ in range(BATCH * 2)])

        turns = [_orgs(ledger, source, BATCH) for _ in range(6)]

        assert turns == [["big"] * 5, ["small"] * 5, ["last"] * 5] * 2

    def test_who_keeps_its_place(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A job that is given back is next again; one that is put off waits behind the others."""
        first = enqueue(ledger, "a")
        clock.advance(1)
        second = enqueue(ledger, "a")
        order = []
        for verdict in (OutcomeKind.RETURNED, OutcomeKind.SNOOZED, OutcomeKind.DONE):
            clock.advance(1)
            (taken,) = claim(ledger, source, limit=1)
            settle(ledger, source, taken, verdict)
            order.append(taken.key)

        assert order == [first, first, second]

    def test_who_is_due_after_a_slow_claim(
        self,
        ledger: Ledger,
        clock: ManualClock,
        source: JobSource,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A job whose time comes while claims go on where the last one ended is found at once."""
        monkeypatch.setattr(line, "SLOW_SECONDS", 0.0)
        monkeypatch.setattr(line, "SLOW_ROW_SECONDS", 0.0)
        ids = [enqueue(ledger, "a") for _ in range(4 * BATCH)]
        urgent = enqueue(ledger, "a", priority=9, delay_seconds=0.3)
        turns = [claim(ledger, source, limit=BATCH)]

        clock.advance(0.3)
        turns += [claim(ledger, source, limit=BATCH) for _ in range(2)]

        taken = [each.key for turn in turns for each in turn]
        assert taken == [*ids[: 2 * BATCH], urgent, *ids[2 * BATCH : 3 * BATCH - 1]]

    def test_many_whose_time_has_come(
        self,
        ledger: Ledger,
        clock: ManualClock,
        source: JobSource,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """However many are due at one moment, claim after claim gets them, without a pause."""
        monkeypatch.setattr(jobs_source, "OPEN_MAX", 2)
        new = [NewJob(type="a", delay_seconds=10) for _ in range(5)]
        ledger.run(lambda tx: tx.jobs.enqueue_many(new))
        clock.advance(10)

        turns = [len(claim(ledger, source)) for _ in range(4)]

        assert turns == [2, 2, 1, 0]

    @pytest.mark.parametrize("crowd", [BIG, LAST])
    def test_who_comes_later(
        self, ledger: Ledger, clock: ManualClock, source: JobSource, crowd: str
    ) -> None:
        """Who comes while one was alone in line is served within a second, wherever it stands."""
        with ledger.transaction() as tx:
            tx.jobs.enqueue_many([NewJob(type="a", org=crowd) for _ in range(100)])
        for _ in range(4):
            _orgs(ledger, source, BATCH)
        with ledger.transaction() as tx:
            tx.jobs.enqueue_many([NewJob(type="a", org=SMALL) for _ in range(BATCH)])

        clock.advance(1)
        turns = [_orgs(ledger, source, BATCH), _orgs(ledger, source, BATCH)]

        assert ["small"] * BATCH in turns

    def test_everybody_gets_a_turn(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Many organisations are served in turn, whatever the size of a batch."""
        orgs = [str(UUID(int=(n + 1) << 120)) for n in range(20)]
        with ledger.transaction() as tx:
            for org in orgs:
                tx.jobs.enqueue_many([NewJob(type="a", org=org) for _ in range(30)])

        seen = [
            standing(ledger, c.key).org_id
            for _ in range(len(orgs))
            for c in claim(ledger, source, limit=3)
        ]

        assert sorted(seen) == sorted(orgs * 3)

    def test_a_batch_is_filled(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """What one organisation leaves of a batch goes to the next, and round to the first."""
        for org, count in ((BIG, 2), (SMALL, 2), (LAST, 2)):
            with ledger.transaction() as tx:
                tx.jobs.enqueue_many([NewJob(type="a", org=org) for _ in range(count)])

        turns = [_orgs(ledger, source, 4), _orgs(ledger, source, 4), _orgs(ledger, source, 4)]

        assert turns == [["big", "big", "small", "small"], ["last", "last"], []]

    def test_both_parts_of_a_claim_are_one(
        self,
        ledger: Ledger,
        clock: ManualClock,
        source: JobSource,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A claim that looks twice takes both parts, or neither."""
        monkeypatch.setattr(line, "ROUND_JOBS", 2)
        with ledger.transaction() as tx:
            for org, count in ((BIG, 3), (LAST, 1)):
                tx.jobs.enqueue_many([NewJob(type="a", org=org) for _ in range(count)])
        first = _orgs(ledger, source, 1)
        look, ask = LockFirst.rows, Ask(BATCH, ADA, LEASE_SECONDS)
        looks = []

        def fail_at_the_second(each: LockFirst, *given: Any, **named: Any) -> Any:
            looks.append(each)
            if len(looks) > 1:
                raise Undone
            return look(each, *given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(LockFirst, "rows", fail_at_the_second)
            with suppress(Undone), ledger.transaction() as tx:
                tx.may_end_early = True
                source.claim(tx, ask)
        with ledger.reading() as tx:
            queued = len(tx.jobs.find(status=Status.QUEUED).rows)
        rest = ledger.run(lambda tx: list(source.claim(tx, ask)))

        assert first == ["big"]
        assert queued == 3
        assert sorted(NAMES[taken.org_id] for taken in rest) == ["big", "big", "last"]

    def test_queues_are_apart(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """A worker of one queue leaves the others alone; a worker without a choice does all."""
        ledger.kinds.add("b", nothing, queue="other")
        mine, theirs = enqueue(ledger, "a"), enqueue(ledger, "b")
        moved = enqueue(ledger, "a", queue="other")

        first = [c.key for c in claim(ledger, source)]
        tick(ledger)

        assert first == [mine]
        assert standing(ledger, theirs).status is Status.SUCCEEDED
        assert standing(ledger, moved).status is Status.SUCCEEDED

    def test_many_claim_at_once(self, ledger: Ledger, clock: ManualClock) -> None:
        """However many claim at the same moment, each job goes to one, and none is left."""
        ledger.kinds.add("a", nothing)
        with ledger.transaction() as tx:
            new = [NewJob(type="a", org=(BIG, SMALL, LAST)[n % 3]) for n in range(120)]
            ids = [enqueued.id for enqueued in tx.jobs.enqueue_many(new)]

        def take() -> list[str]:
            source = ledger.job_source()
            taken: list[str] = []
            while more := claim(ledger, source, limit=7):
                taken += [c.key for c in more]
            return taken

        taken = together(take, take, take)
        # What others held while one looked is found by the next look.
        rest = take()

        assert sorted([key for part in taken for key in part] + rest) == sorted(ids)


def _orgs(ledger: Ledger, source: JobSource, limit: int) -> list[str]:
    """Whose jobs a claim answers."""
    taken = claim(ledger, source, limit=limit)
    return [NAMES[standing(ledger, c.key).org_id] for c in taken]

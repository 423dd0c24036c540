"""The pump contract: how work is moved, step by step, by a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Cancel, Claim, ExecutorKind, Handler, Snooze
from ledgerstone.errors import TargetDown
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock
from tests.chores import Chores, ChoreSource, Status
from tests.chores.work import nothing
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.harness import children


class PumpContract:
    """One step at a time, with a clock that is moved by hand."""

    def test_a_step(self, ledger: Ledger, clock: ManualClock) -> None:
        """A step claims, runs and settles; the next finds nothing."""
        seen: list[str] = []
        enqueue(ledger, 3)
        worker = ledger.worker(chores(lambda claim: seen.append(claim.body)))

        (first,) = worker.tick()
        (second,) = worker.tick()

        assert sorted(seen) == ["0", "1", "2"]
        assert (first.claimed, first.settled, second.claimed) == (3, 3, 0)
        assert counts(ledger)[Status.DONE] == 3

    def test_what_a_handler_returns(self, ledger: Ledger, clock: ManualClock) -> None:
        """A value is the result; Snooze puts off; Cancel ends it."""
        returns: dict[str, Any] = {"0": {"answer": 42}, "1": Snooze(60), "2": Cancel("not needed")}
        ids = enqueue(ledger, 3)

        ledger.worker(chores(lambda claim: returns[claim.body])).tick()

        with ledger.reading() as tx:
            done, snoozed, canceled = (Chores(tx).get(key) for key in ids)
        assert (done.status, done.result) == (Status.DONE, {"answer": 42})
        assert (snoozed.status, snoozed.attempt) == (Status.QUEUED, 0)
        assert (canceled.status, canceled.error) == (Status.CANCELED, "canceled: not needed")

    def test_claims_that_nothing_can_run(self, ledger: Ledger, clock: ManualClock) -> None:
        """If a source knows no handler for a claim, that is the claim's failure."""
        (key,) = enqueue(ledger, 1, attempts=1)

        class Ignorant(ChoreSource):
            def handler(self, claim: Claim) -> Handler:
                raise LookupError(claim.body)

        ledger.worker(Ignorant(Handler(nothing))).tick()

        assert standing(ledger, key).status is Status.DEAD

    @pytest.mark.parametrize("where", list(ExecutorKind))
    def test_what_cannot_be_kept(
        self, ledger: Ledger, clock: ManualClock, where: ExecutorKind
    ) -> None:
        """A result that is no JSON is that item's failure, not the worker's."""
        ids = enqueue(ledger, 2, attempts=1)

        async def awaited(claim: Claim) -> object:
            return children.unkeepable(claim)

        call = awaited if where is ExecutorKind.LOOP else children.unkeepable
        (step,) = ledger.worker(chores(call, where=where)).tick()

        assert step.settled == 2
        with ledger.reading() as tx:
            bad, good = (Chores(tx).get(key) for key in ids)
        assert (bad.status, good.status) == (Status.DEAD, Status.DONE)
        assert bad.error is not None
        assert bad.error.startswith("bad_input")

    def test_atomic_results_that_cannot_be_kept(self, ledger: Ledger, clock: ManualClock) -> None:
        """Then nothing that the atomic handler wrote is kept either."""
        (key,) = enqueue(ledger, 1, attempts=1)

        def odd(tx: Transaction, _: Claim) -> object:
            Chores(tx).enqueue("after")
            return object()

        ledger.worker(chores(odd, atomic=True)).tick()

        assert sum(counts(ledger).values()) == 1
        assert standing(ledger, key).status is Status.DEAD

    def test_errors_in_any_words(self, ledger: Ledger, clock: ManualClock) -> None:
        """An error is kept whatever its words are: too long, with NUL, with half a character."""
        words = ["x" * 100_000, "a\0b", "half \ud800 of one", "{} %s \\ '\" 🜨"]
        ids = enqueue(ledger, len(words), attempts=1)

        def fail(claim: Claim) -> None:
            raise ValueError(words[int(claim.body)])

        ledger.worker(chores(fail)).tick()

        with ledger.reading() as tx:
            kept = [Chores(tx).get(key) for key in ids]
        assert {chore.status for chore in kept} == {Status.DEAD}
        assert all((chore.error or "").startswith("ValueError: ") for chore in kept)

    def test_a_failing_handler(self, ledger: Ledger, clock: ManualClock) -> None:
        """An exception is a failure with its reason; after the back-off it is tried again."""
        (key,) = enqueue(ledger, 1)
        worker = ledger.worker(chores(_divide, backoff=Backoff(seconds=10, jitter=0)))

        worker.tick()
        clock.advance(9)
        (early,) = worker.tick()
        clock.advance(2)
        (late,) = worker.tick()

        assert (early.claimed, late.claimed) == (0, 1)
        with ledger.reading() as tx:
            chore = Chores(tx).get(key)
        assert chore.attempt == 2
        assert chore.error is not None
        assert chore.error.startswith("ZeroDivisionError")

    def test_a_target_that_is_down(self, ledger: Ledger, clock: ManualClock) -> None:
        """While a target is down no attempt is burned, and after some failures it is left alone."""
        calls = 0
        down = True

        def send(_: Claim) -> None:
            nonlocal calls
            calls += 1
            if down:
                raise TargetDown("the broker")

        ids = enqueue(ledger, 1)
        worker = ledger.worker(_Targeted(send))
        for _ in range(20):
            worker.tick()
            clock.advance(2)
        assert calls < 15
        down = False
        clock.advance(60)
        worker.tick()

        with ledger.reading() as tx:
            chore = Chores(tx).get(ids[0])
        assert (chore.status, chore.attempt) == (Status.DONE, 1)

    def test_atomic_handlers(self, ledger: Ledger, clock: ManualClock) -> None:
        """The writes of an atomic handler and its settlement are one transaction."""
        enqueue(ledger, 1)

        def follow_up(tx: Transaction, _: Claim) -> None:
            Chores(tx).enqueue("after", delay_seconds=60)
            if fails:
                raise ZeroDivisionError

        fails = True
        worker = ledger.worker(chores(follow_up, atomic=True, backoff=Backoff(seconds=1)))
        worker.tick()
        assert sum(counts(ledger).values()) == 1
        fails = False
        clock.advance(10)
        worker.tick()

        assert counts(ledger)[Status.DONE] == 1
        assert counts(ledger)[Status.QUEUED] == 1

    def test_atomic_handlers_that_lost_their_claim(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """If the claim was lost meanwhile, nothing that the atomic handler wrote is kept."""
        (key,) = enqueue(ledger, 1)

        def too_slow(tx: Transaction, _: Claim) -> None:
            Chores(tx).enqueue("after")
            clock.advance(3600)
            source.rescue(tx, limit=10, crashes_max=3)

        source = chores(too_slow, atomic=True)
        worker = ledger.worker(source)
        worker.tick()

        with ledger.reading() as tx:
            chore = Chores(tx).get(key)
            total = sum(Chores(tx).counts().values())
        assert total == 1
        assert chore.status is not Status.DONE

    def test_duties_once_per_cluster(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of several workers one rescues in a turn, and the next turn comes by the clock."""
        ids = enqueue(ledger, 2)
        ledger.run(lambda tx: chores(nothing).claim(tx, _ask(ledger, limit=1)))
        clock.advance(3600)
        first, second = ledger.worker(chores(nothing)), ledger.worker(chores(nothing))

        first.tick(limit=1)
        second.tick(limit=1)

        reports = [worker.report().duties for worker in (first, second)]
        assert [report.get("rescue:chores") for report in reports] == [1, None]
        with ledger.reading() as tx:
            assert {Chores(tx).get(key).status for key in ids} == {Status.DONE}

    @pytest.mark.parametrize("hours", [12, 365 * 24])
    def test_duties_after_a_clock_that_was_ahead(
        self, ledger: Ledger, clock: ManualClock, hours: int
    ) -> None:
        """A clock that was ahead for a while, little or far, keeps no duty from its turns."""
        clock.jump(hours * 3600)
        ledger.worker(chores(nothing)).tick()
        clock.jump(-hours * 3600)
        enqueue(ledger, 1)
        worker = ledger.worker(chores(nothing))
        ledger.run(lambda tx: chores(nothing).claim(tx, _ask(ledger, limit=1)))
        clock.advance(3600)

        worker.tick()

        assert worker.report().duties.get("rescue:chores") == 1

    def test_heartbeats_keep_claims(self, ledger: Ledger, clock: ManualClock) -> None:
        """A claim that is still held at the second beat is extended; a quick one costs nothing."""
        (key,) = enqueue(ledger, 1)
        extended: list[int] = []
        lease = ledger.settings.engine.lease_seconds

        def long(_: Claim) -> None:
            for _turn in range(6):
                clock.advance(lease / 3)
                extended.append(worker.beat())
                assert ledger.run(worker.pumps[0].rescue) == 0

        worker = ledger.worker(chores(long))
        worker.tick()

        assert extended == [0, 1, 1, 1, 1, 1]
        with ledger.reading() as tx:
            assert Chores(tx).get(key).status is Status.DONE


class _Targeted(ChoreSource):
    """Chores that all go to one target."""

    def __init__(self, call: Callable[[Claim], None]) -> None:
        super().__init__(Handler(call))

    def claim(self, tx: Any, ask: Any) -> list[Claim]:
        if "the broker" in ask.avoid:
            return []
        claims = super().claim(tx, ask)
        return [msgspec.structs.replace(claim, target="the broker") for claim in claims]


def _ask(ledger: Ledger, *, limit: int) -> Any:
    from ledgerstone.engine.source import Ask

    return Ask(limit, "doomed", ledger.settings.engine.lease_seconds)


def _divide(_: Claim) -> float:
    return 1 / 0

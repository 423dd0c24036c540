"""The job contract, the moves: one table of them, kept by the database, and all on record."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledgerstone.engine.source import Outcome, OutcomeKind
from ledgerstone.errors import NotAllowedNow, StoreError
from ledgerstone.ids import new_id
from ledgerstone.jobs import Job, JobSource, Status
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.states import FINISHED, MOVES
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.jobs.examples import (
    ADA,
    LEASE_SECONDS,
    assert_replayed,
    claim,
    count,
    enqueue,
    history_of,
    moves_of,
    nothing,
    rescue,
    settle,
    standing,
    statement,
    tick,
)
from tests.harness.ledgers import undone
from tests.harness.threads import still_waits

Pair = tuple[Status, Status]
DECLARED = {(before.value, after.value) for before, after in MOVES}

FORBIDDEN = (
    "UPDATE job_event SET next_status = 'queued'",
    "UPDATE job_event SET detail_json = NULL",
    "UPDATE job_event SET job_id = job_id",
    "DELETE FROM job_event",
    "DELETE FROM job",
)


class MovesContract:
    """No move outside the table, whoever writes. Fixtures: `ledger`."""

    def test_every_pair_of_states(self, ledger: Ledger) -> None:
        """Anybody's UPDATE from one state to another succeeds exactly if the move is declared."""
        pairs = [(a, b) for a in Status for b in Status if a is not b]

        moved = {pair for pair in pairs if _moved(ledger, _placed(ledger, pair[0]), pair[1])}

        assert moved == MOVES

    def test_the_migration_has_the_same_table(self, ledger: Ledger) -> None:
        """The moves that the migration writes into the database are those of the code."""
        migration = importlib.import_module("ledgerstone.store.migrations.versions.0002_jobs")

        assert set(migration.MOVES) == DECLARED
        assert set(migration.STATUSES) == {status.value for status in Status}
        assert set(migration.FINISHED) == {status.value for status in FINISHED}

    def test_moved_between_look_and_write(self, ledger: Ledger) -> None:
        """It is where a job stands at the write that counts, not where its writer saw it."""
        wrong = []
        for before, between in sorted(MOVES, key=str):
            for after in Status:
                if after is between:
                    continue
                job_id = _placed(ledger, before)
                seen = standing(ledger, job_id).status
                assert _moved(ledger, job_id, between)
                if _moved(ledger, job_id, after) != ((between, after) in MOVES):
                    wrong.append((seen, between, after))

        assert wrong == []

    def test_a_writer_that_waits(self, ledger: Ledger) -> None:
        """A writer that waits for another's transaction is judged by what that one has left."""
        job_id = _placed(ledger, Status.QUEUED)

        with ThreadPoolExecutor(1) as threads:
            with ledger.transaction() as tx:
                _write(tx, job_id, Status.RUNNING)
                _write(tx, job_id, Status.SUCCEEDED)
                late = threads.submit(_moved, ledger, job_id, Status.CANCELED)
                assert still_waits(late)
            moved = late.result(WAIT_SECONDS_MAX)

        assert not moved
        assert standing(ledger, job_id).status is Status.SUCCEEDED

    def test_what_is_no_move(self, ledger: Ledger) -> None:
        """Writing anything else of a job is possible in every state."""
        placed = {status: _placed(ledger, status) for status in Status}

        statement(ledger, "UPDATE job SET priority = 7, status = status")

        rows = {status: standing(ledger, job_id) for status, job_id in placed.items()}
        assert all(row.status is status for status, row in rows.items())
        assert {row.priority for row in rows.values()} == {7}


class HistoryContract:
    """Every move has its event, and no event is ever changed. Fixtures: `ledger`, `clock`."""

    @pytest.fixture
    def source(self, ledger: Ledger) -> JobSource:
        """The jobs of the default queue, which do nothing."""
        ledger.kinds.add("a", nothing)
        return ledger.job_source()

    def test_history_is_kept(self, ledger: Ledger, clock: ManualClock) -> None:
        """The database itself refuses to change or remove an event, or to remove a job."""
        job_id = enqueue(ledger, "a")
        before = history_of(ledger, job_id)

        for sql in FORBIDDEN:
            with pytest.raises(StoreError, match=r"kept as it is|by retention only"):
                statement(ledger, sql)

        assert history_of(ledger, job_id) == before

    def test_a_claim_and_its_success(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Each move has its event, with attempt and worker."""
        job_id = enqueue(ledger, "a")
        clock.advance(1)
        (taken,) = claim(ledger, source, worker=ADA)
        clock.advance(1)
        settle(ledger, source, taken, OutcomeKind.DONE, result='{"n":1}')

        _, began, ended = history_of(ledger, job_id)

        assert moves_of(ledger, job_id) == [
            (None, "queued"),
            ("queued", "running"),
            ("running", "succeeded"),
        ]
        assert began.detail == {"attempt": 1, "worker": ADA}
        assert (ended.detail["attempt"], ended.detail["worker"]) == (1, ADA)
        assert (ended.ts - began.ts).total_seconds() == 1
        assert standing(ledger, job_id).result == {"n": 1}

    def test_a_failure_is_two_moves(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A failure goes through failed, on record, to queued or to dead_letter."""
        for fate, attempts, verdict in (
            ("queued", 5, OutcomeKind.FAILED),
            ("dead_letter", 1, OutcomeKind.FAILED),
            ("dead_letter", 5, OutcomeKind.DEAD),
        ):
            job_id = enqueue(ledger, "a", max_attempts=attempts)
            (taken,) = claim(ledger, source)

            settle(ledger, source, taken, verdict)

            row, failed = standing(ledger, job_id), history_of(ledger, job_id)[2]
            assert moves_of(ledger, job_id)[2:] == [("running", "failed"), ("failed", fate)]
            assert failed.detail["error"] == {
                "code": "test",
                "message": "as wished",
                "traceback": "line 1",
            }
            assert (row.last_error_code, row.last_error_message) == ("test", "as wished")
            assert (row.finished_at is None) == (fate == "queued")

    @pytest.mark.parametrize("asked", [False, True], ids=["wanted", "unwanted"])
    def test_every_fate_is_replayed(
        self, ledger: Ledger, clock: ManualClock, source: JobSource, asked: bool
    ) -> None:
        """The events of a job lead to its row, however it came out, also if it was unwanted."""
        for verdict, crashed in itertools.product(OutcomeKind, (False, True)):
            job_id = enqueue(ledger, "a", max_attempts=2)
            (taken,) = [c for c in claim(ledger, source) if c.key == job_id]
            if asked:
                ledger.run(lambda tx, key=job_id: tx.jobs.cancel(key, by="ada"))  # type: ignore[misc]
            clock.advance(1)

            settle(ledger, source, taken, verdict, crashed=crashed, delay_seconds=5)

            assert_replayed(ledger, job_id)
            if asked and verdict is not OutcomeKind.DONE:
                assert standing(ledger, job_id).status is Status.CANCELED
        assert _leases(ledger) == 0

    def test_long_lives_are_replayed(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Also after crashes, dead letters, retries by hand and progress the events lead there."""
        crashed, failed, canceled, told = (enqueue(ledger, "a") for _ in range(4))
        for _ in range(3):
            claim(ledger, source)
            clock.advance(LEASE_SECONDS + 1)
            rescue(ledger, source)
            for job_id in (crashed, failed, canceled, told):
                assert_replayed(ledger, job_id)
        for job_id in (crashed, failed, canceled):
            assert standing(ledger, job_id).status is Status.DEAD_LETTER
            ledger.run(lambda tx, key=job_id: tx.jobs.retry(key, by="ada"))  # type: ignore[misc]
        by_id = {taken.key: taken for taken in claim(ledger, source)}
        settle(ledger, source, by_id[crashed], OutcomeKind.DONE)
        settle(ledger, source, by_id[failed], OutcomeKind.DEAD)
        settle(ledger, source, by_id[canceled], OutcomeKind.RETURNED)
        ledger.run(lambda tx: tx.jobs.cancel(canceled))

        ends = [standing(ledger, job_id).status for job_id in (crashed, failed, canceled)]

        assert ends == [Status.SUCCEEDED, Status.DEAD_LETTER, Status.CANCELED]
        for job_id in (crashed, failed, canceled, told):
            assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("most", [None, 5], ids=["plain", "limited"])
    def test_when_it_began(
        self, ledger: Ledger, clock: ManualClock, source: JobSource, most: int | None
    ) -> None:
        """A job has begun when its first attempt did, however many follow."""
        job_id = enqueue(ledger, "a")
        ledger.run(lambda tx: tx.jobs.limit("default", most))
        began = []

        for _ in range(2):
            clock.advance(600)
            (taken,) = claim(ledger, source)
            began.append(standing(ledger, job_id).started_at)
            settle(ledger, source, taken, OutcomeKind.FAILED)

        assert began[0] == began[1] is not None

    def test_a_claim_before_the_last(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A claim that was given back cannot settle or extend the next one of the same attempt."""
        job_id = enqueue(ledger, "a")
        (first,) = claim(ledger, source)
        settle(ledger, source, first, OutcomeKind.RETURNED)
        (second,) = claim(ledger, source)

        refused = [bool(settle(ledger, source, first, verdict)) for verdict in OutcomeKind]
        lost = ledger.run(lambda tx: list(source.extend(tx, [first, second], LEASE_SECONDS).lost))

        assert first.attempt == second.attempt
        assert refused == [True] * len(OutcomeKind)
        assert lost == [first]
        assert standing(ledger, job_id).status is Status.RUNNING
        told = [event for event in history_of(ledger, job_id) if "refused" in event.detail]
        assert len(told) == len(OutcomeKind)
        assert settle(ledger, source, second, OutcomeKind.DONE) == []
        assert settle(ledger, source, second, OutcomeKind.DONE) == []
        assert ledger.run(lambda tx: list(source.extend(tx, [second], LEASE_SECONDS).lost)) == [
            second
        ]
        assert _leases(ledger) == 0
        assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("verdict", OutcomeKind)
    def test_settled_again(
        self, ledger: Ledger, clock: ManualClock, source: JobSource, verdict: OutcomeKind
    ) -> None:
        """A claim that is settled twice, since the first answer was lost, leaves what one does."""
        job_id = enqueue(ledger, "a")
        (taken,) = claim(ledger, source)
        settle(ledger, source, taken, verdict)
        before = standing(ledger, job_id), moves_of(ledger, job_id)

        refused = settle(ledger, source, taken, verdict)

        assert refused == []
        assert (standing(ledger, job_id).status, moves_of(ledger, job_id)) == (
            before[0].status,
            before[1],
        )
        assert_replayed(ledger, job_id)

    def test_a_claim_that_ran_out(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A claim whose lease ran out settles and extends nothing, also before the next claim."""
        job_id, other = enqueue(ledger, "a"), enqueue(ledger, "a", delay_seconds=3600)
        (first,) = claim(ledger, source)
        clock.advance(LEASE_SECONDS + 1)
        assert rescue(ledger, source) == 1
        untouched = standing(ledger, other)

        refused = [bool(settle(ledger, source, first, verdict)) for verdict in OutcomeKind]
        lost = ledger.run(lambda tx: list(source.extend(tx, [first], LEASE_SECONDS).lost))

        assert refused == [True] * len(OutcomeKind)
        assert lost == [first]
        assert standing(ledger, job_id).status is Status.QUEUED
        assert standing(ledger, other) == untouched
        told = [event for event in history_of(ledger, job_id) if "refused" in event.detail]
        assert len(told) == len(OutcomeKind)
        assert _leases(ledger) == 0
        assert_replayed(ledger, job_id)

    def test_lost_ones_of_a_batch(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Of many that are settled at once every lost one is refused and on record, no other."""
        ids = [enqueue(ledger, "a") for _ in range(4)]
        *lost, held = claim(ledger, source)
        clock.advance(LEASE_SECONDS - 1)
        ledger.run(lambda tx: source.extend(tx, [held], LEASE_SECONDS))
        clock.advance(2)
        assert rescue(ledger, source) == len(lost)
        outcomes = [Outcome(taken, OutcomeKind.DONE) for taken in (*lost, held)]

        refused = ledger.run(lambda tx: source.settle(tx, outcomes).lost)

        assert [outcome.claim for outcome in refused] == lost
        told = [sum("refused" in event.detail for event in history_of(ledger, i)) for i in ids]
        assert sorted(told) == [0, 1, 1, 1]
        assert standing(ledger, held.key).status is Status.SUCCEEDED

    def test_progress_is_replayed(self, ledger: Ledger, clock: ManualClock) -> None:
        """Stage and progress of every attempt are in the events."""

        @ledger.job("b", max_attempts=2)
        def told(job: Job) -> None:
            job.progress(0.25, "reading")
            job.progress(0.5)
            raise ValueError(job.attempt)

        job_id = enqueue(ledger, told)

        tick(ledger)

        assert_replayed(ledger, job_id)
        row = standing(ledger, job_id)
        assert (row.progress, row.stage) == (0.5, "reading")

    def test_whatever_the_clock_says(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Events are in the order of what happened, in one moment and with the clock set back."""
        job_id = enqueue(ledger, "a", max_attempts=2)
        (first,) = claim(ledger, source)
        clock.jump(-3600)
        settle(ledger, source, first, OutcomeKind.RETURNED)
        (second,) = claim(ledger, source)
        settle(ledger, source, first, OutcomeKind.DONE)
        clock.jump(-3600)
        settle(ledger, source, second, OutcomeKind.DONE)

        events = history_of(ledger, job_id)

        assert all(before.ts < after.ts for before, after in itertools.pairwise(events))
        assert events[-1].ts == standing(ledger, job_id).updated_at
        assert_replayed(ledger, job_id)

    def test_what_is_undone_leaves_no_event(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A move and its event are one: undone, neither is there."""
        job_id = enqueue(ledger, "a")

        with undone(ledger) as tx:
            tx.jobs.cancel(job_id)

        assert standing(ledger, job_id).status is Status.QUEUED
        assert count(ledger, "job_event") == 1

    @pytest.mark.parametrize("act", ["cancel", "retry"])
    def test_an_operator_who_waits(
        self, ledger: Ledger, clock: ManualClock, source: JobSource, act: str
    ) -> None:
        """Who waits for another's transaction finds the job as that one has left it."""
        job_id = enqueue(ledger, "a")
        (taken,) = claim(ledger, source)
        if act == "retry":
            settle(ledger, source, taken, OutcomeKind.DEAD)
        acts: dict[str, Callable[[], object]] = {
            "cancel": lambda: ledger.run(lambda tx: tx.jobs.cancel(job_id)),
            "retry": lambda: ledger.run(lambda tx: tx.jobs.retry(job_id)),
        }

        with ThreadPoolExecutor(1) as threads, pytest.raises(NotAllowedNow):
            with ledger.transaction() as tx:
                if act == "cancel":
                    _write(tx, job_id, Status.SUCCEEDED)
                else:
                    tx.jobs.retry(job_id)
                late = threads.submit(acts[act])
                assert still_waits(late)
            late.result(WAIT_SECONDS_MAX)

        wanted = Status.SUCCEEDED if act == "cancel" else Status.QUEUED
        assert standing(ledger, job_id).status is wanted


class TruncateContract:
    """What only PostgreSQL's tables can be asked. Fixtures: `ledger`."""

    @pytest.mark.parametrize("table", ["job_event", "job"])
    def test_truncate(self, ledger: Ledger, table: str) -> None:
        """History is not emptied either."""
        enqueue(ledger, "a")

        with pytest.raises(StoreError, match=r"kept as it is|by retention only"):
            statement(ledger, f"TRUNCATE {table} CASCADE")

        assert count(ledger, "job_event") == 1


def _leases(ledger: Ledger) -> int:
    """How many jobs are leased to somebody though they do not run."""
    return count(ledger, "job WHERE lease_until_ms IS NOT NULL AND status <> 'running'")


def _placed(ledger: Ledger, status: Status) -> str:
    """A job that stands there."""
    job_id = new_id()
    statement(
        ledger,
        "INSERT INTO job (id, org_id, type, status, finished_at) VALUES "  # noqa: S608 - our own
        f"(:id, :org, 'raw', '{status.value}', {_moment(status)})",
        id=job_id,
        org=NO_ORG,
    )
    return job_id


def _moment(status: Status) -> str:
    return "'2026-01-01 00:00:00'" if status in FINISHED else "NULL"


def _write(tx: Transaction, job_id: str, status: Status) -> None:
    tx.connection.exec_driver_sql(
        f"UPDATE job SET status = '{status.value}', finished_at = {_moment(status)} "  # noqa: S608 - our own
        f"WHERE id = '{job_id}'"
    )


def _moved(ledger: Ledger, job_id: str, status: Status) -> bool:
    """Whether anybody's UPDATE to this state is let through."""
    try:
        with ledger.transaction() as tx:
            _write(tx, job_id, status)
    except StoreError as error:
        if "does not move like that" not in str(error):
            raise
        return False
    assert standing(ledger, job_id).status is status
    return True

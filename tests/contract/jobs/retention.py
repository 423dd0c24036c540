"""The retention contract: how long jobs, their history and their keys are kept."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import text

from ledgerstone import errors
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.jobs import Accepted, NewJob, Status, retention
from ledgerstone.ledger import Ledger
from ledgerstone.settings import JobSettings
from ledgerstone.store.connections.faults import translated
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.jobs.limits import add, claimed, ended, execute, settled
from tests.harness.drivers import connect
from tests.harness.ledgers import opened

REWRITES = (
    "DELETE FROM job",
    "DELETE FROM job_event",
    "UPDATE job_event SET next_status = 'x'",
    "TRUNCATE TABLE job_event",
    "TRUNCATE TABLE message_event",
    "REPLACE INTO job_event (id, job_id, next_status) SELECT id, job_id, 'x' FROM job_event",
    "REPLACE INTO job_event (rowid, id, job_id, next_status) SELECT 1, 'x', id, 'x' FROM job",
    "REPLACE INTO job (rowid, id, org_id, type) SELECT rowid, 'x', org_id, 'x' FROM job",
    "UPDATE job SET rowid = -1",
)
"""Not all are known to all, and those are refused as well."""


FORGED_PERMIT = (
    "CREATE TEMPORARY TABLE history_permit (id CHAR(36))",
    "INSERT INTO history_permit VALUES ('x')",
)


class RetentionContract:
    """What is removed, and when. Fixtures: `ledger` and its `home`."""

    def test_retention(self, home: Home) -> None:
        """What is over for long enough goes with its history; its key is remembered for longer."""
        clock = ManualClock()
        settings = JobSettings(keep_days=10, keep_dead_letters_days=20, keep_keys_days=30)
        with opened(home.url, clock=clock) as ledger:
            fates = {
                OutcomeKind.DONE: Status.SUCCEEDED,
                OutcomeKind.CANCELED: Status.CANCELED,
                OutcomeKind.DEAD: Status.DEAD_LETTER,
            }
            ids = {verdict: ended(ledger, verdict) for verdict in fates}
            waiting = ledger.run(lambda tx: tx.jobs.enqueue("work", key="waiting"))

            removed, left = {}, {}
            for days in (9, 2, 10, 20):
                clock.advance(days * 86_400)
                removed[days] = ledger.run(lambda tx: retention.retire(tx, settings))
                with ledger.reading() as tx:
                    left[days] = {job.status for job in tx.jobs.find().rows}
            with ledger.reading() as tx:
                events, keys = (
                    tx.connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar()  # noqa: S608 - our own
                    for table in ("job_event", "job_key")
                )
            again = ledger.run(lambda tx: tx.jobs.enqueue("work", key="done"))
            still = ledger.run(lambda tx: tx.jobs.enqueue("work", key="waiting"))

        assert removed == {9: 0, 2: 2, 10: 1, 20: 0}
        assert left[9] == {*fates.values(), Status.QUEUED}
        assert left[2] == {Status.DEAD_LETTER, Status.QUEUED}
        assert left[10] == left[20] == {Status.QUEUED}
        assert (events, keys) == (1, 1)
        assert (again.accepted, again.id != ids[OutcomeKind.DONE]) == (Accepted.CREATED, True)
        assert (still.accepted, still.id) == (Accepted.EXISTING, waiting.id)

    def test_retention_counts_from_the_end(self, home: Home) -> None:
        """A job that was accepted long ago is kept from when it was over, not from before."""
        clock = ManualClock()
        settings = JobSettings(keep_days=10, keep_dead_letters_days=10, keep_keys_days=10)
        with opened(home.url, clock=clock) as ledger:
            ledger.kinds.add("work", lambda: None)
            source = ledger.job_source()
            add(ledger, [NewJob(type="work")])
            claims = claimed(ledger, source)
            clock.advance(9 * 86_400)
            settled(ledger, source, claims, OutcomeKind.DONE)

            removed = []
            for days in (9, 2):
                clock.advance(days * 86_400)
                removed.append(ledger.run(lambda tx: retention.retire(tx, settings)))

        assert removed == [0, 1]

    def test_retention_takes_some_at_a_time(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One turn removes a bounded number of jobs and of keys, the oldest; the next goes on."""
        monkeypatch.setattr(retention, "ROWS_MAX", 2)
        clock = ManualClock()
        settings = JobSettings(keep_days=1, keep_dead_letters_days=1, keep_keys_days=4)
        with opened(home.url, clock=clock) as ledger:
            ledger.kinds.add("work", lambda: None)
            source = ledger.job_source()
            for name in "abcde":
                add(ledger, [NewJob(type="work", key=name)])
                clock.advance(1)
            settled(ledger, source, claimed(ledger, source), OutcomeKind.DONE)

            turns = []
            for days in (2, 0, 0, 3, 0, 0):
                clock.advance(days * 86_400)
                removed = ledger.run(lambda tx: retention.retire(tx, settings))
                with ledger.reading() as tx:
                    left = "".join(sorted(str(job.key) for job in tx.jobs.find().rows))
                    query = text("SELECT idempotency_key FROM job_key ORDER BY 1")
                    keys = "".join(tx.execute(query).scalars())
                turns.append((removed, left, keys))

        assert turns[:3] == [(2, "cde", "abcde"), (2, "e", "abcde"), (1, "", "abcde")]
        assert turns[3:] == [(0, "", "cde"), (0, "", "e"), (0, "", "")]

    def test_a_key_outlives_its_job(self, home: Home) -> None:
        """While its key is remembered, a job that is gone is not accepted again."""
        clock = ManualClock()
        settings = JobSettings(keep_days=10, keep_dead_letters_days=10, keep_keys_days=30)
        with opened(home.url, clock=clock) as ledger:
            job_id = ended(ledger, OutcomeKind.DONE)
            clock.advance(11 * 86_400)
            assert ledger.run(lambda tx: retention.retire(tx, settings)) == 1

            again = ledger.run(lambda tx: tx.jobs.enqueue("work", key="done"))

        assert (again.id, again.accepted) == (job_id, Accepted.EXISTING)

    @pytest.mark.parametrize("rewrite", REWRITES)
    def test_history_is_kept_without_a_permit(self, ledger: Ledger, rewrite: str) -> None:
        """Nobody removes or changes history by hand, not even after retention has run."""
        job_id = ended(ledger, OutcomeKind.DONE)
        ledger.run(lambda tx: retention.retire(tx, JobSettings()))
        with ledger.reading() as tx:
            before = tx.jobs.events(job_id).rows

        with pytest.raises(errors.StoreError):
            execute(ledger, rewrite)

        with ledger.reading() as tx:
            assert tx.jobs.events(job_id).rows == before != []

    @pytest.mark.parametrize("rewrite", REWRITES)
    def test_a_permit_is_not_forged(self, home: Home, ledger: Ledger, rewrite: str) -> None:
        """A temporary table with the name of the permit's table permits nothing to a program."""
        job_id = ended(ledger, OutcomeKind.DONE)
        with ledger.reading() as tx:
            before = tx.jobs.events(job_id).rows

        with closing(connect(home.url)) as theirs:
            cursor = theirs.cursor()
            for forge in FORGED_PERMIT:
                cursor.execute(forge)
            with pytest.raises(Exception) as refusal:  # noqa: PT011 - whichever driver it is
                cursor.execute(rewrite)

        assert isinstance(translated(refusal.value), errors.StoreError)
        with ledger.reading() as tx:
            assert tx.jobs.events(job_id).rows == before != []

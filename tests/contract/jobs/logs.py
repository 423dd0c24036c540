"""The log contract: every failed attempt, dead letter, failed message and lost lease is logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ledgerstone import log_context
from ledgerstone.engine.source import Failure, Outcome, OutcomeKind
from ledgerstone.jobs import Job, Status
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging import Message
from ledgerstone.testing.clock import ManualClock
from tests.contract.jobs.examples import (
    GRACE,
    LEASE_SECONDS,
    claim,
    drain,
    enqueue,
    nothing,
    rescue,
    standing,
    tick,
)

WARNING, ERROR = "WARNING", "ERROR"


class JobLogsContract:
    """What the log tells. Fixtures: `ledger`, `clock`."""

    @pytest.fixture
    def log(self, caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
        """What is logged, from now on."""
        with caplog.at_level(logging.INFO, logger="ledgerstone"):
            yield caplog

    def test_failed_attempts(
        self, ledger: Ledger, clock: ManualClock, log: pytest.LogCaptureFixture
    ) -> None:
        """Each failed attempt is a warning, the dead letter an error, each with its traceback."""

        @ledger.job("mail.send", max_attempts=3, backoff="fixed")
        def fail(job: Job) -> None:
            message = f"no address {job.attempt}"
            raise ValueError(message)

        job_id = enqueue(ledger, fail)

        drain(ledger.worker(), clock)

        told = _told(log, "ledgerstone.jobs")
        assert [level for level, _ in told] == [WARNING, WARNING, ERROR]
        for n, (_, words) in enumerate(told, start=1):
            begin = f"job mail.send {job_id}: attempt {n} of 3 failed: ValueError: no address {n}; "
            assert words.startswith(begin)
        assert all("next try in 1" in words for _, words in told[:2])
        assert told[2][1].endswith("; it is a dead letter")
        texts = [record.exc_text or "" for record in _records(log, "ledgerstone.jobs")]
        assert all("raise ValueError(message)" in text for text in texts)

    def test_what_is_not_committed_is_not_logged(
        self, ledger: Ledger, clock: ManualClock, log: pytest.LogCaptureFixture
    ) -> None:
        """A settlement that is undone leaves no line."""
        ledger.kinds.add("a", nothing)
        enqueue(ledger, "a")
        source = ledger.job_source()
        (taken,) = claim(ledger, source)
        outcome = Outcome(taken, OutcomeKind.DEAD, failure=Failure("test", "as wished"))

        def settle_and_undo(tx: Transaction) -> None:
            source.settle(tx, [outcome])
            raise _Undone

        with pytest.raises(_Undone):
            ledger.run(settle_and_undo)
        undone = _told(log, "ledgerstone.jobs")
        ledger.run(lambda tx: source.settle(tx, [outcome]))

        assert undone == []
        assert [level for level, _ in _told(log, "ledgerstone.jobs")] == [ERROR]

    def test_a_canceled_job_that_fails(
        self, ledger: Ledger, clock: ManualClock, log: pytest.LogCaptureFixture
    ) -> None:
        """A job that fails after it was asked to stop is canceled; its failure is logged."""

        @ledger.job("a")
        def fail(job: Job) -> None:
            ledger.run(lambda tx: tx.jobs.cancel(job.id))
            raise ValueError

        job_id = enqueue(ledger, fail)

        tick(ledger)

        assert standing(ledger, job_id).status is Status.CANCELED
        ((level, words),) = _told(log, "ledgerstone.jobs")
        assert (level, words.rpartition("; ")[2]) == (ERROR, "it was canceled")

    def test_lost_leases(
        self, ledger: Ledger, clock: ManualClock, log: pytest.LogCaptureFixture
    ) -> None:
        """The worker that lost a lease says so, and the one that rescues the job."""
        ledger.kinds.add("a", nothing)
        job_id = enqueue(ledger, "a")
        worker = ledger.worker()
        pump = worker.pumps[0]
        (taken,) = claim(ledger, ledger.job_source(), worker=worker.id)
        pump._accepted([taken])
        clock.advance(LEASE_SECONDS + 1)

        rescue(ledger, ledger.job_source())
        claim(ledger, ledger.job_source(), worker=GRACE)
        worker.beat()
        worker.beat()

        rescued = f"job a {job_id}, attempt 1: the lease of worker {worker.id} ran out"
        assert f"{rescued}; it is queued again" in _words(log)
        assert f"jobs:default: lost the lease of job a {job_id}, attempt 1" in _words(log)
        worker.stop(grace_seconds=0)

    def test_failed_messages(
        self, ledger: Ledger, clock: ManualClock, log: pytest.LogCaptureFixture
    ) -> None:
        """Each attempt of a consumer that fails is a warning, the failed message an error."""
        retries = ledger.settings.messaging.retries_max

        @ledger.consumer("order.*", name="mailer")
        def fail(_tx: Transaction, _message: Message) -> None:
            text = "no such order"
            raise ValueError(text)

        sent = ledger.run(lambda tx: tx.outbox.publish("order.placed", {"order": 7}))

        drain(ledger.worker(), clock)

        told = _told(log, "ledgerstone.messaging")
        assert [level for level, _ in told] == [*[WARNING] * retries, ERROR]
        begin = f"message order.placed {sent.id} for mailer: attempt"
        assert all(words.startswith(begin) for _, words in told)
        assert told[-1][1].endswith("ValueError: no such order; it is in the failed table")
        texts = [record.exc_text or "" for record in _records(log, "ledgerstone.messaging")]
        assert all("raise ValueError(text)" in text for text in texts)

    def test_ids_are_in_the_context(self, ledger: Ledger, clock: ManualClock) -> None:
        """What a handler logs belongs to its job or message: the ids are in the log context."""
        seen: dict[str, object] = {}

        @ledger.job("plain")
        def plain() -> None:
            seen["plain"] = dict(log_context.current())

        @ledger.job("awaited")
        async def awaited() -> None:
            seen["awaited"] = dict(log_context.current())

        @ledger.consumer("order.*", name="mailer")
        def mail(_tx: Transaction, _message: Message) -> None:
            seen["message"] = dict(log_context.current())

        ids = {name: enqueue(ledger, name) for name in ("plain", "awaited")}
        sent = ledger.run(lambda tx: tx.outbox.publish("order.placed", {"order": 7}))

        drain(ledger.worker(), clock)

        jobs = {
            name: {"job_type": name, "job_id": job_id, "attempt": 1} for name, job_id in ids.items()
        }
        message = {"message_name": "order.placed", "message_id": sent.id, "consumer": "mailer"}
        assert seen == {**jobs, "message": message}
        assert log_context.current() == {}


class _Undone(Exception):
    """Rolls a transaction back."""


def _records(log: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in log.records if record.name == name]


def _told(log: pytest.LogCaptureFixture, name: str) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in _records(log, name)]


def _words(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records]

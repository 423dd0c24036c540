"""The job contract, retries: how far apart the default attempts are, and errors that end a job."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from ledgerstone.engine.worker import Worker
from ledgerstone.errors import HandlerTimeout, StoreBusy, TargetDown
from ledgerstone.jobs import Status
from ledgerstone.jobs.tables import MAX_ATTEMPTS
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.jobs.examples import enqueue, standing, tick
from tests.harness import children
from tests.harness.workers import started

HOUR_SECONDS = 3600.0
SPAN_SECONDS = (0.8 * HOUR_SECONDS, 1.2 * HOUR_SECONDS)


class RetriesContract:
    """When a job is tried again, and when not. Fixtures: `ledger`, `clock`."""

    def test_the_default_attempts_span_an_hour(self, ledger: Ledger, clock: ManualClock) -> None:
        """With the defaults the last attempt begins about an hour after the first, with jitter."""
        ledger.kinds.add("fails", _fails)
        ids = [enqueue(ledger, "fails") for _ in range(3)]
        first = clock.now_ms()
        waits: list[set[float]] = []

        for _ in range(MAX_ATTEMPTS - 1):
            tick(ledger)
            due = [standing(ledger, job_id).run_at.timestamp() for job_id in ids]
            waits.append({moment - clock.now_ms() / 1000 for moment in due})
            clock.advance(max(due) - clock.now_ms() / 1000)
        span = (clock.now_ms() - first) / 1000
        tick(ledger)

        assert SPAN_SECONDS[0] <= span <= SPAN_SECONDS[1]
        assert all(len(each) > 1 for each in waits)
        assert {standing(ledger, job_id).attempt for job_id in ids} == {MAX_ATTEMPTS}

    @pytest.mark.parametrize(
        ("options", "error", "status"),
        [
            ({"give_up_on": ValueError}, ValueError(), Status.DEAD_LETTER),
            ({"give_up_on": (KeyError, LookupError)}, IndexError(), Status.DEAD_LETTER),
            ({"give_up_on": ValueError}, KeyError(), Status.QUEUED),
            ({"retry_on": [OSError]}, ConnectionError(), Status.QUEUED),
            ({"retry_on": OSError}, ValueError(), Status.DEAD_LETTER),
            ({"retry_on": ()}, ValueError(), Status.DEAD_LETTER),
            ({"retry_on": OSError}, StoreBusy("locked"), Status.QUEUED),
            ({"retry_on": OSError}, TargetDown("mail"), Status.QUEUED),
            ({"retry_on": OSError, "give_up_on": FileNotFoundError}, OSError(), Status.QUEUED),
            (
                {"retry_on": OSError, "give_up_on": FileNotFoundError},
                FileNotFoundError(),
                Status.DEAD_LETTER,
            ),
        ],
        ids=str,
    )
    def test_errors_by_their_type(
        self,
        ledger: Ledger,
        clock: ManualClock,
        options: dict[str, Any],
        error: Exception,
        status: Status,
    ) -> None:
        """`retry_on` and `give_up_on` decide by the type of the exception."""

        @ledger.job("plain", **options)
        def plain() -> None:
            raise error

        @ledger.job("awaited", **options)
        async def awaited() -> None:
            await asyncio.sleep(0)
            raise error

        ids = [enqueue(ledger, job) for job in (plain, awaited)]

        tick(ledger)

        rows = [standing(ledger, job_id) for job_id in ids]
        assert {row.status for row in rows} == {status}
        if status is Status.DEAD_LETTER:
            assert {row.last_error_code for row in rows} == {type(error).__name__}

    def test_a_timeout_that_is_given_up_on(self, ledger: Ledger) -> None:
        """A timeout ends a job at once if `give_up_on` names it, and not because of `retry_on`."""

        @ledger.job("ends", timeout_seconds=0.1, give_up_on=HandlerTimeout)
        async def ends() -> None:
            await asyncio.Event().wait()

        @ledger.job("goes.on", timeout_seconds=0.1, retry_on=OSError)
        async def goes_on() -> None:
            await asyncio.Event().wait()

        ids = [enqueue(ledger, job) for job in (ends, goes_on)]

        with started(ledger.worker()):
            until(lambda: all(standing(ledger, i).last_error_code for i in ids))

        rows = [standing(ledger, job_id) for job_id in ids]
        assert [row.last_error_code for row in rows] == ["timeout", "timeout"]
        assert [row.status for row in rows] == [Status.DEAD_LETTER, Status.QUEUED]

    def test_a_timeout_of_which_no_notice_is_taken(self, ledger: Ledger) -> None:
        """`give_up_on` holds for a handler that is abandoned, as for one that stops in time."""
        over = threading.Event()

        @ledger.job("stuck", timeout_seconds=0.1, give_up_on=HandlerTimeout)
        def stuck() -> None:
            over.wait(WAIT_SECONDS_MAX)

        job_id = enqueue(ledger, stuck)
        engine = msgspec.structs.replace(ledger.settings.engine, notice_seconds=0.01)
        worker = Worker(ledger.database, [ledger.job_source()], engine)

        with started(worker):
            until(lambda: standing(ledger, job_id).last_error_code)
            over.set()

        row = standing(ledger, job_id)
        assert (row.last_error_code, row.status) == ("timeout", Status.DEAD_LETTER)

    @pytest.mark.slow
    def test_errors_of_another_process(self, ledger: Ledger) -> None:
        """The type counts also if the error cannot be sent from the process that raised it."""
        options: dict[str, Any] = {"process": True, "max_attempts": 2}
        ledger.kinds.add("gives.up", children.refuses, give_up_on=children.Unsent, **options)
        ledger.kinds.add("base", children.refuses_too, give_up_on=LookupError, **options)
        ids = [enqueue(ledger, name) for name in ("gives.up", "base")]

        with started(ledger.worker()):
            until(lambda: all(standing(ledger, i).last_error_code for i in ids))

        rows = [standing(ledger, job_id) for job_id in ids]
        assert {(row.status, row.attempt) for row in rows} == {(Status.DEAD_LETTER, 1)}
        assert {row.last_error_code for row in rows} == {"Unsent"}


def _fails() -> None:
    raise ValueError

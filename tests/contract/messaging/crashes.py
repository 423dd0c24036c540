"""The contract of messages that kill their process: counted for all processes, and given up."""

from __future__ import annotations

from threading import Lock
from typing import Any

import pytest

from ledgerstone.cancellation import Cancellation
from ledgerstone.engine.duties import Duty
from ledgerstone.errors import Interrupted
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.inbox import crashes
from ledgerstone.messaging.inbox.inbox import Handled, Result
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.failed import put
from tests.contract.messaging.inbox import message_of, new_office
from tests.harness.threads import together

CONSUMER = "mailer"
DAY_SECONDS = 86_400


class CrashContract:
    """What is counted, and when it is forgotten. Fixtures: `ledger`, `clock`."""

    @pytest.fixture
    def registry(self, ledger: Ledger) -> MessagingRegistry:
        return new_office(ledger)

    def test_given_up_after_so_many(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """One that was begun so often, and never ended, is not begun again."""
        came = message_of()
        results = [begun(ledger, came) for _ in range(5)]

        assert results == [True, True, True, False, False]
        given_up = tried(ledger, came)
        assert given_up.result is Result.DEAD
        assert given_up.failure is not None
        assert (given_up.failure.code, given_up.failure.crashed) == (crashes.CRASHED, True)

    def test_an_end_forgets_it(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A handler that ends, in whatever way, has killed nobody: it counts from the beginning."""
        came = message_of()
        for _ in range(4):
            begun(ledger, came)
            assert tried(ledger, came).result is Result.HANDLED
            with pytest.raises(LookupError):
                tried(ledger, came, LookupError())

        assert begun(ledger, came)

    def test_told_to_stop(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A handler that the engine has told to stop has killed nobody either."""
        came = message_of()
        for _ in range(4):
            told = Cancellation()

            def handle() -> Handled:
                told.cancel(Interrupted())  # noqa: B023
                told.check()  # noqa: B023
                raise AssertionError

            here = told.begin()
            with pytest.raises(Interrupted):
                crashes.guarded(
                    ledger.database, CONSUMER, came, handle, crashes_max=3, last_chance=Lock()
                )
            Cancellation.leave(here)

        assert begun(ledger, came)

    def test_each_consumer_by_itself(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """One that kills with one consumer is handled by another."""
        came = message_of()
        for _ in range(4):
            begun(ledger, came)

        assert not begun(ledger, came)
        assert begun(ledger, came, consumer="biller")
        assert begun(ledger, message_of())

    def test_the_failed_table_forgets_it(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """In the failed table it may be retried: it counts from the beginning."""
        came = message_of()
        for _ in range(4):
            begun(ledger, came)

        put(ledger, registry, came, consumer=CONSUMER)

        assert begun(ledger, came)

    def test_counted_by_all(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Processes that begin it at the same time are each counted."""
        came = message_of()
        together(*[lambda: begun(ledger, came, crashes_max=100) for _ in range(6)])

        assert not begun(ledger, came, crashes_max=6)

    def test_it_is_forgotten_in_the_end(
        self, ledger: Ledger, registry: MessagingRegistry, clock: ManualClock
    ) -> None:
        """What can come no more is removed by a duty."""
        came = message_of()
        for _ in range(4):
            begun(ledger, came)
        retire: Duty = crashes.duty(registry)

        clock.advance(DAY_SECONDS)
        early = ledger.run(retire.do)
        clock.advance(registry.settings.redelivery_days_max * DAY_SECONDS)
        late = ledger.run(retire.do)

        assert (early, late) == (0, 1)
        assert begun(ledger, came)


def begun(ledger: Ledger, came: Any, *, consumer: str = CONSUMER, crashes_max: int = 3) -> bool:
    """Whether it is begun once more; the process dies of it."""
    count = ledger.run(lambda tx: crashes._noted(tx, consumer, came))
    return count <= crashes_max


def tried(ledger: Ledger, came: Any, error: Exception | None = None) -> Handled:
    """What becomes of it with a handler that ends."""

    def handle() -> Handled:
        if error is not None:
            raise error
        return Handled(Result.HANDLED)

    return crashes.guarded(
        ledger.database, CONSUMER, came, handle, crashes_max=3, last_chance=Lock()
    )

"""Random histories of every source, on every database."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from ledgerstone import Ledger
from ledgerstone.testing.clock import ManualClock
from tests.chores.subject import ChoreSubject
from tests.contract.engine.histories import Histories
from tests.harness.sizes import sized

DRAWN = settings(
    max_examples=sized(10, full=200),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.torture
def test_chores(ledger: Ledger, clock: ManualClock) -> None:
    """Chores agree with their model after every step of every history."""

    class Chores(Histories):
        pass

    Chores.ledger, Chores.clock, Chores.subject = ledger, clock, ChoreSubject()

    run_state_machine_as_test(Chores, settings=DRAWN)

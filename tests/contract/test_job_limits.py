"""Limits, explanations and retention of jobs, on every database."""

from __future__ import annotations

import pytest

from ledgerstone import Ledger
from ledgerstone.jobs import NewJob, limits
from ledgerstone.testing.contract.limits import LimitContract, claimed, enqueue, limited_source
from ledgerstone.testing.contract.rivals import RivalContract


class TestLimits(LimitContract):
    """How many, why not, how long."""


class TestRivals(RivalContract):
    """Who gets into whose way."""


@pytest.mark.parametrize(
    "home",
    [
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
    indirect=True,
)
def test_a_key_that_another_holds(ledger: Ledger) -> None:
    """A claim that holds keys does not wait for one that comes before them: it leaves it."""
    source = limited_source(ledger)
    before, behind = sorted(("ada", "bob"), key=limits._slot)
    crowd = [NewJob(type="work", payload={"customer": behind}, priority=9) for _ in range(11)]
    ledger.run(lambda tx: tx.jobs.enqueue_many(crowd))
    ledger.run(enqueue({"customer": before}))
    ledger.run(lambda tx: limits.lock(tx, (before, behind)))

    with ledger.transaction() as other:
        limits.lock(other, [before])
        first = claimed(ledger, source)
    second = claimed(ledger, source)

    assert limits._slot(before) < limits._slot(behind)
    assert [claim.limit_key for claim in (*first, *second)] == [behind, before]

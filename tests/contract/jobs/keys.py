"""The job contract, batches: many at once by several, and moments and keys that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import delete, insert

from ledgerstone.errors import KeyConflict
from ledgerstone.ids import new_id
from ledgerstone.jobs import Accepted, Enqueued, NewJob
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.tables import job
from ledgerstone.ledger import Ledger
from ledgerstone.store.schema.tables import history_permit
from ledgerstone.testing.clock import ManualClock
from tests.contract.jobs.examples import enqueue, kept, standing
from tests.harness.threads import together

KEYS = 400
ROUNDS = 10
TWICE = datetime(2027, 11, 7, 1, 30, tzinfo=ZoneInfo("America/New_York"))
"""A time that comes twice, for clocks are set back that night."""


class KeysContract:
    """What holds for keys and moments of many. Fixtures: `ledger`, `clock`."""

    def test_the_same_keys_in_opposite_order(self, ledger: Ledger) -> None:
        """Two that take the same keys at once wait for each other; neither is refused."""
        for turn in range(ROUNDS):
            keys = [f"{turn}-{number}" for number in range(KEYS)]

            first, second = together(partial(many, ledger, keys), partial(many, ledger, keys[::-1]))

            assert [one.id for one in first] == [one.id for one in second[::-1]]
            assert {(a.created, b.created) for a, b in zip(first, second[::-1], strict=True)} in (
                {(True, False)},
                {(False, True)},
            )

    def test_answers_are_in_the_order_given(self, ledger: Ledger, clock: ManualClock) -> None:
        """Whatever order keys are taken in, each answer is that of its row; first come first."""
        keys = ["c", "a", None, "b", "a", None]
        batch = [NewJob(type="a", payload={"n": n}, key=key) for n, key in enumerate(keys)]

        answers = ledger.run(lambda tx: tx.jobs.enqueue_many(batch))

        found = [standing(ledger, answer.id) for answer in answers]
        assert [row.key for row in found] == ["c", "a", None, "b", "a", None]
        assert [row.payload["n"] for row in found] == [0, 1, 2, 3, 1, 5]
        assert answers[4].accepted is Accepted.CONFLICT
        assert kept(ledger)[0] == 5

    def test_a_time_that_comes_twice(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of two moments that are spelled alike each is kept, in one batch as alone."""
        batch = [NewJob(type="n", run_at=TWICE.replace(fold=fold)) for fold in (0, 1, 0)]

        answers = ledger.run(lambda tx: tx.jobs.enqueue_many(batch))
        alone = enqueue(ledger, "n", run_at=TWICE.replace(fold=1))

        hours = [standing(ledger, answer.id).run_at.astimezone(UTC).hour for answer in answers]
        assert hours == [5, 6, 5]
        assert standing(ledger, alone).run_at == datetime(2027, 11, 7, 6, 30, tzinfo=UTC)

    def test_the_key_of_one_by_hand_that_is_gone(self, ledger: Ledger, clock: ManualClock) -> None:
        """Whether content is that of a job which somebody added and removed nobody can say."""
        by_hand = {"id": new_id(), "org_id": NO_ORG, "type": "a", "idempotency_key": "k"}
        with ledger.transaction() as tx:
            tx.execute(insert(job).values(by_hand))
        met = ledger.run(lambda tx: tx.jobs.enqueue("a", {}, key="k"))
        with ledger.transaction() as tx:
            tx.execute(insert(history_permit).values(id=new_id()))
            tx.execute(delete(job))
            tx.execute(delete(history_permit))

        with pytest.raises(KeyConflict, match=by_hand["id"]):
            enqueue(ledger, "a", {"other": 1}, key="k")

        assert met.accepted is Accepted.EXISTING
        assert kept(ledger) == (0, 0, 1)


def many(ledger: Ledger, keys: Sequence[str]) -> list[Enqueued]:
    """Accept one for each key, in one transaction that is not tried again."""
    with ledger.transaction() as tx:
        return tx.jobs.enqueue_many([NewJob(type="x", key=key) for key in keys])

"""The moves of a request."""

from __future__ import annotations

from itertools import product

import pytest

from ledgerstone.errors import MoveNotAllowed
from ledgerstone.signing.states import FINISHED, MOVES, Status, check_move
from ledgerstone.signing.values import (
    Aborted,
    Approved,
    Expired,
    Finalized,
    Pending,
    Rejected,
    RequestDecision,
)

ALLOWED = {
    "pending": {"approved", "rejected", "expired", "aborted"},
    "approved": {"finalized", "expired", "aborted"},
    "rejected": set[str](),
    "expired": set[str](),
    "finalized": set[str](),
    "aborted": set[str](),
}
DECISIONS: list[RequestDecision] = [
    Pending(),
    Approved(),
    Rejected(reason=""),
    Expired(),
    Finalized(),
    Aborted(reason=""),
]


@pytest.mark.parametrize(("current", "to"), [*product(Status, Status)])
def test_every_pair(current: Status, to: Status) -> None:
    """A move is allowed exactly if the documented table has it; staying is no move."""
    if to.value in ALLOWED[current.value]:
        check_move(current, to)
    else:
        with pytest.raises(MoveNotAllowed, match=f"{current.value} cannot become {to.value}"):
            check_move(current, to)


def test_finished_states() -> None:
    """The finished states are those that no move leaves."""
    assert set(Status) - {current for current, _ in MOVES} == FINISHED


def test_each_decision_has_its_state() -> None:
    """The stored decisions and the states are the same six, in the same order."""
    assert [decision.status for decision in DECISIONS] == list(Status)
    assert [type(decision) for decision in DECISIONS] == list(RequestDecision.__args__)

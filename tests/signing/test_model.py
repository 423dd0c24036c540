"""Random histories of requests against a model of what must hold."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from ledgerstone.errors import LedgerstoneError, VoteChanged
from ledgerstone.signing.keys import ContextKey
from ledgerstone.signing.life import records, trail, volume
from ledgerstone.signing.life.trail import Moved, RequestContext
from ledgerstone.signing.states import FINISHED, MOVES, Status
from ledgerstone.signing.values import RequestId
from tests.harness.sizes import sized
from tests.signing.people import DAY, KAS, payment
from tests.signing.world import MINUTE, Worlds

pytestmark = pytest.mark.torture

LIMIT = 35 * KAS

numbers = st.integers(1, 3)


class Histories(RuleBasedStateMachine):
    """Two of three members; every call may come at any time, and often comes in vain."""

    active = Bundle("active")

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="signing-histories-")
        self.worlds = Worlds(Path(self.folder.name))
        self.world = self.worlds(max_daily_volume_sompi=LIMIT)
        self.amounts: dict[RequestId, int] = {}
        self.votes: dict[tuple[RequestId, int], bool] = {}
        self.paid: dict[int, int] = {}

    def teardown(self) -> None:
        self.worlds.__exit__()
        self.folder.cleanup()

    @rule(target=active, amount=st.integers(1, 20))
    def propose(self, amount: int) -> RequestId:
        number = len(self.amounts)
        request = self.world.propose(f"r{number}", payment(number, amount_sompi=amount * KAS))
        self.amounts[request] = amount * KAS
        return request

    @rule(request=active, number=numbers, accept=st.booleans() | st.just(value=True))
    def vote(self, request: RequestId, number: int, accept: bool) -> None:
        earlier = self.votes.get((request, number))
        try:
            self.world.vote(request, number, accept=accept)
        except VoteChanged:
            assert earlier is not None
            assert earlier is not accept
        except LedgerstoneError:
            assert earlier is None
        else:
            assert earlier in {None, accept}
            self.votes[request, number] = accept

    @rule(request=active)
    def accept(self, request: RequestId) -> None:
        for number in (1, 2):
            self.vote(request, number, accept=True)

    @rule(request=active, number=numbers)
    def sign(self, request: RequestId, number: int) -> None:
        for index in (0, 1):
            self.attempt(lambda index=index: self.world.sign(request, number, index))

    @rule(request=active)
    def finalize(self, request: RequestId) -> None:
        self.sign(request, 1)
        self.sign(request, 2)
        before = self.world.decision(request).status
        self.attempt(lambda: self.world.finalize(request))
        if before is Status.APPROVED and self.status(request) is Status.FINALIZED:
            day = self.world.now // DAY
            self.paid[day] = self.paid.get(day, 0) + self.amounts[request]

    @rule(request=active)
    def abort(self, request: RequestId) -> None:
        self.attempt(lambda: self.world.abort(request))

    @rule(pause=st.sampled_from([1, MINUTE // 2, MINUTE, DAY]))
    def wait(self, pause: int) -> None:
        self.world.now += pause
        for request in self.amounts:
            self.world.expire(request)

    @rule(target=active, request=consumes(active))
    def forget_the_finished(self, request: RequestId) -> object:
        return multiple() if self.status(request) in FINISHED else request

    def attempt(self, call: object) -> None:
        """A call that is refused changes nothing."""
        rows = self.world.rows()
        assert callable(call)
        try:
            call()
        except LedgerstoneError:
            assert self.world.rows() == rows

    def status(self, request: RequestId) -> Status:
        return self.world.decision(request).status

    @invariant()
    def volume_is_what_was_paid(self) -> None:
        """The volume of each day is the sum of what was finalized on it, within the limit."""
        with self.world.store.transaction() as tx:
            for day, paid in self.paid.items():
                assert volume.volume_of_day(tx, day * DAY) == paid <= LIMIT
            assert volume.volume_since(tx, 0) == sum(self.paid.values())

    @invariant()
    def reserved_is_what_is_approved(self) -> None:
        """The reserved amount is the sum of the approved requests, within the limit of today."""
        with self.world.store.transaction() as tx:
            approved = [r for r in self.amounts if self.status(r) is Status.APPROVED]
            reserved = volume.reserved(tx)
            assert reserved == sum(self.amounts[request] for request in approved)
            assert reserved + volume.volume_of_day(tx, self.world.now) <= LIMIT

    @invariant()
    def votes_and_trails_agree(self) -> None:
        """An approved request has two accepts; every move of a trail is in the table."""
        with self.world.store.transaction() as tx:
            for request in self.amounts:
                happened = [entry.happened for entry in trail.entries(tx, request)]
                moves = [step for step in happened if isinstance(step, Moved)]
                pairs = [(Status(step.before), Status(step.after)) for step in moves]
                assert MOVES.issuperset(pairs)
                context = records.find(tx, RequestContext, ContextKey(request_id=request))
                assert context is not None
                assert context.entries == len(happened)
                if Status.APPROVED in {after for _, after in pairs}:
                    assert sum(self.votes.get((request, n), False) for n in (1, 2, 3)) >= 2


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=sized(30, full=1000), stateful_step_count=sized(40, full=100)
)

"""The job contract, random histories: whatever happens in whatever order, jobs agree with a model.

The model knows states, attempts, crashes and moves; after each history the events of every job must
be the moves that the model has made, and lead to its row.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from ledgerstone.engine.source import Ask, Claim, Failure, Outcome, OutcomeKind
from ledgerstone.errors import KeyConflict, NotAllowedNow
from ledgerstone.ids import new_id
from ledgerstone.jobs import JobSource, Status
from ledgerstone.jobs.source import OPEN_SECONDS
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from tests.contract.jobs.examples import (
    ADA,
    CRASHES_MAX,
    GRACE,
    LEASE_SECONDS,
    assert_replayed,
    moves_of,
)

WAIT_SECONDS = 20.0
"""Between two attempts, and of what is put off."""
LEAST_SECONDS = 0.001
"""Of what is put off for no time at all."""
ATTEMPTS = 3
DAYS_SECONDS = 864_000
"""More than all histories together set the clock back."""
STATES = {status.value: status for status in Status}


class _Model:
    """What is known of a job."""

    def __init__(self, waits_until: float | None) -> None:
        self.moves: list[tuple[str | None, str]] = [(None, "queued")]
        self.attempt = 0
        self.crashes = 0
        self.waits_until = waits_until
        """None: in line, and there it stays, also if the clock is set back."""
        self.lease_until = 0.0
        self.holder: Claim | None = None
        self.unwanted = False

    @property
    def state(self) -> str:
        return self.moves[-1][1]

    def go(self, *states: str) -> None:
        for state in states:
            self.moves.append((self.state, state))
        if self.state != "running":
            self.holder = None


class JobHistories(RuleBasedStateMachine):
    """Jobs beside their model; who runs it sets `ledger`, `clock` and `source`.

    The kind is called `drawn`, has ATTEMPTS attempts and waits WAIT_SECONDS between them.
    """

    ledger: Ledger
    clock: ManualClock
    source: JobSource

    claims: Bundle[Claim] = Bundle("claims")
    jobs: Bundle[str] = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, _Model] = {}
        self._keys: dict[str, tuple[str, int]] = {}
        self._name = new_id()
        self._drained()

    @property
    def now(self) -> float:
        return self.clock.now_ms() / 1000

    @rule(target=jobs, delay=st.sampled_from([0, 0, WAIT_SECONDS]))
    def enqueue(self, delay: float) -> str:
        enqueued = self.ledger.run(lambda tx: tx.jobs.enqueue("drawn", delay_seconds=delay))
        self.models[enqueued.id] = _Model(self.now + delay if delay else None)
        return enqueued.id

    @rule(target=jobs, key=st.sampled_from(["k", "l"]), number=st.integers(0, 1))
    def enqueue_keyed(self, key: str, number: int) -> Any:
        key = f"{self._name} {key}"
        known = self._keys.get(key)
        try:
            enqueued = self.ledger.run(
                lambda tx: tx.jobs.enqueue("drawn", {"number": number}, key=key)
            )
        except KeyConflict:
            assert known is not None
            assert known[1] != number
            return multiple()
        if known is not None:
            assert (enqueued.id, enqueued.created) == (known[0], False)
            assert known[1] == number
            return multiple()
        self._keys[key] = (enqueued.id, number)
        self.models[enqueued.id] = _Model(None)
        return enqueued.id

    @rule(target=claims, worker=st.sampled_from([ADA, GRACE]), limit=st.integers(1, 4))
    def claim(self, worker: str, limit: int) -> Any:
        ask = Ask(limit, worker, LEASE_SECONDS)
        taken = self.ledger.run(lambda tx: list(self.source.claim(tx, ask)))
        for model in self.models.values():
            if model.waits_until is not None and model.waits_until <= self.now:
                model.waits_until = None
        due = [k for k, m in self.models.items() if m.state == "queued" and m.waits_until is None]
        assert len(taken) == min(limit, len(due))
        assert {claim.key for claim in taken} <= set(due)
        for claim in taken:
            model = self.models[claim.key]
            model.attempt += 1
            assert claim.attempt == model.attempt
            model.go("running")
            model.holder, model.lease_until = claim, self.now + LEASE_SECONDS
        return multiple(*taken)

    @rule(
        claim=consumes(claims),
        verdict=st.sampled_from(OutcomeKind),
        crashed=st.booleans(),
        delay=st.sampled_from([None, WAIT_SECONDS]),
    )
    def settle(
        self, claim: Claim, verdict: OutcomeKind, crashed: bool, delay: float | None
    ) -> None:
        failure = (
            None if verdict is OutcomeKind.DONE else Failure("drawn", "drawn", crashed=crashed)
        )
        if verdict not in {OutcomeKind.SNOOZED, OutcomeKind.RETURNED}:
            delay = None
        outcome = Outcome(claim, verdict, failure=failure, delay_seconds=delay)

        refused = self.ledger.run(lambda tx: list(self.source.settle(tx, [outcome]).lost))

        model = self.models[claim.key]
        assert bool(refused) == (model.holder is not claim)
        if not refused:
            self._apply(model, verdict, crashed=crashed, delay=delay)

    @rule(claim=claims)
    def extend(self, claim: Claim) -> None:
        lost = self.ledger.run(lambda tx: list(self.source.extend(tx, [claim], LEASE_SECONDS).lost))
        model = self.models[claim.key]
        assert bool(lost) == (model.holder is not claim)
        if not lost:
            model.lease_until = self.now + LEASE_SECONDS

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        model = self.models[job_id]
        try:
            answer = self.ledger.run(lambda tx: tx.jobs.cancel(job_id))
        except NotAllowedNow:
            assert model.state in {"succeeded", "dead_letter"}
            return
        if model.state == "queued":
            model.go("canceled")
        elif model.state == "running":
            model.unwanted = True
        assert answer is STATES[model.state]

    @rule(job_id=jobs)
    def retry(self, job_id: str) -> None:
        model = self.models[job_id]
        try:
            self.ledger.run(lambda tx: tx.jobs.retry(job_id))
        except NotAllowedNow:
            assert model.state != "dead_letter"
            return
        assert model.state == "dead_letter"
        model.go("queued")
        model.attempt, model.crashes, model.waits_until = 0, 0, None

    @rule()
    def rescue(self) -> None:
        """The workers of expired claims are taken to have crashed."""
        rescued = self.ledger.run(
            lambda tx: self.source.rescue(tx, limit=1000, crashes_max=CRASHES_MAX)
        )
        expired = [
            m for m in self.models.values() if m.state == "running" and m.lease_until <= self.now
        ]
        assert rescued == len(expired)
        for model in expired:
            if model.unwanted:
                model.go("canceled")
                continue
            model.crashes += 1
            if model.crashes >= CRASHES_MAX or model.attempt >= ATTEMPTS:
                model.go("failed", "dead_letter")
            else:
                model.go("queued")
                model.waits_until = None

    @rule(seconds=st.sampled_from([2 * OPEN_SECONDS, WAIT_SECONDS, LEASE_SECONDS + 1, 400]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-4000, -1, -0.001, 60]))
    def set_clock(self, seconds: float) -> None:
        """As an operator would, forward or back."""
        self.clock.jump(seconds)
        # What is put off is looked at only so often.
        self.clock.advance(2 * OPEN_SECONDS)

    @invariant()
    def agrees(self) -> None:
        with self.ledger.reading() as tx:
            for job_id, model in self.models.items():
                row = tx.jobs.get(job_id)
                told = (row.status.value, row.attempt, row.crashes, row.cancel_requested)
                assert told == (model.state, model.attempt, model.crashes, model.unwanted)

    def teardown(self) -> None:
        for job_id, model in self.models.items():
            assert moves_of(self.ledger, job_id) == model.moves
            assert_replayed(self.ledger, job_id)

    def _apply(
        self, model: _Model, verdict: OutcomeKind, *, crashed: bool, delay: float | None
    ) -> None:
        match verdict:
            case OutcomeKind.DONE:
                model.go("succeeded")
            case OutcomeKind.CANCELED:
                model.go("canceled")
            case _ if model.unwanted:
                model.go("canceled")
            case OutcomeKind.SNOOZED | OutcomeKind.RETURNED:
                model.attempt -= 1
                model.go("queued")
                # Only what is returned may be due again at once.
                at_once = delay is None and verdict is OutcomeKind.RETURNED
                model.waits_until = None if at_once else self.now + (delay or LEAST_SECONDS)
            case OutcomeKind.FAILED | OutcomeKind.DEAD:
                model.crashes += crashed
                spent = model.attempt >= ATTEMPTS or (crashed and model.crashes >= CRASHES_MAX)
                last = spent or verdict is OutcomeKind.DEAD
                model.go("failed", "dead_letter" if last else "queued")
                model.waits_until = self.now + WAIT_SECONDS

    def _drained(self) -> None:
        """What the history before left in line is not claimed by this one."""
        # Its leases have run out and its waits are over: nothing of it is held or put off.
        self.clock.advance(DAYS_SECONDS)
        for _ in range(CRASHES_MAX + 1):
            self.ledger.run(lambda tx: self.source.rescue(tx, limit=1000, crashes_max=1))
            self.clock.advance(DAYS_SECONDS)
        while taken := self.ledger.run(
            lambda tx: list(self.source.claim(tx, Ask(1000, ADA, LEASE_SECONDS)))
        ):
            ended = [Outcome(claim, OutcomeKind.DONE) for claim in taken]
            self.ledger.run(lambda tx, ended=ended: list(self.source.settle(tx, ended).lost))  # type: ignore[misc]

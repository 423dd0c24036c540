"""The lease contract: one holder at a time, a token that only grows, and fenced writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerstone import errors
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store import leases
from ledgerstone.store.leases import Lease
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.harness.child import Child
from tests.harness.own_table import note, notes_kept, tables, write
from tests.harness.threads import aside, signaled, still_waits, together

RACERS = 8
RACE = """
from ledgerstone import Ledger
from ledgerstone.store import leases

url, owner = sys.argv[1:]
with Ledger(url) as ledger:
    ready()
    print(ledger.run(lambda tx: leases.acquire(tx, "door", owner, seconds=60)) is not None)
"""
OWNERS = ("ann", "bob", "cid")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from(OWNERS), st.integers(1, 20)),
        st.tuples(st.just("renew"), st.integers(0, 4), st.integers(1, 20)),
        st.tuples(st.just("release"), st.integers(0, 4)),
        st.tuples(st.just("fence"), st.integers(0, 4)),
        st.tuples(st.just("advance"), st.integers(0, 15)),
        st.tuples(st.just("jump"), st.integers(-15, 15)),
    ),
    max_size=25,
)


class LeaseContract:
    """What holds for leases. Fixtures: `ledger`, `clock`, `home`."""

    def test_it_has_one_holder(self, ledger: Ledger) -> None:
        """While one holds it, another gets None; another lease is another matter."""
        ann = acquire(ledger, "door", "ann")

        assert ann == Lease("door", "ann", 1)
        assert acquire(ledger, "door", "bob") is None
        assert acquire(ledger, "window", "bob") == Lease("window", "bob", 1)

    def test_a_new_one_is_won_by_one(self, ledger: Ledger) -> None:
        """Of many threads that want a lease nobody had yet, exactly one gets it."""
        won = together(*[partial(acquire, ledger, "door", f"owner {i}") for i in range(RACERS)])

        assert len([lease for lease in won if lease is not None]) == 1

    def test_an_expired_one_is_won_by_one(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of many threads that want an expired lease, exactly one gets it, with the next token."""
        acquire(ledger, "door", "ann", seconds=5)
        clock.advance(5)

        won = together(*[partial(acquire, ledger, "door", f"owner {i}") for i in range(RACERS)])

        assert [lease.token for lease in won if lease is not None] == [2]

    def test_processes_race(self, ledger: Ledger, home: Home) -> None:
        """Of several processes that want the same lease, exactly one gets it."""
        p, q = Child(RACE, home.url, "p"), Child(RACE, home.url, "q")
        with p, q:
            p.go()
            q.go()
            said = sorted([p.ended(), q.ended()])

        assert said == [(0, "False"), (0, "True")]
        assert acquire(ledger, "door", "ann") is None

    def test_ones_own_is_renewed(self, ledger: Ledger, clock: ManualClock) -> None:
        """Who holds it and acquires it again keeps it longer, with the same token."""
        first = acquire(ledger, "door", "ann", seconds=10)
        clock.advance(6)

        again = acquire(ledger, "door", "ann", seconds=10)

        clock.advance(6)
        assert again == first
        assert acquire(ledger, "door", "bob") is None

    def test_it_ends_at_its_time(self, ledger: Ledger, clock: ManualClock) -> None:
        """It is held until its last moment and free from the next."""
        acquire(ledger, "door", "ann", seconds=5)
        clock.advance(4.999)
        before = acquire(ledger, "door", "bob")
        clock.advance(0.001)

        after = acquire(ledger, "door", "bob")

        assert before is None
        assert after == Lease("door", "bob", 2)

    def test_the_token_grows(self, ledger: Ledger, clock: ManualClock) -> None:
        """Every change of holder has a higher token: after a release, an expiry, the same owner."""
        tokens = []
        for owner, release in (("ann", True), ("ann", False), ("bob", True), ("ann", False)):
            lease = held(acquire(ledger, "door", owner, seconds=5))
            tokens.append(lease.token)
            if release:
                ledger.run(partial(leases.release, lease=lease))
            clock.advance(5)

        assert tokens == [1, 2, 3, 4]

    def test_renewing_keeps_it(self, ledger: Ledger, clock: ManualClock) -> None:
        """A holder that renews in time holds on, counted from the renewal."""
        lease = held(acquire(ledger, "door", "ann", seconds=5))
        clock.advance(4)
        ledger.run(lambda tx: leases.renew(tx, lease, seconds=5))
        ledger.run(lambda tx: leases.renew(tx, lease, seconds=5))
        clock.advance(4)

        assert acquire(ledger, "door", "bob") is None

    def test_renewing_too_late_fails(self, ledger: Ledger, clock: ManualClock) -> None:
        """A lease that ran out is lost to its holder, even if nobody took it."""
        lease = held(acquire(ledger, "door", "ann", seconds=5))
        clock.advance(5)

        with pytest.raises(errors.LeaseLost) as raised:
            ledger.run(lambda tx: leases.renew(tx, lease, seconds=5))

        assert not raised.value.retryable
        assert "'door'" in str(raised.value)

    def test_only_its_holder_releases(self, ledger: Ledger, clock: ManualClock) -> None:
        """Neither a stranger, nor its last holder, nor a forged token can give a lease back."""
        lost = held(acquire(ledger, "door", "ann", seconds=5))
        clock.advance(5)
        held(acquire(ledger, "door", "bob", seconds=5))

        for stranger in (lost, Lease("door", "ann", 2), Lease("door", "bob", 1)):
            assert not ledger.run(partial(leases.release, lease=stranger))
        assert acquire(ledger, "door", "ann") is None
        assert ledger.run(partial(leases.release, lease=Lease("door", "bob", 2)))
        assert acquire(ledger, "door", "ann") == Lease("door", "ann", 3)

    def test_fencing_refuses_the_late(self, ledger: Ledger, clock: ManualClock) -> None:
        """A holder that was paused past its lease cannot commit what it fenced."""
        tables.create_all(ledger.database.engine)
        late = held(acquire(ledger, "door", "ann", seconds=5))
        clock.advance(5)
        now = held(acquire(ledger, "door", "bob", seconds=5))

        for lease, name in ((now, "bob's"), (late, "ann's")):
            try:
                with ledger.transaction() as tx:
                    write(tx, name)
                    leases.fence(tx, lease)
            except errors.LeaseLost:
                assert lease is late

        assert notes_kept(ledger) == ["bob's"]

    def test_fencing_holds_off_the_next(self, ledger: Ledger, clock: ManualClock) -> None:
        """From the fence to the end of its transaction nobody takes the lease, also if it ends."""
        tables.create_all(ledger.database.engine)
        lease = held(acquire(ledger, "door", "ann", seconds=5))
        fenced, over, order = threading.Event(), threading.Event(), list[str]()

        def write_fenced() -> None:
            with ledger.transaction() as tx:
                leases.fence(tx, lease)
                fenced.set()
                signaled(over)
                write(tx, "ann's")
                order.append("written")

        def take() -> Lease | None:
            with ledger.transaction() as tx:
                taken = leases.acquire(tx, "door", "bob", seconds=5)
                order.append("taken")
                assert tx.connection.execute(note.select()).first() is not None
                return taken

        with aside(write_fenced):
            signaled(fenced)
            clock.advance(60)
            with aside(take) as taking:
                waited = still_waits(taking)
                over.set()

        assert waited
        assert order == ["written", "taken"]
        assert taking.result() == Lease("door", "bob", 2)

    def test_a_look_that_waits_for_nobody(self, ledger: Ledger, clock: ManualClock) -> None:
        """One that is fenced counts as held for whoever does not want to wait, also if it ends."""
        lease = held(acquire(ledger, "door", "ann", seconds=5))

        def take() -> Lease | None:
            return ledger.run(lambda tx: leases.acquire(tx, "door", "bob", seconds=5, wait=False))

        with ledger.transaction() as tx:
            leases.fence(tx, lease)
            clock.advance(60)
            if not ledger.database.dialect.one_writer:
                # There the second transaction waits for the first one, whatever it wants.
                with aside(take) as taking:
                    assert taking.result() is None
        afterwards = take()

        assert afterwards == Lease("door", "bob", 2)

    def test_a_rolled_back_acquisition_is_none(self, ledger: Ledger) -> None:
        """What was acquired in a transaction that failed is free, and the token was never given."""
        with pytest.raises(ValueError, match="no"), ledger.transaction() as tx:
            leases.acquire(tx, "door", "ann", seconds=60)
            message = "no"
            raise ValueError(message)

        assert acquire(ledger, "door", "bob") == Lease("door", "bob", 1)

    def test_the_clock_is_set_forward(self, ledger: Ledger, clock: ManualClock) -> None:
        """When the database's clock jumps forward, a lease is lost early and never held twice."""
        lease = held(acquire(ledger, "door", "ann", seconds=30))
        clock.jump(3600)

        with pytest.raises(errors.LeaseLost):
            ledger.run(lambda tx: leases.fence(tx, lease))

        assert acquire(ledger, "door", "bob", seconds=30) == Lease("door", "bob", 2)

    def test_the_clock_is_set_back(self, ledger: Ledger, clock: ManualClock) -> None:
        """When it jumps back, a lease lasts longer; one that was taken meanwhile stays taken."""
        late = held(acquire(ledger, "door", "ann", seconds=30))
        clock.advance(30)
        now = held(acquire(ledger, "door", "bob", seconds=30))
        clock.jump(-3600)

        with pytest.raises(errors.LeaseLost):
            ledger.run(lambda tx: leases.fence(tx, late))

        ledger.run(lambda tx: leases.fence(tx, now))
        assert acquire(ledger, "door", "ann") is None

    def test_the_database_tells_the_time(self, ledger: Ledger) -> None:
        """Without an injected clock a lease is held by the database's own, and so are its ends."""
        held(acquire(ledger, "long", "ann", seconds=60))
        held(acquire(ledger, "short", "ann", seconds=0.001))

        def taken(tx: Transaction) -> Lease | None:
            return leases.acquire(tx, "short", "bob", seconds=60)

        assert acquire(ledger, "long", "bob") is None
        assert until(lambda: ledger.run(taken)) == Lease("short", "bob", 2)

    def test_bad_names_are_refused(self, ledger: Ledger) -> None:
        """A name or owner that is empty, too long, or not the same everywhere is BadInput."""
        with ledger.transaction() as tx:
            for name in ("", "a" * 191, "a ", "a\0b", "a\ud800"):
                with pytest.raises(errors.BadInput):
                    leases.acquire(tx, name, "ann", seconds=5)
                with pytest.raises(errors.BadInput):
                    leases.acquire(tx, "door", name, seconds=5)

        assert acquire(ledger, "door", "ann") == Lease("door", "ann", 1)

    def test_bad_durations_are_refused(self, ledger: Ledger) -> None:
        """A lease of no time, of negative time, of more than a day or of no number is BadInput."""
        lease = held(acquire(ledger, "door", "ann"))

        with ledger.transaction() as tx:
            for seconds in (0, -1, 0.0004, 86_401, float("nan"), float("inf")):
                with pytest.raises(errors.BadInput):
                    leases.acquire(tx, "door", "ann", seconds=seconds)
                with pytest.raises(errors.BadInput):
                    leases.renew(tx, lease, seconds=seconds)

        assert acquire(ledger, "door", "bob") is None

    def test_names_are_compared_exactly(self, ledger: Ledger) -> None:
        """Names that differ in case, in an accent, in a space before or in an emoji are two."""
        names = ["door", "Door", "dóor", " door", "door🚪", "door🪟", "a" * 190]

        tokens = [held(acquire(ledger, name, "ann")).token for name in names]

        assert tokens == [1] * len(names)

    def test_random_histories(self, ledger: Ledger, clock: ManualClock) -> None:
        """Whatever happens in whatever order, the database answers like the plainest model."""

        @settings(
            max_examples=15,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(STEPS)
        def play(steps: list[tuple[object, ...]]) -> None:
            played = Played(ledger, clock)
            for word, *arguments in steps:
                getattr(played, str(word))(*arguments)

        play()


class Played:
    """A history on the database and on a model beside it."""

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._name = new_id()
        self._given: list[Lease] = []
        self._token = 0
        self._owner = ""
        self._until = 0

    def acquire(self, owner: str, seconds: int) -> None:
        expected = None
        if not self._held or self._owner == owner:
            self._token += not self._held
            self._owner = owner
            self._until = self._clock.now_ms() + seconds * 1000
            expected = Lease(self._name, owner, self._token)

        answered = acquire(self._ledger, self._name, owner, seconds=seconds)

        assert answered == expected
        if answered is not None:
            self._given.append(answered)

    def renew(self, back: int, seconds: int) -> None:
        def call(lease: Lease) -> bool:
            return lost(self._ledger, lambda tx: leases.renew(tx, lease, seconds=seconds))

        if self._compare(back, call):
            self._until = self._clock.now_ms() + seconds * 1000

    def release(self, back: int) -> None:
        def call(lease: Lease) -> bool:
            return not self._ledger.run(lambda tx: leases.release(tx, lease))

        if self._compare(back, call):
            self._until = 0

    def fence(self, back: int) -> None:
        self._compare(back, lambda lease: lost(self._ledger, lambda tx: leases.fence(tx, lease)))

    def advance(self, seconds: int) -> None:
        self._clock.advance(seconds)

    def jump(self, seconds: int) -> None:
        self._clock.jump(seconds)

    @property
    def _held(self) -> bool:
        return self._until > self._clock.now_ms()

    def _compare(self, back: int, is_lost: Callable[[Lease], bool]) -> bool:
        """Do it with a lease that was given some time ago; whether it was still held."""
        if not self._given:
            return False
        lease = self._given[-1 - back % len(self._given)]
        holds = self._held and lease == Lease(self._name, self._owner, self._token)

        assert is_lost(lease) is not holds
        return holds


def acquire(ledger: Ledger, name: str, owner: str, *, seconds: float = 60) -> Lease | None:
    """In a transaction of its own, tried again if it meets another."""
    return ledger.run(lambda tx: leases.acquire(tx, name, owner, seconds=seconds))


def held(lease: Lease | None) -> Lease:
    """The lease, which was free."""
    assert lease is not None
    return lease


def lost(ledger: Ledger, call: Callable[[Transaction], None]) -> bool:
    """Whether the call says that the lease is lost."""
    try:
        ledger.run(call)
    except errors.LeaseLost:
        return True
    return False

"""The contract of the sequencer: contiguous positions for committed rows, once and for ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count

import pytest
from sqlalchemy import insert, select, update

from ledgerstone import Ledger
from ledgerstone.engine.duties import Duties
from ledgerstone.errors import BadInput, StoreBusy
from ledgerstone.items import sequencer as module
from ledgerstone.items.positions import Tail
from ledgerstone.items.sequencer import LOOKS_SECONDS, SWEEP_SECONDS
from ledgerstone.ledger import Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.items.sequenced import (
    event,
    given,
    happen,
    order,
    positions,
    prefix_kept,
    problems,
    sequencer,
    stream,
    tables,
)
from tests.harness.child import Child
from tests.harness.ledgers import Undone, undone
from tests.harness.sizes import sized
from tests.harness.threads import aside, signaled, together

SEQUENCE = """
from tests.contract.items.sequenced import run
ready()
run(sys.argv[1])
"""
FAILPOINTS = [
    "duty.leased=kill@2",
    "sequencer.appended=kill@2",
    "sequencer.saved=kill@2",
    "transaction.before_commit=kill@4",
    "transaction.after_commit=kill@4",
]
WRITERS = 4
TRANSACTIONS = sized(60, full=500)
STREAMS = 5
FAIL_PART = 0.2


class SequencerContract:
    """Fixtures: `ledger` and the `home` it is on."""

    @pytest.fixture(autouse=True)
    def events(self, ledger: Ledger) -> None:
        """The table of events."""
        tables.create_all(ledger.database.engine)

    def test_positions_are_contiguous(self, ledger: Ledger, home: Home) -> None:
        """Committed rows have 1, 2, 3 …, whatever numbers were rolled back between them."""
        for name in "abc":
            write(ledger, name)
            with undone(ledger) as tx:
                happen(tx, "never")

        first = turn(ledger)
        again = turn(ledger)

        assert (first, again) == (3, 0)
        assert order(ledger) == ["a", "b", "c"]
        assert problems(home.url) == []

    def test_a_late_commit_gets_a_later_position(self, ledger: Ledger, home: Home) -> None:
        """A row that is committed after one with a higher number is not skipped."""
        with late(ledger, "late") as commit:
            write(ledger, "early")
            turn(ledger)
            before = given(home.url)
            commit()

        turn(ledger)

        assert sorted(order(ledger)) == ["early", "late"]
        assert prefix_kept(before, given(home.url))
        assert problems(home.url) == []

    def test_a_long_transaction_holds_off_nobody(self, ledger: Ledger, home: Home) -> None:
        """While one stays open, late commits of others are found at the next turn."""
        with late(ledger, "long") as end_of_long:
            for n in range(3):
                with late(ledger, f"late-{n}") as commit:
                    write(ledger, f"early-{n}")
                    turn(ledger)
                    commit()
                turn(ledger)
                assert f"late-{n}" in order(ledger) or ledger.database.dialect.one_writer
            end_of_long()

        turn(ledger)

        assert len(order(ledger)) == 7
        assert problems(home.url) == []

    def test_one_that_stays_open_for_long(self, ledger: Ledger, clock: ManualClock) -> None:
        """A row is found at the next turn, however long after it was written it is committed."""
        with late(ledger, "long") as commit:
            write(ledger, "early")
            for seconds in (0, 5, 3600):
                clock.advance(seconds)
                turn(ledger)
            turn(ledger)
            commit()

        turn(ledger)

        assert sorted(order(ledger)) == ["early", "long"]

    def test_what_follows_is_behind(self, ledger: Ledger) -> None:
        """A row that was written after another one was committed is behind it."""
        with late(ledger, "first") as commit:
            write(ledger, "other")
            turn(ledger)
            commit()
        write(ledger, "second")

        turn(ledger)

        found = order(ledger)
        assert found.index("first") < found.index("second")

    def test_one_that_rolls_back_late(self, ledger: Ledger, home: Home) -> None:
        """A transaction that was waited for and rolls back leaves no gap."""
        with late(ledger, "never", raises=True) as roll_back:
            write(ledger, "a")
            turn(ledger)
            roll_back()
        write(ledger, "b")

        turn(ledger)

        assert order(ledger) == ["a", "b"]
        assert problems(home.url) == []

    def test_a_turn_is_bounded(
        self, ledger: Ledger, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A turn gives so many positions, and the next one goes on there."""
        monkeypatch.setattr(module, "PAGE_ROWS", 3)
        monkeypatch.setattr(module, "PAGES_MAX", 2)
        for n in range(14):
            write(ledger, str(n))

        turns: list[int] = []
        while sum(turns) < 14:
            turns.append(turn(ledger))

        assert turns[0] == max(turns) == 6
        assert order(ledger) == [str(n) for n in range(14)]
        assert problems(home.url) == []

    def test_a_late_part_is_bounded(
        self, ledger: Ledger, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a long transaction wrote is found in bounded turns, before what follows it."""
        with late(ledger, *(["long"] * 9)) as commit:
            write(ledger, "early")
            turn(ledger)
            commit()
        write(ledger, "after")
        monkeypatch.setattr(module, "PAGE_ROWS", 2)
        monkeypatch.setattr(module, "PAGES_MAX", 2)

        until(lambda: turn(ledger) == 0 and len(order(ledger)) == 11, what="all positions")

        found = order(ledger)
        assert found[-1] == "after"
        assert found.count("long") == 9
        assert problems(home.url) == []

    def test_what_came_by_hand(self, ledger: Ledger, clock: ManualClock, home: Home) -> None:
        """A row with a number below those that were looked at is found within a day."""
        with ledger.transaction() as tx:
            tx.connection.execute(insert(event).values(number=1000, stream="usual", version=1))
        turn(ledger)
        clock.advance(LOOKS_SECONDS[-1])
        turn(ledger)
        turn(ledger)
        clock.advance(LOOKS_SECONDS[-1])
        turn(ledger)
        with ledger.transaction() as tx:
            tx.connection.execute(insert(event).values(number=7, stream="by hand", version=1))
        # Earlier only if a transaction of others, in whichever database, has ended just now.
        turn(ledger)
        clock.advance(SWEEP_SECONDS)

        turn(ledger)

        assert order(ledger) == ["usual", "by hand"]
        assert problems(home.url) == []

    def test_a_row_that_was_removed(self, ledger: Ledger) -> None:
        """Its position stays, and the next one is the next."""
        for name in "ab":
            write(ledger, name)
        turn(ledger)
        with ledger.transaction() as tx:
            tx.connection.execute(event.delete().where(event.c.stream == "b"))
        write(ledger, "c")

        turn(ledger)

        with ledger.reading() as tx:
            rows = positions.after(tx, 0)
        assert [(row.position, row.values[0]) for row in rows] == [(1, "a"), (2, None), (3, "c")]

    def test_reading_in_parts(self, ledger: Ledger) -> None:
        """A reader asks for what comes after the last it has seen."""
        for n in range(5):
            write(ledger, str(n))
        turn(ledger)

        with ledger.reading() as tx:
            first = positions.after(tx, 0, limit=2)
            rest = positions.after(tx, first[-1].position)
            end = positions.after(tx, 5)
            with pytest.raises(BadInput):
                positions.after(tx, 0, limit=0)

        assert [row.position for row in first] == [1, 2]
        assert [row.values[0] for row in rest] == ["2", "3", "4"]
        assert end == []

    def test_a_tail_is_woken(self, ledger: Ledger) -> None:
        """A tail answers what comes as soon as it has a position, and goes on there."""
        with Tail(ledger.database, positions) as tail:
            nothing = tail.wait(seconds=0)
            with aside(lambda: tail.wait(seconds=60)) as waiting:
                write(ledger, "a")
                turn(ledger)
                first = waiting.result()
            write(ledger, "b")
            turn(ledger)
            second = tail.wait(seconds=60)

        with Tail(ledger.database, positions, after=first[-1].position) as restarted:
            again = restarted.wait(seconds=60)
        assert nothing == []
        assert [row.values[0] for row in first] == ["a"]
        assert second == again
        assert [(row.position, row.values[0]) for row in second] == [(2, "b")]

    def test_two_at_once(self, ledger: Ledger, home: Home) -> None:
        """Turns of several sequencers at one moment give each position once."""
        for n in range(50):
            write(ledger, str(n))

        amounts = together(*[partial(turn, ledger)] * 4)

        assert sum(amounts) == 50
        assert problems(home.url) == []

    @pytest.mark.parametrize("failpoint", FAILPOINTS)
    def test_killed_at(self, ledger: Ledger, home: Home, failpoint: str) -> None:
        """One that dies at any step leaves no gap, and no row without a position or with two."""
        with processes(home.url, failpoint) as (victim, start):
            names = written_while(ledger, lambda: not victim.alive)
            start()
            until(lambda: len(given(home.url)) == names, what="all positions")

        assert problems(home.url) == []

    def test_paused_past_its_lease(self, ledger: Ledger, home: Home) -> None:
        """One that is paused while another takes over gives nothing when it goes on."""
        with processes(home.url, "duty.leased=stop@2") as (victim, start):
            names = written_while(ledger, lambda: victim.stopped)
            start()
            until(lambda: len(given(home.url)) == names, what="all positions")
            before = given(home.url)
            victim.resume()
            write(ledger, "after")
            until(lambda: len(given(home.url)) == names + 1, what="the last one")

        assert prefix_kept(before, given(home.url))
        assert problems(home.url) == []

    @pytest.mark.torture
    def test_random_histories(self, ledger: Ledger, home: Home) -> None:
        """Writers that commit, roll back and dawdle, beside two sequencers: nothing is missed."""
        over = threading.Event()

        def sequence() -> None:
            while not over.is_set():
                with suppress(StoreBusy):
                    turn(ledger)

        with ledger.transaction() as tx:
            tx.connection.execute(
                insert(stream), [{"name": str(n), "version": 0} for n in range(STREAMS)]
            )
        with aside(sequence), aside(sequence):
            try:
                together(*[partial(traffic, ledger, seed) for seed in range(WRITERS)])
            finally:
                over.set()
        turn(ledger)

        assert problems(home.url) == []

    def test_the_duty_is_fenced(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of several workers one has the turn; the next turn is for whoever comes first."""
        workers = [Duties(ledger.database, [sequencer.duty(every_seconds=2)]) for _ in range(3)]
        write(ledger, "a")

        first = [sum(worker.tick().values()) for worker in workers]
        write(ledger, "b")
        before = [worker.tick() for worker in workers]
        clock.advance(2)
        second = [sum(worker.tick().values()) for worker in workers]

        assert first == [1, 0, 0]
        assert before == [{}, {}, {}]
        assert second == [1, 0, 0]

    def test_an_idle_one_writes_nothing(self, ledger: Ledger, clock: ManualClock) -> None:
        """Without new rows a worker only looks: it does not even take the lease."""
        duties = Duties(ledger.database, [sequencer.duty(every_seconds=1)])
        write(ledger, "a")

        def ticks_idle() -> bool:
            clock.advance(LOOKS_SECONDS[-1])
            return duties.tick() == {}

        # Others of this server may still be under way.
        until(ticks_idle)
        write(ledger, "b")
        clock.advance(1)

        busy = duties.tick()

        assert sum(busy.values()) == 1


class BlindContract:
    """Where the transactions under way are not known. Fixtures: `ledger` and its `clock`."""

    def test_a_late_commit_is_found_by_age(self, ledger: Ledger, clock: ManualClock) -> None:
        """A row that is committed late is found by a look at the latest after twice its time."""
        tables.create_all(ledger.database.engine)
        for seconds in LOOKS_SECONDS:
            with late(ledger, f"late-{seconds}") as commit:
                write(ledger, "early")
                turn(ledger)
                clock.advance(seconds - 0.5)
                turn(ledger)
                commit()
            turn(ledger)
            assert f"late-{seconds}" not in order(ledger)

            for _ in range(2):
                clock.advance(seconds)
                turn(ledger)

            assert f"late-{seconds}" in order(ledger)


def write(ledger: Ledger, *names: str) -> None:
    """One event each, in one transaction."""
    with ledger.transaction() as tx:
        for version, name in enumerate(names, 1):
            happen(tx, name, version)


def turn(ledger: Ledger) -> int:
    """One turn of a sequencer."""
    return ledger.run(sequencer.append)


@contextmanager
def late(ledger: Ledger, *names: str, raises: bool = False) -> Iterator[Callable[[], None]]:
    """Events that were written before what the block writes, and end when it says so.

    With one writer they end at once: none can be late there.
    """
    written, told = threading.Event(), threading.Event()

    def work() -> None:
        try:
            with suppress(Undone), ledger.transaction() as tx:
                for version, name in enumerate(names, 1):
                    happen(tx, name, version)
                if not ledger.database.dialect.one_writer:
                    written.set()
                    signaled(told)
                if raises:
                    raise Undone
        finally:
            written.set()

    with aside(work) as writing:

        def end() -> None:
            told.set()
            writing.result(WAIT_SECONDS_MAX)

        try:
            signaled(written)
            yield end
        finally:
            told.set()


def traffic(ledger: Ledger, seed: int) -> None:
    """Transactions of one writer, one after the other."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    versions = count(1)
    for _ in range(TRANSACTIONS):
        names = sorted(dice.sample(range(STREAMS), dice.randint(1, 2)))
        own = [(f"writer-{seed}", next(versions))] * dice.randint(0, 3)
        with suppress(Undone):
            ledger.run(partial(act, names=names, own=own, fails=dice.random() < FAIL_PART))


def act(tx: Transaction, *, names: list[int], own: list[tuple[str, int]], fails: bool) -> None:
    """Raise the versions of streams, and say so, beside events of the writer's own."""
    for name, version in own:
        happen(tx, name, version)
    for number in names:
        name = str(number)
        key = stream.c.name == name
        tx.connection.execute(update(stream).where(key).values(version=stream.c.version + 1))
        happen(tx, name, tx.connection.execute(select(stream.c.version).where(key)).scalar_one())
    if fails:
        raise Undone


def written_while(ledger: Ledger, over: Callable[[], bool]) -> int:
    """Write events until that is so; how many."""

    def write_one() -> bool:
        write(ledger, f"event-{next(numbers)}")
        return over()

    numbers = count()
    until(write_one)
    return next(numbers)


@contextmanager
def processes(url: str, failpoint: str) -> Iterator[tuple[Child, Callable[[], None]]]:
    """A sequencer with a failpoint, and how to start one without."""
    with ExitStack() as stack:
        victim = stack.enter_context(Child(SEQUENCE, url, failpoint=failpoint))
        victim.go()

        def start() -> None:
            stack.enter_context(Child(SEQUENCE, url)).go()

        yield victim, start

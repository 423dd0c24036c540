"""The wake-up contract: a commit rings, a rollback does not, and polling finds all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledgerstone.ledger import Ledger
from ledgerstone.store.wakeup import ALL, WakeSignal, WakeSignals, Watcher
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import Chores, Status
from tests.chores.chores import CHANNEL
from tests.chores.workshop import worker_process
from tests.harness.child import Child
from tests.harness.ledgers import hung, undone
from tests.harness.threads import PATIENCE_SECONDS

ENQUEUE = """
from ledgerstone import Ledger
from tests.chores import Chores

with Ledger(sys.argv[1]) as ledger:
    ready()
    with ledger.transaction() as tx:
        Chores(tx).enqueue(1)
    ready()
"""

WATCHED = {"sqlite": True, "postgres": True, "mysql": False}
"""Whether a commit of another process rings: elsewhere work is found by polling."""


class WakeupContract:
    """What holds for bells and watchers. Fixtures: `ledger`, `home`."""

    def test_a_commit_rings(self, ledger: Ledger) -> None:
        """Who waits in the same process for a channel is rung by the commit, and not before."""
        with hung(ledger, CHANNEL) as wake_signal:
            with ledger.transaction() as tx:
                Chores(tx).enqueue(1)
                before = wake_signal.wait(0)

            assert not before
            assert wake_signal.wait(0)

    def test_what_rings_is_committed(self, ledger: Ledger) -> None:
        """Whoever is rung finds what was committed: the bell does not ring too early."""
        wake_signal = Looking(ledger)
        ledger.database.wake_signals.hang(CHANNEL, wake_signal)

        ledger.run(lambda tx: Chores(tx).enqueue(1))

        assert wake_signal.seen == [1]

    def test_a_rollback_does_not_ring(self, ledger: Ledger) -> None:
        """What was undone rings nobody."""
        with hung(ledger, CHANNEL) as wake_signal:
            with undone(ledger) as tx:
                Chores(tx).enqueue(1)

            assert not wake_signal.wait(0)

    def test_only_its_channel_rings(self, ledger: Ledger) -> None:
        """A bell rings for its own channel; and for none once it is taken down."""
        with hung(ledger, "elsewhere") as other, hung(ledger, CHANNEL) as wake_signal:
            ledger.run(lambda tx: tx.wake("elsewhere"))
            rang = (other.wait(0), wake_signal.wait(0))

        ledger.run(lambda tx: tx.wake("elsewhere"))
        assert rang == (True, False)
        assert not other.wait(0)

    def test_siblings_ring_the_same_bells(self, ledger: Ledger) -> None:
        """A commit through other connections of the same process rings too."""
        sibling = ledger.database.sibling(connections=1)
        with hung(ledger, CHANNEL) as wake_signal:
            sibling.run(lambda tx: tx.wake(CHANNEL))

            assert wake_signal.wait(0)
        sibling.close()

    def test_a_ring_before_the_wait_is_kept(self) -> None:
        """A ring while nobody waits ends the next wait at once, and only that one."""
        wake_signals, wake_signal = WakeSignals(), WakeSignal()
        wake_signals.hang("a", wake_signal)
        wake_signals.hang("b", wake_signal)

        wake_signals.ring(("a", "b"))
        first, second = wake_signal.wait(0), wake_signal.wait(0)
        wake_signals.ring((ALL,))

        assert (first, second) == (True, False)
        assert wake_signal.wait(0)

    def test_another_process_rings(self, ledger: Ledger, home: Home) -> None:
        """What another process commits rings here, except on MySQL, where it is polled."""
        child = Child(ENQUEUE, home.url)
        with child, watched(ledger) as watcher, hung(ledger, CHANNEL) as wake_signal:
            child.go()
            rang = watcher is not None and wake_signal.wait(WAIT_SECONDS_MAX)
            child.go()
            code, _ = child.ended()

        assert code == 0
        assert rang == WATCHED[home.kind]

    def test_a_rollback_elsewhere_does_not_ring(self, ledger: Ledger) -> None:
        """What another connection undid rings nobody, by whatever way the watcher looks."""
        with watched(ledger), hung(ledger, CHANNEL) as wake_signal:
            with undone(ledger) as tx:
                Chores(tx).enqueue(1)

            assert not wake_signal.wait(PATIENCE_SECONDS)

    def test_a_stopped_watcher_can_be_followed(self, ledger: Ledger, home: Home) -> None:
        """Stopping ends the watcher's thread and connection; stopping twice is fine."""
        for _ in range(2):
            with watched(ledger) as watcher:
                prompt = watcher is not None and watcher.prompt
            if watcher is not None:
                watcher.stop()

            assert prompt == WATCHED[home.kind]
            assert watcher is None or not watcher.prompt

    def test_a_worker_elsewhere_finds_it(self, ledger: Ledger, home: Home) -> None:
        """What is committed here is done by a worker in another process, rung or polled."""
        with worker_process(home.url, settings={"engine_poll_seconds_max": 0.2}) as worker:
            worker.ready()
            chore = ledger.run(lambda tx: Chores(tx).enqueue(1))

            def done() -> bool:
                with ledger.reading() as tx:
                    return Chores(tx).get(chore.id).status is Status.DONE

            until(done, what="the chore")


class Looking(WakeSignal):
    """A bell that looks how many chores are there when it is rung."""

    __slots__ = ("_ledger", "seen")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self.seen: list[int] = []

    def ring(self) -> None:
        with self._ledger.reading() as tx:
            self.seen.append(sum(Chores(tx).counts().values()))
        super().ring()


@contextmanager
def watched(ledger: Ledger) -> Iterator[Watcher | None]:
    """A watcher at work, where there is such a thing."""
    watcher = ledger.database.watcher()
    if watcher is None:
        yield None
        return
    watcher.start()
    try:
        # On a busy machine the first look may be in vain: then there is another.
        until(lambda: watcher.prompt, what="a watcher that is prompt")
        yield watcher
    finally:
        watcher.stop()

"""The wake-up contract: a commit wakes waiting threads, a rollback does not, polling finds all."""

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
from tests.harness.ledgers import subscribed, undone
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
"""Whether a commit of another process wakes threads here: elsewhere work is found by polling."""


class WakeupContract:
    """What holds for signals and watchers. Fixtures: `ledger`, `home`."""

    def test_a_commit_wakes(self, ledger: Ledger) -> None:
        """A commit wakes the threads of its process that wait for its channel, and not earlier."""
        with subscribed(ledger, CHANNEL) as wake_signal:
            with ledger.transaction() as tx:
                Chores(tx).enqueue(1)
                before = wake_signal.wait(0)

            assert not before
            assert wake_signal.wait(0)

    def test_what_wakes_is_committed(self, ledger: Ledger) -> None:
        """A woken thread finds what was committed."""
        wake_signal = Looking(ledger)
        ledger.database.wake_signals.subscribe(CHANNEL, wake_signal)

        ledger.run(lambda tx: Chores(tx).enqueue(1))

        assert wake_signal.seen == [1]

    def test_a_rollback_wakes_nobody(self, ledger: Ledger) -> None:
        """A rollback wakes nobody."""
        with subscribed(ledger, CHANNEL) as wake_signal:
            with undone(ledger) as tx:
                Chores(tx).enqueue(1)

            assert not wake_signal.wait(0)

    def test_only_its_channel_is_woken(self, ledger: Ledger) -> None:
        """A signal is notified for its own channel, and for none after `unsubscribe`."""
        with subscribed(ledger, "elsewhere") as other, subscribed(ledger, CHANNEL) as wake_signal:
            ledger.run(lambda tx: tx.wake("elsewhere"))
            woken = (other.wait(0), wake_signal.wait(0))

        ledger.run(lambda tx: tx.wake("elsewhere"))
        assert woken == (True, False)
        assert not other.wait(0)

    def test_siblings_share_their_signals(self, ledger: Ledger) -> None:
        """A commit through other connections of the same process wakes threads, too."""
        sibling = ledger.database.sibling(connections=1)
        with subscribed(ledger, CHANNEL) as wake_signal:
            sibling.run(lambda tx: tx.wake(CHANNEL))

            assert wake_signal.wait(0)
        sibling.close()

    def test_a_notification_before_the_wait_is_kept(self) -> None:
        """A notification while nobody waits ends the next wait at once, and only that one."""
        wake_signals, wake_signal = WakeSignals(), WakeSignal()
        wake_signals.subscribe("a", wake_signal)
        wake_signals.subscribe("b", wake_signal)

        wake_signals.notify(("a", "b"))
        first, second = wake_signal.wait(0), wake_signal.wait(0)
        wake_signals.notify((ALL,))

        assert (first, second) == (True, False)
        assert wake_signal.wait(0)

    def test_another_process_wakes(self, ledger: Ledger, home: Home) -> None:
        """A commit of another process wakes threads here, except on MySQL, where they poll."""
        child = Child(ENQUEUE, home.url)
        with child, watched(ledger) as watcher, subscribed(ledger, CHANNEL) as wake_signal:
            child.go()
            woken = watcher is not None and wake_signal.wait(WAIT_SECONDS_MAX)
            child.go()
            code, _ = child.ended()

        assert code == 0
        assert woken == WATCHED[home.kind]

    def test_a_rollback_elsewhere_wakes_nobody(self, ledger: Ledger) -> None:
        """A rollback of another connection wakes nobody, with every kind of watcher."""
        with watched(ledger), subscribed(ledger, CHANNEL) as wake_signal:
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
        """What is committed here is done by a worker in another process, woken or polling."""
        with worker_process(home.url, settings={"engine_poll_seconds_max": 0.2}) as worker:
            worker.ready()
            chore = ledger.run(lambda tx: Chores(tx).enqueue(1))

            def done() -> bool:
                with ledger.reading() as tx:
                    return Chores(tx).get(chore.id).status is Status.DONE

            until(done, what="the chore")


class Looking(WakeSignal):
    """A signal that counts the chores when it is notified."""

    __slots__ = ("_ledger", "seen")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self.seen: list[int] = []

    def notify(self) -> None:
        with self._ledger.reading() as tx:
            self.seen.append(sum(Chores(tx).counts().values()))
        super().notify()


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

"""The crash contract: real processes, killed and paused, and an independent check at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ledgerstone.errors import StoreBusy, StoreUnavailable
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings, StoreSettings
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.chores import Chores, NewChore, Status, checker
from tests.chores.workshop import WORK, counts, enqueue, worker_process
from tests.harness.drivers import connect
from tests.harness.processes import WorkerProcess, stopped
from tests.harness.sizes import sized

ITEMS = sized(1000, full=20_000)
PLACES = 10
CRASHES_MAX = 3
CRASHES_MANY = 100
"""Where no item is to blame: on a busy machine a worker that lives may lose its short lease."""
SOON = {
    "engine_concurrency": PLACES,
    # So that there are several claims and settlements, however quick or slow the machine is.
    "engine_batch_max": 100,
    "engine_lease_seconds": 2,
    "engine_rescue_seconds": 1,
    "engine_grace_seconds": 5,
    "engine_crashes_max": CRASHES_MANY,
    "store_slow_statement_ms": 60_000,
}
FAILPOINTS = [
    "pump.claimed=kill@2",
    "pump.ran=kill@150",
    "pump.settling=kill@2",
    "pump.settled=kill@2",
    "rescue.rescued=kill@1",
    "transaction.before_commit=kill@5",
    "transaction.after_commit=kill@5",
    "pump.claimed=stop@2",
]


class CrashContract:
    """What holds when workers die. Fixtures: `ledger` and the `home` it is on."""

    @pytest.mark.torture
    def test_killed_and_paused_workers(self, ledger: Ledger, home: Home, tmp_path: Path) -> None:
        """A killed and a paused worker: every item is settled once, the late ones are refused."""
        survive_kill_and_pause(ledger, home.url, tmp_path / "gate")

    @pytest.mark.parametrize("failpoint", FAILPOINTS)
    def test_killed_at(self, ledger: Ledger, home: Home, failpoint: str) -> None:
        """A worker that dies at any step of the pump loses nothing and does nothing twice."""
        accepted = enqueue(ledger, 500)

        with workers(home.url) as start:
            victim = start(failpoint=failpoint)
            until(lambda: not victim.alive or stopped(victim), what=failpoint)
            if victim.alive and home.server is None:
                until(lambda: _writable(home.url) or _stop_elsewhere(victim), what="a free file")
            start()
            wait_done(ledger, len(accepted))

        verdict = checker.check(home.url, accepted)
        assert verdict.problems == []
        assert verdict.by_status == {"done": len(accepted)}

    def test_one_that_kills_takes_nobody_along(self, ledger: Ledger, home: Home) -> None:
        """Of all that its workers held, only the one that killed them is given up."""
        accepted = enqueue(ledger, 300)

        deadly = f"{WORK}:deadly_for_one"
        with workers(home.url, handler=deadly, engine_crashes_max=CRASHES_MAX) as start:
            for _ in range(CRASHES_MAX):
                victim = start(failpoint="")
                until(lambda worker=victim: not worker.alive)  # type: ignore[misc]
            start()
            wait_done(ledger, len(accepted) - 1)
            until(lambda: counts(ledger)[Status.DEAD] == 1, what="its end")

        verdict = checker.check(home.url, accepted)
        assert verdict.problems == []
        assert verdict.by_status == {"done": len(accepted) - 1, "dead": 1}
        with ledger.reading() as tx:
            guilty = Chores(tx).get(accepted[150])
        assert (guilty.status, guilty.crashes) == (Status.DEAD, CRASHES_MAX)

    @pytest.mark.parametrize(("grace", "signals"), [(0.5, 1), (3600, 2)])
    def test_sigterm(self, ledger: Ledger, home: Home, grace: float, signals: int) -> None:
        """SIGTERM returns what does not finish in time, refunded; a second one does so at once."""
        accepted = enqueue(ledger, 30)
        endless = f"{WORK}:endless_but_one"

        settings = {"engine_grace_seconds": grace, "engine_lease_seconds": 60}
        with workers(home.url, handler=endless, engine_claim_ahead_ms=10_000, **settings) as start:
            worker = start()
            until(lambda: counts(ledger)[Status.RUNNING] > PLACES, what="some that wait")
            worker.terminate()
            if signals > 1:
                # Two signals at once would be one: the first is noticed when they are returned.
                until(lambda: counts(ledger)[Status.RUNNING] <= PLACES, what="their return")
                worker.terminate()
            code = worker.wait()

        with ledger.reading() as tx:
            attempts = {Chores(tx).get(key).attempt for key in accepted[1:]}
        assert code == 0
        assert attempts == {0}
        assert counts(ledger)[Status.QUEUED] == len(accepted) - 1
        assert checker.check(home.url, accepted).problems == []

    def test_atomic_handlers_take_effect_once(self, ledger: Ledger, home: Home) -> None:
        """Writes of an atomic handler are there exactly once, whoever was killed when."""
        make_effect_table(ledger)
        accepted = enqueue(ledger, 400)

        handler = "tests.chores.effects:leave_mark"
        with workers(home.url, handler=handler) as start:
            for number in (30, 60, 90):
                victim = start(failpoint=f"transaction.before_commit=kill@{number}")
                until(lambda worker=victim: not worker.alive)  # type: ignore[misc]
            start()
            wait_done(ledger, len(accepted))

        verdict = checker.check(home.url, accepted)
        assert verdict.problems == []
        assert marks(home.url) == dict.fromkeys(accepted, 1)


def survive_kill_and_pause(
    ledger: Ledger,
    url: str,
    gate: Path,
    *,
    disturb: Callable[[], None] = lambda: None,
    items: int = ITEMS,
) -> checker.OutcomeKind:
    """Two workers, one killed with -9, one paused past its lease and continued; then the check.

    After the first twentieth handlers wait until the file `gate` is there, so that both workers are
    caught inside handlers, however quick the machine is.
    """
    first = items // 20
    bodies = [str(gate) if number >= first else "" for number in range(items)]
    with workers(url, handler=f"{WORK}:gated") as start:
        doomed, paused = start(), start()
        with ledger.transaction() as tx:
            new = [NewChore(body=body) for body in bodies]
            accepted = [enqueued.id for enqueued in Chores(tx).enqueue_many(new)]
        until(lambda: done(ledger) >= first, what="the first twentieth")
        until(lambda: pause_in_mid_work(url, paused), what="a pause in mid-work")
        doomed.kill()
        start()
        gate.touch()
        disturb()
        until(lambda: rescued(url, paused.worker) > 0, what="a rescue")
        paused.resume()
        wait_done(ledger, items)
        until(lambda: refused(url) > 0, what="a refusal")

    verdict = checker.check(url, accepted)
    assert verdict.problems == []
    assert verdict.by_status == {"done": items}
    assert verdict.rescued > 0
    assert verdict.refused > 0
    return verdict


def _writable(url: str) -> bool:
    """Whether a file can be written to: not if a process was stopped while it wrote."""
    store = StoreSettings(busy_timeout_seconds=0.2, auto_migrate="never")
    with Ledger(url, settings=Settings(url=url, store=store)) as other:
        try:
            with other.database.transaction():
                return True
        except StoreBusy:
            return False


def _stop_elsewhere(worker: WorkerProcess) -> bool:
    worker.resume()
    worker.pause()
    return False


def done(ledger: Ledger) -> int:
    """How many are done, as far as is known."""
    try:
        return counts(ledger)[Status.DONE]
    except StoreUnavailable:
        # Of a connection that was open when the server was killed.
        return 0


def wait_done(ledger: Ledger, count: int) -> None:
    """Until so many are done."""
    until(lambda: done(ledger) >= count, what=f"{count} done")


def rescued(url: str, worker: str) -> int:
    """How many rescues from this worker are on record."""
    return _count(
        url, "SELECT COUNT(*) FROM chore_event WHERE reason LIKE '{}'", f"the lease of {worker}%"
    )


def pause_in_mid_work(url: str, worker: WorkerProcess) -> bool:
    """Pause a worker that holds claims; False if it holds none just now."""
    claims = "SELECT COUNT(*) FROM chore WHERE status = 'running' AND worker = '{}'"
    with write_lock(url):
        worker.pause()
        if _count(url, claims, worker.worker):
            return True
        worker.resume()
        return False


def refused(url: str) -> int:
    """How many refusals are on record."""
    return _count(url, "SELECT COUNT(*) FROM chore_event WHERE reason LIKE 'refused%'")


def marks(url: str) -> dict[str, int]:
    """How many marks each chore left."""
    connection = connect(url)
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT chore_id, COUNT(*) FROM effect GROUP BY chore_id")
        return {str(row[0]): int(row[1]) for row in cursor.fetchall()}
    finally:
        connection.close()


def make_effect_table(ledger: Ledger) -> None:
    """Where an atomic handler leaves a mark; nothing in it keeps a second one out."""
    with ledger.transaction() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE effect (chore_id VARCHAR(36) NOT NULL)")


@contextmanager
def write_lock(url: str) -> Iterator[None]:
    """On SQLite, meanwhile nobody else writes: one paused in mid-write would stop them all."""
    if not url.startswith("sqlite"):
        yield
        return
    connection = connect(url)
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def workers(
    url: str, *, handler: str = f"{WORK}:nothing", **settings: object
) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers; all are gone at the end."""
    with ExitStack() as stack:

        def start(*, failpoint: str | None = None, handler: str = handler) -> WorkerProcess:
            atomic = ("--atomic",) if handler.startswith("tests.chores.effects") else ()
            worker = worker_process(
                url,
                handler=handler,
                settings=SOON | settings,
                failpoint=failpoint,
                arguments=atomic,
            )
            stack.enter_context(worker)
            if failpoint is None:
                # One that is to die may do so before it can say anything.
                worker.ready()
            return worker

        yield start


def _count(url: str, query: str, word: str = "") -> int:
    connection = connect(url)
    try:
        cursor = connection.cursor()
        cursor.execute(query.format(word))
        return int(cursor.fetchone()[0])
    finally:
        connection.close()

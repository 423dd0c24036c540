"""A network that falls silent: packets vanish, nothing is closed, and every wait ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask
from ledgerstone.jobs import Status
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores.workshop import opened, worker_process
from tests.contract.jobs.examples import enqueue, standing
from tests.harness.proxy import Proxy
from tests.harness.workers import started

SET_UP = {"postgresql": b"pg_backend_pid", "mysql": b"lock_wait_timeout"}
"""In what a connection is told or asked when it is new."""

COMMIT = {"postgres": b"COMMIT\0", "mysql": b"COMMIT"}
"""A commit on the wire, and not an isolation level."""


@pytest.fixture(params=KINDS[1:])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A migrated database on a server."""
    for home in new_home(request, request.param, tmp_path):
        opened(home.url).close()
        yield home


@pytest.fixture
def proxy(server: Home) -> Iterator[Proxy]:
    port = make_url(server.url).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy


@pytest.fixture
def url(server: Home, proxy: Proxy) -> str:
    """The database, through the proxy."""
    there = make_url(server.url).set(host="127.0.0.1", port=proxy.port)
    return there.render_as_string(hide_password=False)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    store, engine = {"call_seconds_max": 3}, {"lease_seconds": 9}
    settings = Settings.load(url=url, environ={}, store=store, engine=engine)
    with Ledger(url, settings=settings) as ledger:
        yield ledger


@pytest.mark.parametrize("through", ["statement", "connection"])
def test_a_call_that_nobody_answers(ledger: Ledger, proxy: Proxy, through: str) -> None:
    """It ends, as a database out of reach, with how long it took; the next one is answered."""

    def write() -> None:
        with ledger.transaction() as tx:
            if through == "statement":
                tx.jobs.enqueue("lost")
            else:
                tx.connection.execute(text("SELECT 1"))

    write()
    proxy.silence()
    with pytest.raises(errors.StoreUnavailable, match="did not answer within 3 s"):
        write()
    proxy.speak()

    ledger.run(lambda tx: tx.jobs.enqueue("after"))


def test_a_commit_that_nobody_answers(ledger: Ledger, proxy: Proxy) -> None:
    """For the answer to a commit that is CommitUnknown: it may have been committed."""
    with pytest.raises(errors.CommitUnknown), ledger.transaction() as tx:
        tx.connection.execute(text("SELECT 1"))
        proxy.silence()
    proxy.speak()

    ledger.run(lambda tx: tx.jobs.enqueue("after"))


def test_interrupted_while_it_connects(url: str, proxy: Proxy) -> None:
    """An interruption while a connection is set up comes out, and the next one is made anew."""
    proxy.silence_at(SET_UP[url.partition(":")[0]])
    interrupt = threading.Thread(target=interrupt_after, args=(proxy.silent,))

    with Ledger(url, settings=Settings.load(url=url, environ={})) as ledger:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt), ledger.reading():
            pass
        interrupt.join()
        proxy.speak()

        assert ledger.run(lambda tx: tx.jobs.enqueue("after")).id


def interrupt_after(told: threading.Event) -> None:
    """Interrupt the main thread once this is set."""
    told.wait(WAIT_SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
def test_a_claim_whose_answer_is_lost(
    ledger: Ledger, server: Home, proxy: Proxy, stops: bool, limited: bool
) -> None:
    """A worker that was not told what it has claimed finds out: nothing has crashed."""
    ledger.kinds.add("a", lambda: None)
    pump = ledger.worker().pumps[0]
    direct = Settings.load(url=server.url, environ={})
    with Ledger(server.url, settings=direct) as beside:
        if limited:
            beside.run(lambda tx: tx.jobs.limit("default", 5))
        pump.tick()
        another = enqueue(beside, "a")
        beside.run(lambda tx: ledger.job_source().claim(tx, Ask(1, "another", 60)))
        job_id = enqueue(beside, "a")
        proxy.lose_answers(1, COMMIT[server.kind])
        with pytest.raises(errors.CommitUnknown):
            pump.tick()
        claimed = standing(beside, job_id)
        if stops:
            pump.stop()
        else:
            pump.tick()
        after, theirs = standing(beside, job_id), standing(beside, another)

    assert theirs.status is Status.RUNNING
    assert claimed.status is Status.RUNNING
    assert after.status is (Status.QUEUED if stops else Status.SUCCEEDED)
    assert (after.attempt, after.crashes) == (0 if stops else 1, 0)


def test_what_runs_when_an_answer_is_lost(ledger: Ledger, server: Home, proxy: Proxy) -> None:
    """What the worker holds and knows of does not begin a second time."""
    begun: list[int] = []
    direct = Settings.load(url=server.url, environ={})

    @ledger.job("a")
    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            enqueue(beside, "a", {"number": 2})
            proxy.lose_answers(1, COMMIT[server.kind])
            with pytest.raises(errors.CommitUnknown):
                pump.tick()
            pump.tick()

    pump = ledger.worker().pumps[0]
    with Ledger(server.url, settings=direct) as beside:
        first = enqueue(beside, "a", {"number": 1})
        pump.tick()
        after = standing(beside, first)

    assert begun == [1, 2]
    assert (after.status, after.attempt) == (Status.SUCCEEDED, 1)


@pytest.mark.slow
def test_a_worker_goes_on(ledger: Ledger, server: Home, proxy: Proxy) -> None:
    """A worker that was cut off in silence notices it, and works again when it is over."""
    done: list[int] = []

    @ledger.job("a")
    def work(number: int) -> None:
        done.append(number)

    direct = Settings.load(url=server.url, environ={})
    with Ledger(server.url, settings=direct) as beside, started(worker := ledger.worker()):
        first = enqueue(beside, "a", {"number": 1})
        until(lambda: standing(beside, first).status is Status.SUCCEEDED)
        proxy.silence()
        second = enqueue(beside, "a", {"number": 2})
        until(lambda: worker.pumps[0].counters.trouble, what="that it is noticed")
        proxy.speak()
        until(lambda: standing(beside, second).status is Status.SUCCEEDED)

    assert done == [1, 2]


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop(url: str, proxy: Proxy) -> None:
    """SIGTERM ends a worker whose network is silent, within its grace and a few seconds."""
    settings = {"engine_grace_seconds": 1}

    with worker_process(url, settings=settings) as worker:
        worker.ready()
        proxy.silence()
        worker.terminate()
        code = worker.wait()

    assert code == 0, worker.complaints


def test_a_last_call_that_nobody_answers(url: str, proxy: Proxy) -> None:
    """A worker that stops ends also if the network falls silent before its last call."""
    engine = {"grace_seconds": 0}
    settings = Settings.load(url=url, environ={}, engine=engine)
    with Ledger(url, settings=settings) as ledger:
        ledger.kinds.add("a.job", lambda: None)
        worker = ledger.worker()
        worker.tick()

        # Its connections are open and at rest; a call on one of them gets no answer.
        proxy.silence()
        stopping = threading.Thread(target=worker.stop, daemon=True)
        stopping.start()
        stopping.join(WAIT_SECONDS_MAX)

        assert not stopping.is_alive()
        proxy.speak()

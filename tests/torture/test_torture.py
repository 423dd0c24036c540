"""The torture: an application and a checker of its own, and everything that can go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from ledgerstone.testing.waiting import until
from tests.harness.drivers import connect
from tests.harness.processes import WorkerProcess
from tests.harness.proxy import Proxy
from tests.harness.sizes import sized
from tests.torture import shop
from tests.torture.checker import JOBS, Reader, Verdict, check
from tests.torture.faults import LEASE_SECONDS, STOP_SECONDS_MAX, Faults, Server, resume

SHOP = "tests.torture.shop"
ORDERS = sized(60, full=4_000)
ROUNDS = sized(1, full=4)
"""How often each fault happens."""
FAULTS_MAX = sized(3, full=1_000)
PRODUCERS, WORKERS = 2, 3
SEED = 14
SETTINGS = {
    "engine_lease_seconds": LEASE_SECONDS,
    "engine_rescue_seconds": 1,
    "engine_grace_seconds": 2,
    # The test kills workers: three deaths with the same job would end it.
    "engine_crashes_max": 100,
    "engine_breaker_cooldown_seconds": 0.5,
    "store_slow_statement_ms": 60_000,
    "store_call_seconds_max": 5,
    "store_lock_timeout_seconds": 5,
    "store_transaction_idle_seconds_max": 3,
    "store_busy_timeout_seconds": 10,
}

pytestmark = [pytest.mark.slow, pytest.mark.torture]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """A server that waits for the disk and may be killed; none for a file."""
    if request.param == "sqlite":
        yield None
        return
    with PrivatePostgres() if request.param == "postgres" else PrivateMariaDB() as started:
        yield started


def test_orders(
    server: Server | None, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Whatever is killed, stopped, cut off, full or set wrong: each order is done as promised."""
    url = server.create_database("torture") if server else f"sqlite:///{tmp_path}/torture.db"
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(server.port)) if server else None
        through = _through(url, proxy)
        _prepare(url)
        start = stack.enter_context(_processes(through, tmp_path))
        workers = [start("work") for _ in range(WORKERS)]
        faults = Faults(
            url,
            tmp_path,
            start=lambda: start("work"),
            workers=workers,
            server=server,
            proxy=proxy,
            dice=random.Random(SEED),  # noqa: S311 - repeatable, no secret
        )
        happened = _torture(url, faults, start)
        verdict = check(url, tmp_path)

    for name, value in (("orders", verdict.orders), ("faults", happened)):
        record_property(name, value)
    assert verdict == Verdict(orders=ORDERS, lost=0, double=0, out_of_order=0, problems=[])


def _torture(url: str, faults: Faults, start: Callable[..., WorkerProcess]) -> int:
    """Let producers and workers do their work under faults, to the end; how many faults."""
    names = faults.names * ROUNDS
    random.Random(SEED).shuffle(names)  # noqa: S311 - repeatable, no secret
    del names[FAULTS_MAX:]
    each = ("--count", str(ORDERS // PRODUCERS))
    producers = [start("place", *each, "--seed", str(i)) for i in range(PRODUCERS)]
    for number, name in enumerate(names):
        _until_done(url, _part(number, len(names)), faults, producers)
        try:
            getattr(faults, name)()
        except BaseException as error:
            error.add_note(f"during the fault {name}, {number + 1} of {len(names)}")
            raise
        finally:
            resume(faults.workers)
    for producer in producers:
        producer.report()
    faults.go_ahead()
    until(lambda: _is_over(url, faults), what="the end", every_seconds=0.2)
    for worker in faults.workers:
        worker.terminate()
    codes = [worker.wait(STOP_SECONDS_MAX) for worker in faults.workers]
    assert codes == [0] * WORKERS, "".join(worker.complaints for worker in faults.workers)
    return len(names)


def _part(number: int, of: int) -> int:
    """How many effects there are when a fault comes."""
    return ORDERS * 5 * (number + 1) // (of + 2)


def _until_done(url: str, count: int, faults: Faults, producers: list[WorkerProcess]) -> None:
    def enough() -> bool:
        _check_alive(faults, producers)
        with Reader(url) as reader:
            return reader.done() >= count

    until(enough, what=f"{count} effects", every_seconds=0.1)


def _is_over(url: str, faults: Faults) -> bool:
    _check_alive(faults, [])
    with Reader(url) as reader:
        return not reader.unfinished()


def _check_alive(faults: Faults, producers: list[WorkerProcess]) -> None:
    for process in (*faults.workers, *producers):
        codes = {None} if process in faults.workers else {None, 0}
        assert process.exit_code in codes, process.complaints


def _prepare(url: str) -> None:
    with Ledger(url, settings=Settings.load(url=url, environ={})) as ledger:
        ledger.migrate()
    shop.install(url)


def _through(url: str, proxy: Proxy | None) -> str:
    if proxy is None:
        return url
    there = make_url(url).set(host="127.0.0.1", port=proxy.port)
    return there.render_as_string(hide_password=False)


@contextmanager
def _processes(url: str, folder: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts processes of the shop, which are gone at the end."""
    with ExitStack() as stack:

        def start(what: str, *arguments: str) -> WorkerProcess:
            words = (what, str(folder), *arguments)
            process = WorkerProcess(url, SHOP, settings=SETTINGS, arguments=words)
            stack.enter_context(process)
            if what == "work":
                process.ready()
            return process

        yield start


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("DELETE FROM shop_effect WHERE what = 'mail'", "lost"),
        ("INSERT INTO shop_effect (what, order_id) VALUES ('charge', 'b')", "double"),
        ("UPDATE shop_order SET number = 3 - number", "out_of_order"),
        ("DELETE FROM shop_order WHERE id = 'a'", "problems"),
        ("UPDATE job SET status = 'running', finished_at = NULL WHERE id = 'charge-a'", "problems"),
        ("DELETE FROM job_event WHERE job_id = 'charge-a' AND next_status = 'running'", "problems"),
    ],
)
def test_the_checker_can_fail(tmp_path: Path, words: str, found: str) -> None:
    """What is broken by hand is found, and what is not is not."""
    url = f"sqlite:///{tmp_path}/planted.db"
    _plant(url)
    (tmp_path / "notes-1").write_text("kept a\nkept b\n")
    assert check(url, tmp_path).kept

    connection = connect(url)
    connection.execute(words)
    connection.commit()
    connection.close()

    assert getattr(check(url, tmp_path), found)


def _plant(url: str) -> None:
    """Two orders of one customer, done as promised, in tables that look like the real ones."""
    connection = connect(url)
    for words in (
        *(each.format(serial=shop.SERIALS["sqlite"]) for each in shop.TABLES),
        "CREATE TABLE job (id TEXT, type TEXT, status TEXT, finished_at TEXT)",
        "CREATE TABLE job_event (id INTEGER PRIMARY KEY, ts, job_id, prev_status, next_status)",
        "CREATE TABLE messenger_messages (id INTEGER)",
        "CREATE TABLE messenger_outbox (id INTEGER, delivered_at TEXT)",
    ):
        connection.execute(words)
    for number, order in enumerate("ab", 1):
        connection.execute("INSERT INTO shop_order VALUES (?, 'ann', ?)", (order, number))
        for what in (*JOBS, "book"):
            connection.execute(
                "INSERT INTO shop_effect (what, order_id) VALUES (?, ?)", (what, order)
            )
        for what in JOBS:
            job = f"{what}-{order}"
            connection.execute("INSERT INTO job VALUES (?, ?, 'succeeded', 'now')", (job, what))
            for move in ((None, "queued"), ("queued", "running"), ("running", "succeeded")):
                connection.execute(
                    "INSERT INTO job_event (job_id, prev_status, next_status) VALUES (?, ?, ?)",
                    (job, *move),
                )
    connection.commit()
    connection.close()

"""Several at once, and killed in between: no event lost, none applied twice, the same end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Barrier, Event
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from ledgerstone import Ledger
from ledgerstone.engine.source import Ask, Outcome, OutcomeKind
from ledgerstone.protocols import (
    DeferredEnqueue,
    Envelope,
    Projecting,
    Reading,
    Result,
    Running,
    deferred,
    rechecks,
)
from ledgerstone.protocols.applying import apply
from ledgerstone.protocols.commands import Transactions
from ledgerstone.protocols.example import protocol as groups
from ledgerstone.protocols.results import Reason
from ledgerstone.settings import Settings
from ledgerstone.store.database import Database
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.child import Child
from tests.protocols.letters import (
    arrive,
    count,
    given_key,
    letters,
    rows,
    seat,
    words_of,
    written,
)

QUICK = {"lease_seconds": 1.0, "rescue_seconds": 0.1, "crashes_max": 100}
LETTERS = 40
WORK = """
import sys
from ledgerstone import Ledger
from ledgerstone.settings import Settings
from tests.protocols.letters import letters
engine = {"lease_seconds": 1.0, "rescue_seconds": 0.1, "crashes_max": 100}
with Ledger(settings=Settings.load(url=sys.argv[1], environ={}, engine=engine)) as ledger:
    running = ledger.protocol(letters())
    print("ready", flush=True)
    sys.stdin.readline()
    running.work(together=int(sys.argv[2]))
"""


def opened(home: Home) -> Ledger:
    """A ledger whose leases end soon."""
    return Ledger(settings=Settings.load(url=home.url, environ={}, engine=QUICK))


@pytest.fixture
def quick(ledger: Ledger, home: Home) -> Iterator[Running]:
    """The protocol on a ledger whose leases end soon."""
    ledger.close()
    with opened(home) as made:
        yield made.protocol(letters())


def backlog() -> list[Envelope]:
    """Letters before their key, a chain of seats in the wrong order, and what arrives twice."""
    before = [written(f"{i:02}") for i in range(LETTERS // 2)]
    after = [written(f"{i:02}") for i in range(LETTERS)]
    return [*before, seat("c", "b"), seat("b", "a"), given_key(), *after, seat("a")]


def is_done(running: Running) -> bool:
    """Nothing is left to do, and everything was applied once."""
    running.work()
    left = [count(running, table) for table in ("incoming", "blocked", "recheck_queue")]
    return left == [0, 0, 0]


def check_end(running: Running) -> None:
    """As after a run of one process that nobody killed."""
    assert sorted(words_of(running)) == [f"{i:02}" for i in range(LETTERS)]
    assert [row[0] for row in rows(running, "SELECT name FROM seat ORDER BY name")] == [*"abc"]
    assert count(running, "events") == LETTERS + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failpoint", "together"),
    [
        ("pump.claimed=kill@2", 7),
        ("protocols.projected=kill@1", 1),
        ("protocols.applied=kill@3", 7),
        ("protocols.kept=kill@2", 1),
        ("protocols.unblocked=kill@2", 1),
        ("protocols.rechecked=kill@3", 7),
        ("transaction.before_commit=kill@9", 1),
        ("transaction.after_commit=kill@9", 7),
    ],
)
def test_a_process_is_killed(quick: Running, home: Home, failpoint: str, together: int) -> None:
    """At each step of pop, project, block, unblock and drain; another process goes on."""
    with Child(WORK, home.url, together, failpoint=failpoint) as child:
        arrive(quick, *backlog())
        child.go()
        child.ended()

    until(lambda: is_done(quick))

    check_end(quick)


DRAIN = """
import sys
from ledgerstone import Ledger
from ledgerstone.settings import Settings
from tests.protocols.test_races import quick_letters
with quick_letters(sys.argv[1]) as running:
    print("ready", flush=True)
    sys.stdin.readline()
    running.work()
"""
TICK = DRAIN.replace("running.work()", "running.tick()")
IMPORT = DRAIN.replace(
    "running.work()",
    "from tests.protocols.test_races import imported; "
    "running.import_events(imported(), name='file', batch=50)",
)


@contextmanager
def quick_letters(url: str) -> Iterator[Running]:
    """The protocol with a job, on a ledger whose leases end soon."""
    protocol = letters()

    @protocol.job("greets", every_seconds=3600)
    def greets(db: Reading) -> Result:
        return Result(envelopes=[given_key(f"room {db.now_ms}")])

    tick = {"tick_lease_seconds": 1.0}
    with Ledger(settings=Settings.load(url=url, environ={}, engine=QUICK, protocols=tick)) as made:
        yield made.protocol(protocol)


def imported() -> list[Envelope]:
    """Events for an import, of which some wait."""
    return [written(f"{i:03}") for i in range(200)] + [given_key()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    [
        "protocols.drained=kill@3",
        "protocols.unblocked=kill@2",
        "transaction.before_commit=kill@5",
        "transaction.after_commit=kill@5",
    ],
)
def test_a_process_is_killed_while_it_drains_partitions(
    quick: Running, home: Home, failpoint: str
) -> None:
    """Deferred events are applied once, in the order of their partition."""
    numbers = [f"{i:02}" for i in range(12)]
    with quick.database.transaction() as tx:
        for number in numbers:
            wish = DeferredEnqueue(written(number), partition=f"p{int(number) % 2}")
            deferred.enqueue(tx, "letters", wish)
        incoming_key = DeferredEnqueue(given_key(), partition="p0")
        deferred.enqueue(tx, "letters", incoming_key)
    with Child(DRAIN, home.url, failpoint=failpoint) as child:
        child.go()
        code, _ = child.ended()

    until(lambda: is_done(quick) and count(quick, "deferred_lane") == 0)

    assert code != 0
    applied = words_of(quick)
    assert sorted(applied) == numbers
    for parity in (0, 1):
        lane = [word for word in applied if int(word) % 2 == parity]
        assert lane == sorted(lane)
    assert (count(quick, "deferred"), count(quick, "events")) == (0, 13)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint", ["protocols.job_ran=kill@1", "transaction.before_commit=kill@3"]
)
def test_a_process_is_killed_in_a_tick(ledger: Ledger, home: Home, failpoint: str) -> None:
    """The job is run once, or again if it did not commit; the lease runs out, and another ticks."""
    ledger.close()
    with quick_letters(home.url) as running:
        with Child(TICK, home.url, failpoint=failpoint) as child:
            child.go()
            code, _ = child.ended()

        until(lambda: not running.tick().held)

        assert code != 0
        assert count(running, "events") == 1
        assert rows(running, "SELECT runs, failures FROM protocol_job") == [(1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    [
        "protocols.imported=kill@2",
        "transaction.before_commit=kill@3",
        "transaction.after_commit=kill@3",
    ],
)
def test_a_process_is_killed_in_an_import(quick: Running, home: Home, failpoint: str) -> None:
    """Another goes on behind the last batch that was kept; the end is that of one by one."""
    with Child(IMPORT, home.url, failpoint=failpoint) as child:
        child.go()
        code, _ = child.ended()

    moved = quick.import_events(imported(), name="file", batch=50)
    until(lambda: is_done(quick))

    assert code != 0
    assert 0 < moved.resumed < 201
    assert (moved.all, moved.known) == (201, 0)
    assert words_of(quick) == [f"{i:03}" for i in range(200)]
    assert count(quick, "events") == 201


@pytest.mark.slow
def test_several_processes_apply_what_comes_in(quick: Running, home: Home) -> None:
    """Two processes and a reader at once: each event is applied once, and the reader waits not."""
    arrive(quick, *backlog())
    with Child(WORK, home.url, 1) as first, Child(WORK, home.url, 1) as second:
        first.go()
        second.go()
        seen = [len(words_of(quick)) for _ in range(20)]
        codes = [first.ended()[0], second.ended()[0]]

    until(lambda: is_done(quick))

    assert (codes, seen) == ([0, 0], sorted(seen))
    check_end(quick)


def test_a_key_that_is_about_to_be_committed(ledger: Ledger) -> None:
    """An event that looks for its key just before the key is committed does not wait for ever."""
    protocol = letters()
    running = ledger.protocol(protocol)
    arrive(running, written("hello"))
    if ledger.database.dialect.one_writer:
        # The writer of the key holds off the other one: there is nothing to be missed.
        arrive(running, given_key())
        running.work()
    else:
        with ThreadPoolExecutor(1) as beside:
            with ledger.transaction() as tx:
                apply(tx, protocol, given_key(), 1)
                working = beside.submit(running.work)
                # MariaDB's answer is a copy, which is renewed only if nobody has asked for 0.1 s.
                until(lambda: _waits_for_a_lock(ledger.database), every_seconds=0.2)
            working.result()
        running.work()

    assert (words_of(running), count(running, "blocked")) == (["hello"], 0)


def test_a_key_that_somebody_holds(ledger: Ledger) -> None:
    """An event that waits for a row of an open transaction is put off; those behind it go on."""
    running = ledger.protocol(letters())
    arrive(running, written("held up"), given_key("attic"))
    arrive(running, *[written(f"{i:02}", room="attic") for i in range(20)])
    if ledger.database.dialect.one_writer:
        # Here an open transaction holds off all others, and no row of its own.
        running.work()
    else:
        with ThreadPoolExecutor(1) as beside:
            with ledger.transaction() as tx:
                rechecks.wake(tx, "letters", [Reason("key", "ann/hall")])
                working = beside.submit(running.work)
                until(lambda: len(words_of(running)) == 20)
            working.result()
        until(lambda: running.work() is not None and count(running, "incoming") == 0)

    assert words_of(running) == [f"{i:02}" for i in range(20)]
    assert count(running, "blocked") == 1


def _waits_for_a_lock(database: Database[Any]) -> bool:
    """Whether a session waits for another one."""
    queries = {
        "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }
    with database.engine.connect() as connection:
        sql = next(sql for name, sql in queries.items() if name in database.url.drivername)
        return bool(connection.execute(text(sql)).scalar())


def test_a_command_is_run_again_after_a_deadlock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands that lock two rows crosswise both succeed, and each is applied once.

    On SQLite, where nothing locks crosswise, another program holds the file meanwhile.
    """
    protocol, met, begun = letters(), Barrier(2), list[str]()
    one_writer = ledger.database.dialect.one_writer

    @protocol.projector("pair")
    def pair(db: Projecting, event: Envelope) -> None:
        first, second = event.data["names"]
        db.values.add(first)
        begun.append(first)
        if begun.count(first) == 1 and not one_writer:
            met.wait(WAIT_SECONDS_MAX)
        db.values.add(second)

    @protocol.command("pair")
    def command(_db: Reading, *, names: list[str]) -> Result:
        return Result(envelopes=[Envelope(type="pair", data={"names": names})])

    store = msgspec.structs.replace(ledger.settings.store, busy_timeout_seconds=0.05)
    settings = msgspec.structs.replace(ledger.settings, store=store)
    with Ledger(settings=settings) as made, ThreadPoolExecutor(2) as beside:
        running = made.protocol(protocol)
        begins, transaction = list[int](), running.database.transaction

        def counted() -> AbstractContextManager[Transaction]:
            begins.append(1)
            return transaction()

        monkeypatch.setattr(running.database, "transaction", counted)
        with ledger.transaction() if one_writer else nullcontext():
            both = [
                beside.submit(running.command, "pair", {"names": list(names)})
                for names in ("ab", "ba")
            ]
            until(lambda: len(begins) >= 3)
        for each in both:
            each.result()

        assert running.read(lambda db: (db.values.get("a"), db.values.get("b"))) == (2, 2)
        assert count(running, "events") == 2


def test_a_slow_job_reads_what_others_have_committed(ledger: Ledger, home: Home) -> None:
    """A tick that was under way while an invite and a join came in sees both in its next step."""
    protocol, under_way, go_on = letters(), Event(), Event()
    seen: list[int] = []

    @protocol.job("slow", every_seconds=60, manages_transactions=True)
    def slow(at: Transactions) -> Result:
        def look(db: Reading) -> int:
            return len(db.rows("SELECT 1 FROM letter"))

        seen.append(at.reading(look))
        under_way.set()
        assert go_on.wait(WAIT_SECONDS_MAX)
        seen.extend((at.reading(look), at.run(look)))
        return Result()

    running = ledger.protocol(protocol)
    with ThreadPoolExecutor(1) as beside, Ledger(home.url) as other:
        ticked = beside.submit(running.tick)
        assert under_way.wait(WAIT_SECONDS_MAX)
        own = other.protocol(letters())
        own.command("letter.write", {"room": "hall", "words": "hello"})
        own.import_events([given_key()])
        own.work()
        go_on.set()
        ran = ticked.result()

    assert (seen, [each.error for each in ran.ran]) == ([0, 1, 1], [None])


@pytest.mark.slow
def test_a_slow_tick_beside_an_invite_and_a_join(ledger: Ledger, home: Home) -> None:
    """Whoever comes first, the end is that of one after the other."""
    steps = [
        ("invite.create", {"group": "g", "invite": "i", "by": "ann"}),
        ("join", {"group": "g", "invite": "i", "by": "ann"}),
        ("message.create", {"group": "g", "words": "hello", "by": "ann"}),
    ]
    running = ledger.protocol(groups)
    running.command("group.create", {"group": "g", "name": "Garden", "by": "ann"})

    def command(step: tuple[str, dict[str, str]]) -> None:
        with Ledger(home.url) as own:
            own.protocol(groups).command(*step)

    def tick() -> None:
        with Ledger(home.url) as own:
            own.protocol(groups).tick()

    with ThreadPoolExecutor(4) as beside:
        done = [beside.submit(tick), *(beside.submit(command, step) for step in steps)]
        for each in done:
            each.result()
    running.work()

    def read(db: Reading) -> list[int]:
        tables = ("chat_invite", "chat_member", "chat_message", "blocked")
        return [db.rows(f"SELECT COUNT(*) FROM {table}")[0][0] for table in tables]  # noqa: S608

    assert running.read(read) == [1, 1, 1, 0]


def test_a_wake_up_that_comes_during_a_drain(ledger: Ledger) -> None:
    """A key that is unblocked while a worker has its marker is looked at once more."""
    running = ledger.protocol(letters())
    arrive(running, written("first"))
    running.work()
    hall = Reason("key", "ann/hall")
    for _ in range(3):
        ledger.run(lambda tx: rechecks.wake(tx, "letters", [hall]))
    markers = count(running, "recheck_queue")
    source = running.sources()[1]
    (claim,) = ledger.run(lambda tx: source.claim(tx, Ask(10, "a worker", 30.0)))
    # The worker has looked, and found nothing to do; now the key comes.
    running.import_events([given_key()])

    ledger.run(lambda tx: source.settle(tx, [Outcome(claim, OutcomeKind.DONE)]))
    running.work()

    assert (markers, words_of(running), count(running, "recheck_queue")) == (1, ["first"], 0)

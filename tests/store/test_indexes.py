"""Pages and claims are answered from their indexes, on every database, by its own plan."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from ledgerstone import Ledger
from ledgerstone.engine.source import Ask
from ledgerstone.items.claim import Claims
from ledgerstone.items.rescue import Rescue
from ledgerstone.items.settle import Extend
from ledgerstone.jobs import NewJob, Status
from ledgerstone.jobs import claim_order as line
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.history import between
from ledgerstone.jobs.read import explain as explaining
from ledgerstone.jobs.read import jobs as reading
from ledgerstone.jobs.read import queues
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.relay import competing
from ledgerstone.messaging.relay.competing import BEGINNING
from ledgerstone.messaging.tables import ready_index
from ledgerstone.store.sql.batch import ClaimEach, FirstEach, LockFirst, document
from ledgerstone.store.sql.statement import Statement
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.chores import Chores, NewChore
from tests.chores import Status as ChoreStatus
from tests.chores.tables import CHORES
from tests.contract.messaging.destination import SHOP, Shop
from tests.contract.store import batches, pages
from tests.contract.store.pages import newest_first, of_kind, oldest_first

ROWS = 3000
BATCH = 30
AFTER = {"after_0": 1500, "after_1": "00000000-0000-0000-0000-000000000000"}
EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN", "mysql": "EXPLAIN"}
ANALYZE = {"sqlite": "ANALYZE", "postgres": "ANALYZE {}", "mysql": "ANALYZE TABLE {}"}
# What a plan says that reads the whole table, or sorts.
SLOW = {
    "sqlite": r"SCAN (entry|chore)(?! USING INDEX)|TEMP B-TREE",
    "postgres": r"Seq Scan|Sort",
    "mysql": r"ALL|filesort",
}
WHOLE_JOB = {
    "sqlite": r"SCAN job(?! USING)",
    "postgres": r"Seq Scan on job",
    "mysql": r"^\d+ \S+ job ALL",
}


def plan(home: Home, tx: Transaction, statement: Statement, **values: Any) -> str:
    """How the database would carry out the statement."""
    compiled = statement.compiled(tx)
    if compiled.takes_now:
        values["now"] = None
    cursor = tx.cursor()
    cursor.execute(f"{EXPLAIN[home.kind]} {compiled.text}", compiled.parameters(values))
    lines = [" ".join(map(str, row)) for row in cursor.fetchall()]
    cursor.close()
    return "\n".join(lines)


def made(tx: Transaction, operation: ClaimEach | FirstEach | LockFirst) -> Statement:
    """What a batch of one group has been made into, on this database."""
    name, statements = tx.database.dialect.name, operation.statements
    (key,) = [key for key in (name, f"{name}.1", f"{name}.pick") if key in statements]
    return statements[key]


def analyze(home: Home, ledger: Ledger, table: str) -> None:
    with ledger.transaction() as tx:
        tx.connection.execute(text(ANALYZE[home.kind].format(table)))


@pytest.fixture
def entries(ledger: Ledger, home: Home) -> None:
    """Many entries of some kinds."""
    pages.tables.create_all(ledger.database.engine)
    pages.add(ledger, [(i, f"kind {i % 3}") for i in range(ROWS)])
    analyze(home, ledger, "entry")


@pytest.mark.usefixtures("entries")
def test_pages_come_from_an_index(ledger: Ledger, home: Home) -> None:
    """First and later pages, in both directions and filtered, scan an index and sort nothing."""
    cases: list[tuple[Statement, str, dict[str, Any]]] = [
        (oldest_first._first, "idx_entry_at_ms_id", {}),
        (oldest_first._next, "idx_entry_at_ms_id", AFTER),
        (newest_first._first, "idx_entry_at_ms_id", {}),
        (newest_first._next, "idx_entry_at_ms_id", AFTER),
        (of_kind._first, "idx_entry_kind_at_ms_id", {"kind": "kind 1"}),
        (of_kind._next, "idx_entry_kind_at_ms_id", {"kind": "kind 1", **AFTER}),
    ]

    with ledger.reading() as tx:
        for statement, index, values in cases:
            told = plan(home, tx, statement, limit=10, **values)

            assert index in told, statement.name
            assert not re.search(SLOW[home.kind], told), told


BY_KEY = {"sqlite": "", "postgres": r"Index Cond: \(id = ", "mysql": r"eq_ref PRIMARY"}


def test_held_rows_are_looked_up_by_key(ledger: Ledger, home: Home) -> None:
    """A worker's session locks and changes the rows of a batch by key, and reads no others."""
    ledger.run(lambda tx: Chores(tx).enqueue_many([NewChore(body=i) for i in range(ROWS)]))
    analyze(home, ledger, "chore")
    session = ledger.database.sibling(connections=1)
    claims = session.run(lambda tx: Claims(CHORES).run(tx, Ask(100, "w", 1.0)))
    extend = Extend(CHORES)

    found = session.run(lambda tx: extend.run(tx, claims, 1.0))

    assert len(found) == 100
    one = claims[0]
    row = {
        "in_id": f"{{{one.key}}}",
        "in_token": f"{{{one.token}}}",
        "rows": document([(one.key, one.token)]),
        "lease_ms": 1,
    }
    with session.transaction() as tx:
        for name, statement in extend._each.statements.items():
            rows = document([(0, one.key, one.token)]) if name.endswith("lock") else row["rows"]
            told = plan(home, tx, statement, **{**row, "rows": rows})

            assert re.search(BY_KEY[home.kind], told), told
            assert not re.search(r"Seq Scan on chore|chore ALL|SCAN chore(?! USING)", told), told


def test_claims_come_from_an_index(ledger: Ledger, home: Home) -> None:
    """What is due, and what has expired, is found by its index and not by looking at everything."""
    ledger.run(lambda tx: Chores(tx).enqueue_many([NewChore(body=i) for i in range(ROWS)]))
    claims, expiring = Claims(CHORES), Rescue(CHORES)
    ledger.run(lambda tx: claims.run(tx, Ask(50, "w", 0.001)))
    analyze(home, ledger, "chore")

    with ledger.transaction() as tx:
        claims.run(tx, Ask(1, "w", 0.001))
        name = ledger.database.dialect.name
        taking = claims.each.statements
        claim = taking.get(f"{name}.pick") or taking[name]
        common = {"lease_ms": 1, "worker": "w", "prev": "queued", "next": "running"}
        told = plan(home, tx, claim, limit=10, **common)
        expired = plan(home, tx, expiring._find, limit=10)

    assert "idx_chore_due" in told
    assert "idx_chore_held" in expired
    assert not re.search(SLOW[home.kind], told), told


@pytest.mark.mysql
@pytest.mark.parametrize("home", ["mysql"], indirect=True)
def test_changes_look_their_rows_up(ledger: Ledger, home: Home) -> None:
    """MySQL locks what it reads: so a batch looks its rows up by key, also in a tiny table."""
    batches.tables.create_all(ledger.database.engine)
    ledger.run(lambda tx: batches.add(tx, [(i, str(i), None) for i in range(4)]))

    with ledger.transaction() as tx:
        batches.change.run(tx, [(1, 1, "x"), (2, 1, "x")], extra_=None)
        batches.rename.run(tx, [("1", "x"), ("2", "x")])
        by_number = batches.change.statements["mysql"]
        by_name = batches.rename.statements["mysql"]
        told = plan(home, tx, by_number, rows="[[1, 2, null]]", extra_=None)
        told_by_name = plan(home, tx, by_name, rows='[["1", "x"]]')

    assert re.search(r"item \S* ?eq_ref PRIMARY", told), told
    assert re.search(r"item \S* ?eq_ref uq_item_name", told_by_name), told_by_name


@pytest.fixture
def jobs(ledger: Ledger, home: Home, clock: ManualClock) -> str:
    """Many jobs in line, accepted at many moments; the id of one of the last."""
    accepted: list[str] = []
    for _ in range(ROWS // BATCH):
        batch = [NewJob(type="a")] * BATCH
        with ledger.transaction() as tx:
            accepted += [each.id for each in tx.jobs.enqueue_many(batch)]
        clock.advance(1)
    analyze(home, ledger, "job")
    return accepted[-1]


def test_jobs_are_listed_from_an_index(ledger: Ledger, home: Home, jobs: str) -> None:
    """A list of all jobs reads a page of each status from an index, the first and a later one."""
    after = {"after_0": datetime(2026, 1, 1), "after_1": jobs}  # noqa: DTZ001 - as it is kept
    listing = reading._listing(())

    with ledger.reading() as tx:
        for statement, more in ((listing._first, {}), (listing._next, after)):
            told = plan(home, tx, statement, limit=10, **more)

            assert told.count("idx_job__status_created_at") >= len(Status), told
            assert not re.search(WHOLE_JOB[home.kind], told, re.MULTILINE), told


GROUP = {"one_org_id": NO_ORG, "one_type": "a", "in_0_org_id": NO_ORG, "in_0_type": "a"} | {
    "in_org_id": f"{{{NO_ORG}}}",
    "in_type": "{a}",
}
PLACE = {"urgency_": 0, "run_at_": 1, "queue_": "default", "each": 10, "limit": 10}
MOST = {"one_most": 10, "in_0_most": 10, "in_most": "{10}"}


def test_who_is_ahead_is_three_ranges(ledger: Ledger, home: Home, jobs: str) -> None:
    """To count who is ahead of a job no job behind it is read: each part is a range of an index."""
    for some in explaining._AHEAD:
        given = PLACE | ({"id_": jobs} if some is explaining._AHEAD[-1] else {})

        with ledger.reading() as tx:
            rest = {k: v for k, v in given.items() if k not in {"limit", "each"}}
            some.rows(tx, [(NO_ORG, "a")], each=10, **rest)
            told = plan(home, tx, made(tx, some), **given, **GROUP)

        assert "idx_job__due" in told, told
        assert not re.search(WHOLE_JOB[home.kind], told, re.MULTILINE), told


@pytest.mark.usefixtures("jobs")
def test_a_line_is_listed_and_read_by_its_index(ledger: Ledger, home: Home) -> None:
    """The groups in line and the first jobs of each are looked up; nothing is scanned or sorted."""
    session = ledger.database.sibling(connections=1)
    listing = {"queue_": "default", "begin": NO_ORG, "most": 50, "first_": NO_ORG, "second_": "a"}
    step = line._list._stepping if ledger.database.dialect.recurs else line._list._next

    with session.transaction() as tx:
        line._heads.rows(tx, [(NO_ORG, "a")], each=10, queue_="default")
        line._look.rows(tx, [(NO_ORG, "a", 10)], limit=10, queue_="default")
        told = [plan(home, tx, step, **listing)]
        told += [
            plan(home, tx, made(tx, operation), **PLACE, **GROUP, **MOST)
            for operation in (line._heads, line._look)
        ]

    for each in told:
        assert "idx_job__due" in each, each
        assert not re.search(WHOLE_JOB[home.kind], each, re.MULTILINE), each
        assert not re.search(r"TEMP B-TREE|Sort|filesort", each), each
    session.close()


@pytest.mark.usefixtures("jobs")
def test_one_group_is_claimed_by_its_index(ledger: Ledger, home: Home) -> None:
    """The claim of a line of one group, and what tells that it is the only one, are look-ups."""
    session = ledger.database.sibling(connections=1)
    given: dict[str, Any] = {"queue_": "default", "org_": NO_ORG, "type_": "a", "limit": 10}
    given |= {"lease_ms": 1000, "worker": "w", **between(Status.QUEUED, Status.RUNNING)}

    with session.transaction() as tx:
        line._take.run(tx, **given)
        told = plan(home, tx, made(tx, line._take), **given, told_id="x")

    assert told.count("idx_job__due") >= 3, told
    assert not re.search(WHOLE_JOB[home.kind], told, re.MULTILINE), told
    assert not re.search(r"TEMP B-TREE|Sort|filesort", told), told
    session.close()


@pytest.mark.usefixtures("jobs")
def test_nothing_is_counted_exactly(ledger: Ledger) -> None:
    """What status and queues count stops at its most, whatever there is."""
    worker = ledger.worker(ledger.job_source("far"))
    worker._say()
    ledger.run(lambda tx: tx.jobs.enqueue("a", queue="far"))
    ledger.run(lambda tx: Chores(tx).enqueue_many([NewChore(body=i) for i in range(20)]))
    for _ in range(20):
        ledger.run(lambda tx: tx.outbox.publish("order.placed", {}))

    with ledger.reading() as tx:
        seen = queues.look(tx, counted_max=10)
        chores = Chores(tx).some_counts(10)
        backlog = {each.destination: each.waiting for each in tx.outbox.backlog(counted_max=10)}

    assert {queue.name: queue.queued for queue in seen.queues} == {"default": 10, "far": 1}
    assert (seen.counted_all, seen.more) == (False, ["queued"])
    assert chores[ChoreStatus.QUEUED] == 10
    assert backlog["local"] == 10
    worker.stop(grace_seconds=0)


@pytest.mark.usefixtures("ledger")
def test_a_competing_relay_reads_past_nothing(home: Home, clock: ManualClock) -> None:
    """What a competing relay takes is a range of an index without what is delayed or delivered."""
    later = datetime.fromtimestamp(clock.now_ms() / 1000 + 86_400, UTC)
    with Shop(home.url, clock, mode="competing") as shop:
        if shop.ledger.database.dialect.one_writer:
            return
        shop.publish(*range(ROWS), partition="a", available_at=later)
        shop.publish(*range(ROWS), partition="b")
        shop.tick(5)
        shop.publish(1, 2, 3, partition="c")
        analyze(home, shop.ledger, "messenger_outbox")
        registry = shop.ledger.registry
        given = {"queue": SHOP, "at": BEGINNING[0], "place": 0, "limit_": 10, "small": 1000}
        with shop.ledger.reading() as tx:
            looked = plan(home, tx, competing._Statements(registry).any, **given)
            taken = plan(home, tx, competing._Statements(registry).take, **given)

    for found in (looked, taken):
        assert ready_index(registry.shared.outbox) in found
        assert not re.search(r"Sort|filesort|Bitmap", found)

"""The job contract, the line: what a claim reads, whose turn it is, and that no key starves."""

from __future__ import annotations

from uuid import UUID

import pytest

from ledgerstone.engine.source import Ask, Claim, OutcomeKind
from ledgerstone.jobs import JobSource, Limit, NewJob
from ledgerstone.jobs import claim_order as line
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.jobs.examples import (
    ADA,
    LEASE_SECONDS,
    claim,
    enqueue,
    nothing,
    settle,
    statement,
)
from tests.harness.reads import rows_read

CROWD = 2000
READS_MAX = 200
"""Rows that a claim of a few jobs may read more, if a crowd that it cannot take is in line."""
ORGS = 1000
STARTED_MAX = 1500
"""Jobs of others that begin before the first one of somebody new, claimed ahead or not."""


class LineContract:
    """What is claimed, and at what price. Fixtures: `ledger`, `clock` and the `home` it is on."""

    @pytest.fixture
    def source(self, ledger: Ledger) -> JobSource:
        """Jobs of two types that do nothing."""
        ledger.kinds.add("a", nothing)
        ledger.kinds.add("b", nothing)
        return ledger.job_source()

    def test_what_nobody_knows_is_not_read(
        self, home: Home, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """However many jobs of a type are in line that no worker here knows, a claim reads few."""
        add(ledger, [NewJob(type="unknown") for _ in range(20)])
        ids = [enqueue(ledger, "a") for _ in range(15)]
        before = read_by_claim(home, ledger, source)
        for _ in range(CROWD // 1000):
            add(ledger, [NewJob(type="unknown", priority=9) for _ in range(1000)])

        after = read_by_claim(home, ledger, source)
        rest = [taken.key for taken in claim(ledger, source)]
        idle = read_by_claim(home, ledger, source)

        assert after - before <= READS_MAX
        assert idle <= before + READS_MAX
        assert rest == ids[10:]

    def test_a_long_line_is_not_read(
        self, home: Home, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """However long the line is, a claim reads no more of it than it takes."""
        add(ledger, [NewJob(type="a") for _ in range(20)])
        claim(ledger, source, limit=5)
        before = read_by_claim(home, ledger, source)
        for _ in range(CROWD // 1000):
            add(ledger, [NewJob(type="a") for _ in range(1000)])

        one_group = read_by_claim(home, ledger, source)
        enqueue(ledger, "b", priority=9)
        two_groups = read_by_claim(home, ledger, source)

        assert one_group - before <= READS_MAX
        assert two_groups - before <= READS_MAX

    def test_somebody_new(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """However many organisations have how many jobs, a new one waits for one of each."""
        orgs = [str(UUID(int=(n + 1) << 100)) for n in range(ORGS)]
        for _ in range(4):
            add(ledger, [NewJob(type="a", org=org) for org in orgs])
        claim(ledger, source, limit=1)
        # The one whose turn has just been is in front of it: all others come first.
        new = str(UUID(int=(1 << 100) + 1))
        claim(ledger, source, limit=500)
        add(ledger, [NewJob(type="a", org=new) for _ in range(10)])

        started = 0
        while new not in (orgs := [whose(each) for each in claim(ledger, source, limit=500)]):
            started += len(orgs)

        assert started + orgs.index(new) <= STARTED_MAX

    def test_a_round_of_few(
        self,
        ledger: Ledger,
        clock: ManualClock,
        source: JobSource,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Organisations share a claim; what one does not need the others get, until it is full."""
        monkeypatch.setattr(line, "ROUND_JOBS", 12)
        orgs = [str(UUID(int=(n + 1) << 120)) for n in range(4)]
        for org, count in zip(orgs, (30, 1, 9, 30), strict=True):
            add(ledger, [NewJob(type="a", org=org) for _ in range(count)])

        shares = []
        for _ in range(4):
            taken = [whose(each) for each in claim(ledger, source, limit=24)]
            shares.append([taken.count(org) for org in orgs])

        assert [sum(share) for share in shares] == [24, 24, 22, 0]
        assert min(shares[0]) >= 1
        assert max(shares[0]) <= 12

    def test_types_are_one_line(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Jobs of different types come by urgency and due time, in each organisation."""
        other = "20000000-0000-4000-8000-000000000000"
        expected: dict[str | None, list[tuple[int, int, str]]] = {None: [], other: []}
        for n in range(24):
            org, priority = (None, other)[n % 2], n * 7 % 3
            kind = ("a", "b", "unknown")[n * 5 % 3] if n % 4 else "b"
            options = {"org": org} if org is not None else {}
            key = enqueue(ledger, kind, priority=priority, **options)
            if kind != "unknown":
                expected[org].append((-priority, n, key))
            clock.advance(1)

        taken: dict[str, list[str]] = {}
        while claims := claim(ledger, source, limit=3):
            for each in claims:
                taken.setdefault(whose(each), []).append(each.key)

        due = [[key for _, _, key in sorted(some)] for some in expected.values()]
        assert sorted(taken.values()) == sorted(due)

    def test_a_new_type_is_as_urgent(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """An urgent job of a type that was not in line before is next, and an earlier one too."""
        plain = [enqueue(ledger, "a") for _ in range(12)]
        turns = [claim(ledger, source, limit=4)]
        urgent = enqueue(ledger, "b", priority=9)

        turns += [claim(ledger, source, limit=4) for _ in range(2)]

        taken = [each.key for turn in turns for each in turn]
        assert taken == [*plain[:4], urgent, *plain[4:11]]

    def test_a_kind_of_another_queue(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A job with a limit key has its turn in a queue that is not its kind's, too."""
        ledger.kinds.add("limited", served, queue="elsewhere", limit=BY_CUSTOMER)
        add(ledger, [NewJob(type="a") for _ in range(30)])
        claim(ledger, source, limit=5)
        limited = [
            enqueue(ledger, "limited", {"customer": name}, queue="default", priority=1000)
            for name in ("ada", "ada", "bob")
        ]

        turns = [claim(ledger, source, limit=5) for _ in range(2)]
        first = {each.key for each in turns[0]}
        (ada,) = [each for each in turns[0] if each.key == limited[0]]
        settle(ledger, source, ada, OutcomeKind.DONE)
        then = [each.key for each in claim(ledger, source, limit=5)]

        assert {limited[0], limited[2]} <= first
        assert limited[1] not in {each.key for turn in turns for each in turn}
        assert limited[1] in then

    def test_a_key_that_its_kind_has_no_more(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A job that was accepted with a limit key has its turn, whatever its kind says now."""
        ids = [enqueue(ledger, "a") for _ in range(40)]
        claim(ledger, source, limit=5)
        keyed = ids[7]
        statement(
            ledger, "UPDATE job SET limit_key = 'ada', limit_max = 1 WHERE id = :id", id=keyed
        )

        taken = []
        for _ in range(3):
            # After a slow claim the next ones begin where it ended, for as long.
            clock.advance(line.RESUME_SECONDS)
            taken += [each.key for each in claim(ledger, source, limit=5)]

        assert keyed in taken

    def test_a_queue_that_is_held_back_later(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A queue that is paused, or limited, while jobs are claimed gives no more than it may."""
        add(ledger, [NewJob(type="a") for _ in range(30)])
        turns = [len(claim(ledger, source, limit=5)) for _ in range(2)]

        ledger.run(lambda tx: tx.jobs.pause("default"))
        turns.append(len(claim(ledger, source, limit=5)))
        ledger.run(lambda tx: tx.jobs.resume("default"))
        turns.append(len(claim(ledger, source, limit=5)))
        ledger.run(lambda tx: tx.jobs.limit("default", 17))
        turns.append(len(claim(ledger, source, limit=5)))
        ledger.run(lambda tx: tx.jobs.limit("default", None))
        turns.append(len(claim(ledger, source, limit=5)))

        assert turns == [5, 5, 0, 5, 2, 5]


BY_CUSTOMER = Limit(key=lambda customer: customer)


def served(customer: str) -> None:
    """The job of which one for each customer runs at once."""


def whose(taken: Claim) -> str:
    """Of which organisation it is."""
    assert isinstance(taken, JobClaim)
    return taken.org_id


def add(ledger: Ledger, jobs: list[NewJob]) -> None:
    """Enqueue them all."""
    ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))


def read_by_claim(home: Home, ledger: Ledger, source: JobSource) -> int:
    """How many rows a worker's session reads to take five jobs, or to find none."""
    ask = Ask(5, ADA, LEASE_SECONDS)
    session = ledger.database.sibling(connections=1)
    try:
        with session.transaction() as tx:
            return rows_read(home.kind, tx, lambda: source.claim(tx, ask))
    finally:
        session.close()

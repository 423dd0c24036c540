"""The source contract on the queues of protocols: what comes in, goes out, waits and is deferred.

Their items have no history, so that a late settlement is refused and not on record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ledgerstone import Ledger
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.items import Items, ItemSource
from ledgerstone.ledger import Transaction
from ledgerstone.protocols import Protocol, Running, incoming, outgoing
from ledgerstone.protocols.deferred import LANES
from ledgerstone.protocols.rechecks import MARKERS
from ledgerstone.settings import Settings
from ledgerstone.store.schema.tables import worker
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source import (
    ClaimingContract,
    DeathsContract,
    FailingContract,
    RescueContract,
)
from ledgerstone.testing.contracts.source_locks import LockedContract
from ledgerstone.testing.contracts.source_subject import (
    LEASE_SECONDS,
    Subject,
    SubjectContract,
    added,
    claim,
    extend,
    rescue,
    settle,
    sorted_verdicts,
    state,
    suspected,
)
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.contract.engine.item_subjects import NOW_MS, ItemSubject

NAME = "contract"
ATTEMPTS_MAX = 4


class QueueSubject(ItemSubject):
    """A queue of a protocol, claimed and settled by its own source."""

    attempts_max = ATTEMPTS_MAX

    def __init__(
        self, source: ItemSource, items: Items, new: Callable[[int], Mapping[str, Any]]
    ) -> None:
        super().__init__(items, items.table, new)
        self.source = source

    def clear(self, tx: Transaction) -> None:
        for table in (self.items.table, worker):
            tx.execute(table.delete())

    def refusals(self, tx: Transaction, key: str) -> int:
        """None is on record."""
        return 0


class RefusedContract(SubjectContract):
    """A claim that was lost changes nothing, and its holder is told."""

    def test_a_lost_claim_is_refused(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """However it came out: the item is due, or of who has claimed it since."""
        added(ledger, subject, len(subject.verdicts))
        outcomes = [
            subject.outcome(late, verdict)
            for late, verdict in zip(claim(ledger, subject), sorted_verdicts(subject), strict=True)
        ]
        late = [outcome.claim for outcome in outcomes]
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)

        refused = [settle(ledger, subject, each) for each in outcomes]
        due = [state(ledger, subject, each.key) for each in late]
        current = claim(ledger, subject)
        refused += [settle(ledger, subject, *outcomes)]

        assert refused == [*[[each] for each in outcomes], outcomes]
        assert due == ["due"] * len(late)
        assert extend(ledger, subject, late) == late
        assert sorted(each.key for each in current) == sorted(each.key for each in late)
        done = [subject.outcome(each, OutcomeKind.DONE) for each in current]
        assert settle(ledger, subject, *done) == []
        assert {state(ledger, subject, each.key) for each in current} == {"done"}


class QueueDeathsContract(DeathsContract):
    """The same for items without a history."""

    def test_a_death_is_not_settled_afterwards(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A worker that only seemed dead cannot settle an item that was given up for it."""
        (key,) = suspected(ledger, clock, subject, 1)
        (late,) = claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
        outcome = subject.outcome(late, OutcomeKind.DONE)

        refused = settle(ledger, subject, outcome)

        assert (refused, state(ledger, subject, key)) == ([outcome], "dead")


@pytest.fixture(scope="module", params=KINDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A database for all clauses: a fresh one for each of them would cost more than they do."""
    yield from new_home(request, request.param, tmp_path_factory.mktemp("queues"), migrated=True)


@pytest.fixture
def ledger(home: Home, clock: ManualClock) -> Iterator[Ledger]:
    """A ledger on it; each subject removes what the clause before has left."""
    terms = {"attempts_max": ATTEMPTS_MAX}
    settings = Settings.load(url=home.url, environ={}, protocols=terms)
    with Ledger(home.url, settings=settings, clock=clock) as opened:
        yield opened


@pytest.fixture
def running(ledger: Ledger) -> Running:
    """A protocol that takes everything and sends it on."""
    protocol = Protocol(NAME)
    protocol.keeps("note")
    protocol.sender(lambda _address, _blob: None)
    return ledger.protocol(protocol)


def source_of(running: Running, name: str) -> ItemSource:
    """The source of one of its queues."""
    (found,) = [each for each in running.sources() if each.name == name]
    assert isinstance(found, ItemSource)
    return found


class TestIncoming(
    ClaimingContract,
    LockedContract,
    RefusedContract,
    RescueContract,
    FailingContract,
    QueueDeathsContract,
):
    """What comes in is deleted when it is done, and parked when it fails too often."""

    @pytest.fixture
    def subject(self, running: Running) -> QueueSubject:
        """Items that came in."""
        return QueueSubject(
            source_of(running, incoming.CHANNEL),
            incoming.items(ATTEMPTS_MAX),
            lambda n: {
                "id": n,
                "protocol": NAME,
                "blob": b"{}",
                "created_at_ms": NOW_MS,
                "available_at_ms": NOW_MS + n,
            },
        )


class TestOutgoing(
    ClaimingContract,
    LockedContract,
    RefusedContract,
    RescueContract,
    FailingContract,
    QueueDeathsContract,
):
    """So is what goes out."""

    @pytest.fixture
    def subject(self, running: Running) -> QueueSubject:
        """Items that go out."""
        return QueueSubject(
            source_of(running, outgoing.CHANNEL),
            outgoing.items(ATTEMPTS_MAX),
            lambda n: {
                "id": n,
                "protocol": NAME,
                "blob": b"{}",
                "address": f"address {n}",
                "created_at_ms": NOW_MS,
                "available_at_ms": NOW_MS + n,
            },
        )


class TestDeferred(ClaimingContract, LockedContract, RefusedContract, RescueContract):
    """A partition of deferred events is deleted when nothing of it is left."""

    @pytest.fixture
    def subject(self, running: Running) -> QueueSubject:
        """Partitions."""
        return QueueSubject(
            source_of(running, LANES.name),
            LANES,
            lambda n: {"protocol": NAME, "partition_key": f"p{n}", "due_ms": NOW_MS + n},
        )


class TestRechecks(ClaimingContract, LockedContract, RefusedContract, RescueContract):
    """A marker is deleted when everything that waits for its key was tried again."""

    @pytest.fixture
    def subject(self, running: Running) -> QueueSubject:
        """Markers of keys."""
        return QueueSubject(
            source_of(running, MARKERS.name),
            MARKERS,
            lambda n: {
                "partition_key": f"{NAME}/key/{n}",
                "protocol": NAME,
                "reason_type": "key",
                "reason_key": str(n),
                "available_at_ms": NOW_MS + n,
            },
        )

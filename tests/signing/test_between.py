"""Between what a call reads and what it writes, no other transaction changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ledgerstone.errors import (
    EventReplayed,
    KeyConflict,
    LedgerstoneError,
    LockTimeout,
    MessageReplayed,
    MoveNotAllowed,
    VoteChanged,
)
from ledgerstone.signing.access import Transaction
from ledgerstone.signing.keys import Family
from ledgerstone.signing.life import acks, events, finishing, proposals, requests, seen
from ledgerstone.signing.store import StoreTransaction
from ledgerstone.signing.values import (
    PeerId,
    Pending,
    Rejected,
    RequestId,
    SessionId,
    SignerAckRecord,
    Stored,
    TransactionId,
)
from tests.signing.people import KAS, NOW, payment, peer
from tests.signing.world import MINUTE, World, Worlds, an_input

R1, R2 = RequestId("r1"), RequestId("r2")
SESSION = SessionId(b"s" * 32)


class Interrupted(StoreTransaction):
    """A transaction that lets a rival try its call before the first write of such a key."""

    rival: Callable[[], object] | None = None
    prefix = b""
    came = False

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.interrupt(key)
        super().put(family, key, value)

    def insert(self, family: Family, key: bytes, value: bytes) -> Stored:
        self.interrupt(key)
        return super().insert(family, key, value)

    def delete(self, family: Family, key: bytes) -> None:
        self.interrupt(key)
        super().delete(family, key)

    def interrupt(self, key: bytes) -> None:
        """The rival has to wait for what this transaction has read."""
        if self.rival is not None and key.startswith(self.prefix):
            rival, self.rival, self.came = self.rival, None, True
            with pytest.raises(LockTimeout):
                rival()


class Case(NamedTuple):
    """The rows before, a call, a rival's call, and what the rival is told afterwards."""

    prepare: Callable[[World], object]
    call: Callable[[World, Transaction], object]
    rival: Callable[[World], object]
    told: type[object]
    prefix: bytes = b""


def ack(number: int, *, accept: bool = True) -> SignerAckRecord:
    return SignerAckRecord(signer_peer_id=peer(number), accept=accept, timestamp_nanos=NOW)


def vote(world: World, tx: Transaction, request: RequestId, number: int) -> None:
    acks.insert_signer_ack(tx, request, ack(number), now_nanos=world.now)


def begin(world: World, tx: Transaction, name: str, number: int) -> None:
    request = world.new_request(name, payment(number))
    requests.insert_request(tx, request, group_id=world.group_id, now_nanos=world.now)


def one_vote_short(world: World) -> None:
    """Two requests of which the limit allows one, each a vote short of its approval."""
    for name, number in ((R1, 1), (R2, 2)):
        world.propose(name, payment(number))
        world.vote(name, 1)


def accept(world: World, number: int) -> None:
    if not world.signing.mark_seen_message(PeerId("p"), SESSION, number):
        raise MessageReplayed("it was marked")


def overdue(world: World) -> None:
    world.approved()
    world.now += MINUTE


CASES = {
    "two events with one id": Case(
        lambda _: None,
        lambda _, tx: events.insert_event(tx, payment(1)),
        lambda world: world.event(payment(1, timestamp_nanos=7)),
        EventReplayed,
    ),
    "two requests for one event": Case(
        lambda world: world.event(payment(1)),
        lambda world, tx: begin(world, tx, "r1", 1),
        lambda world: world.request(world.new_request("r2", payment(1))),
        EventReplayed,
    ),
    "two requests with one id": Case(
        lambda world: (world.event(payment(1)), world.event(payment(2))),
        lambda world, tx: begin(world, tx, "r1", 1),
        lambda world: world.request(world.new_request("r1", payment(2))),
        KeyConflict,
    ),
    "two votes of one member": Case(
        lambda world: world.propose(),
        lambda world, tx: vote(world, tx, R1, 2),
        lambda world: acks_of(world, ack(2, accept=False)),
        VoteChanged,
    ),
    "two approvals under one limit": Case(
        one_vote_short,
        lambda world, tx: vote(world, tx, R1, 2),
        lambda world: world.vote(R2, 2).decision,
        Rejected,
        b"own:reserved",
    ),
    "an input while the last vote comes": Case(
        one_vote_short,
        lambda world, tx: vote(world, tx, R1, 2),
        lambda world: world.signing.insert_request_input(R1, an_input("r1", 2)),
        MoveNotAllowed,
    ),
    "a proposal's input and a vote": Case(
        lambda world: world.propose(),
        lambda _, tx: proposals.insert_request_input(tx, R1, an_input("r1", 2), now_nanos=NOW),
        lambda world: world.vote(R1, 1).decision,
        Pending,
    ),
    "two final transactions": Case(
        lambda world: world.signed(),
        lambda _, tx: finishing.update_request_final_tx(
            tx, R1, TransactionId(b"a" * 32), now_nanos=NOW
        ),
        lambda world: world.finalize(R1, b"b" * 32),
        KeyConflict,
    ),
    "expiry and a last signature": Case(
        overdue,
        lambda world, tx: finishing.expire_request(tx, R1, now_nanos=world.now),
        lambda world: world.sign(R1, 1, 0),
        MoveNotAllowed,
    ),
    "abort and the final transaction": Case(
        lambda world: world.signed(),
        lambda _, tx: finishing.abort_request(tx, R1, peer_id=peer(1), reason="", now_nanos=NOW),
        lambda world: world.finalize(R1),
        MoveNotAllowed,
    ),
    "one message": Case(
        lambda _: None,
        lambda _, tx: seen.mark_seen_message(tx, PeerId("p"), SESSION, 1, now_nanos=NOW),
        lambda world: accept(world, 1),
        MessageReplayed,
    ),
}


def acks_of(world: World, vote: SignerAckRecord) -> object:
    return world.signing.insert_signer_ack(R1, vote)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Worlds]:
    """Groups whose calls wait for no lock."""
    with Worlds(tmp_path, lock_timeout_seconds=0.001, transaction_tries_max=1) as worlds:
        yield worlds


@pytest.mark.parametrize("name", CASES)
def test_nobody_comes_between(impatient: Worlds, name: str) -> None:
    """A rival that comes before the first write waits, and then sees what was written."""
    case = CASES[name]
    world = impatient(max_daily_volume_sompi=15 * KAS)
    case.prepare(world)
    store = world.store

    with Interrupted(
        store.database.transaction(), value_bytes_max=store.settings.value_bytes_max
    ) as tx:
        tx.prefix = case.prefix
        tx.rival = lambda: case.rival(world)
        case.call(world, tx)
        assert tx.came

    if issubclass(case.told, LedgerstoneError):
        with pytest.raises(case.told):
            case.rival(world)
    else:
        assert isinstance(case.rival(world), case.told)

"""The room contract, for every shipped room."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from ledgerstone import Ledger, Transaction
from ledgerstone.blobs.room import BLOBS
from ledgerstone.jobs import Job
from ledgerstone.jobs.room import JOBS
from ledgerstone.ledger import SHIPPED
from ledgerstone.messaging import Message
from ledgerstone.messaging.room import MESSAGING
from ledgerstone.protocols.room import PROTOCOLS
from ledgerstone.room import Room
from ledgerstone.signing.room import SIGNING
from ledgerstone.testing.contracts.room import RoomContract
from tests.protocols.letters import letters, written


class TestJobs(RoomContract):
    """Jobs keep it."""

    @pytest.fixture
    def room(self) -> Room[Any, Any]:
        """The room."""
        return JOBS

    def fill(self, ledger: Ledger) -> None:
        @ledger.job("greeting.send")
        def send(job: Job) -> None: ...

        ledger.run(lambda tx: tx.jobs.enqueue("greeting.send", key="a"))


class TestMessaging(RoomContract):
    """So does messaging."""

    @pytest.fixture
    def room(self) -> Room[Any, Any]:
        """The room."""
        return MESSAGING

    def fill(self, ledger: Ledger) -> None:
        @ledger.consumer("order.placed")
        def reserve(tx: Transaction, message: Message) -> None: ...

        ledger.registry.setup.apply(ledger.database)
        ledger.run(lambda tx: tx.outbox.publish("order.placed", {"order": 7}, partition="7"))


class TestProtocols(RoomContract):
    """So do protocols."""

    @pytest.fixture
    def room(self) -> Room[Any, Any]:
        """The room."""
        return PROTOCOLS

    def fill(self, ledger: Ledger) -> None:
        ledger.protocol(letters())
        ledger.run(lambda tx: tx.protocols.defer(written("a"), partition="p"))


class TestBlobs(RoomContract):
    """So do files."""

    @pytest.fixture
    def room(self) -> Room[Any, Any]:
        """The room."""
        return BLOBS

    def fill(self, ledger: Ledger) -> None:
        ledger.blobs.put(io.BytesIO(b"a file"))


@pytest.mark.usefixtures("elsewhere")
class TestSigning(RoomContract):
    """So does signing, which keeps nothing in the ledger's database."""

    @pytest.fixture
    def elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder without a store."""
        monkeypatch.chdir(tmp_path)

    @pytest.fixture
    def room(self) -> Room[Any, Any]:
        """The room."""
        return SIGNING


def test_every_shipped_room_is_here() -> None:
    """No shipped room is left out."""
    rooms = [JOBS, MESSAGING, PROTOCOLS, SIGNING, BLOBS]

    assert rooms == [*SHIPPED]

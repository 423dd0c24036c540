"""A group at work: the calls of a request's life with everything filled in."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from ledgerstone.settings import SigningSettings
from ledgerstone.signing import hashes, schnorr
from ledgerstone.signing.keys import Family, Key
from ledgerstone.signing.life import finishing, records
from ledgerstone.signing.life.acks import CountedVote
from ledgerstone.signing.life.events import InsertedEvent
from ledgerstone.signing.signing import Signing
from ledgerstone.signing.values import (
    GroupConfig,
    PartialSigRecord,
    RequestDecision,
    RequestId,
    RequestInput,
    SessionId,
    SignerAckRecord,
    SigningEvent,
    SigningRequest,
    Stored,
    StoredProposal,
    TransactionId,
)
from tests.signing.people import NOW, group, payment, peer, secret

MINUTE = 60_000_000_000
TEMPLATE = b"t" * 32


class Worlds:
    """Makes groups at work, each on a store of its own below a folder, and closes the stores."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = SigningSettings(**settings)
        self._stores = ExitStack()
        self._made = 0

    def __call__(self, threshold: int = 2, members: int = 3, **policy: Any) -> World:
        self._made += 1
        folder = self._folder / f"world-{self._made}"
        world = World(folder, group(threshold, members, **policy), self._settings)
        self._stores.enter_context(world.signing)
        return world

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stores.close()


class World:
    """A store with a group, and a clock that a test moves."""

    def __init__(
        self, folder: Path, config: GroupConfig, settings: SigningSettings | None = None
    ) -> None:
        self.signing = Signing(folder, settings=settings, clock=lambda: self.now)
        self.store = self.signing.store
        self.now = NOW
        self.config = config
        self.group_id = self.signing.upsert_group_config(config)

    def rows(self) -> dict[tuple[Family, bytes], bytes]:
        """Everything that is stored."""
        return {
            (family, key): value
            for family in Family
            for key, value in records.rows(self.store, family, b"")
        }

    def delete(self, key: Key) -> None:
        """Remove a record, as if it had never been written."""
        with self.store.transaction() as tx:
            tx.delete(key.family, key.encode())

    def event(self, event: SigningEvent) -> InsertedEvent:
        """Accept an event."""
        return self.signing.insert_event(event)

    def new_request(self, name: str, event: SigningEvent, *, inputs: int = 2) -> SigningRequest:
        """A request of peer 1 that is not stored yet."""
        event_hash = hashes.event_hash(event)
        signing_hashes = [signing_hash(name, index) for index in range(inputs)]
        return SigningRequest(
            request_id=RequestId(name),
            session_id=SessionId(b"s" * 32),
            event_hash=event_hash,
            coordinator_peer_id=peer(1),
            tx_template_hash=TEMPLATE,
            validation_hash=hashes.validation_hash(event_hash, TEMPLATE, signing_hashes),
            expires_at_nanos=self.now + MINUTE,
        )

    def request(self, request: SigningRequest) -> Stored:
        """Store a request."""
        return self.signing.insert_request(request, group_id=self.group_id)

    def propose(
        self, name: str = "r1", event: SigningEvent | None = None, *, inputs: int = 2
    ) -> RequestId:
        """Store event, request, proposal and inputs together."""
        event = event or payment()
        request = self.new_request(name, event, inputs=inputs)
        self.signing.propose(
            request,
            group_id=self.group_id,
            event=event,
            inputs=[an_input(name, index) for index in range(inputs)],
            kpsbt_blob=b"kpsbt",
        )
        return request.request_id

    def vote(
        self, request_id: RequestId, number: int, *, accept: bool = True, reason: str | None = None
    ) -> CountedVote:
        """A peer votes."""
        ack = SignerAckRecord(
            signer_peer_id=peer(number), accept=accept, reason=reason, timestamp_nanos=self.now
        )
        return self.signing.insert_signer_ack(request_id, ack)

    def sign(self, request_id: RequestId, number: int, index: int, **changes: Any) -> Stored:
        """A peer signs an input."""
        record = msgspec.structs.replace(
            a_signature(request_id, number, index, now_nanos=self.now), **changes
        )
        return self.signing.insert_partial_sig(request_id, record)

    def finalize(self, request_id: RequestId, final: bytes = b"f" * 32) -> Stored:
        """Record the final transaction."""
        return self.signing.update_request_final_tx(request_id, TransactionId(final))

    def expire(self, request_id: RequestId) -> bool:
        """Expire a request if it is due."""
        with self.store.transaction() as tx:
            return finishing.expire_request(tx, request_id, now_nanos=self.now)

    def abort(self, request_id: RequestId, number: int = 1) -> Stored:
        """A peer aborts a request."""
        return self.signing.abort_request(request_id, peer_id=peer(number), reason="no longer")

    def approved(self, name: str = "r1", event: SigningEvent | None = None) -> RequestId:
        """A request that enough members accept."""
        request_id = self.propose(name, event)
        for number in range(1, self.config.threshold_m + 1):
            self.vote(request_id, number)
        return request_id

    def signed(self, name: str = "r1", event: SigningEvent | None = None) -> RequestId:
        """An approved request with all its signatures."""
        request_id = self.approved(name, event)
        for number in range(1, self.config.threshold_m + 1):
            for index in (0, 1):
                self.sign(request_id, number, index)
        return request_id

    def decision(self, request_id: RequestId) -> RequestDecision:
        """Where a request stands."""
        return self.signing.get_request(request_id).decision


def signing_hash(name: str, index: int) -> bytes:
    """The hash that the signatures of an input sign."""
    return hashes.payload_hash(f"{name}/{index}".encode())


def a_signature(
    request_id: RequestId, number: int, index: int, *, now_nanos: int
) -> PartialSigRecord:
    """The signature of a peer for an input."""
    return PartialSigRecord(
        signer_peer_id=peer(number),
        input_index=index,
        pubkey=schnorr.public_key(secret(number)),
        signature=schnorr.sign(secret(number), signing_hash(request_id, index)),
        timestamp_nanos=now_nanos,
    )


def an_input(name: str, index: int) -> RequestInput:
    """An input of a request."""
    return RequestInput(
        input_index=index,
        utxo_tx_id=b"u" * 32,
        utxo_output_index=index,
        utxo_value=1_000,
        signing_hash=signing_hash(name, index),
    )


def proposal(request: SigningRequest, event: SigningEvent) -> StoredProposal:
    """The proposal of a request."""
    return StoredProposal(
        request_id=request.request_id,
        session_id=request.session_id,
        event_hash=request.event_hash,
        validation_hash=request.validation_hash,
        signing_event=event,
        kpsbt_blob=b"kpsbt",
    )

"""The façade of signing: every operation, each one atomic and durable when it returns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar
from weakref import WeakValueDictionary

import msgspec

from ledgerstone.errors import BadInput, MessageReplayed, VoteChanged
from ledgerstone.settings import Settings, SigningSettings
from ledgerstone.signing import export, reading, sweeping, upkeep
from ledgerstone.signing.app_config import AppConfig, decode_app_config, encode_app_config
from ledgerstone.signing.batch import SigningBatch
from ledgerstone.signing.envelope import AGE_NANOS_MAX, AHEAD_NANOS_MAX, Envelope, PeerChecks
from ledgerstone.signing.export import Imported
from ledgerstone.signing.keys import NANOS_PER_DAY, AppConfigKey, Family
from ledgerstone.signing.life import (
    acks,
    audit,
    decisions,
    events,
    finishing,
    outgoing,
    proposals,
    requests,
    seen,
    signatures,
    volume,
)
from ledgerstone.signing.life.acks import CountedVote
from ledgerstone.signing.life.audit import AuditReport
from ledgerstone.signing.life.events import InsertedEvent
from ledgerstone.signing.life.outgoing import FinishedRequest
from ledgerstone.signing.life.proposals import Review
from ledgerstone.signing.life.seen import CleanedUp, OldMessages
from ledgerstone.signing.reading import EventPage, GroupPage, RequestPage
from ledgerstone.signing.relay import Publish, relay_step
from ledgerstone.signing.rocksdb import Backup
from ledgerstone.signing.states import Status
from ledgerstone.signing.store import Store, StoreTransaction
from ledgerstone.signing.store_id import store_id
from ledgerstone.signing.sweeping import Archived, Deleted, Expiries, Found
from ledgerstone.signing.upkeep import DiskUsage, Health, Statistics
from ledgerstone.signing.values import (
    EventHash,
    GroupConfig,
    GroupId,
    PartialSigRecord,
    PeerId,
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

T = TypeVar("T")

_open: WeakValueDictionary[tuple[int, Path], Signing] = WeakValueDictionary()
"""Those that are open for writing, by process and folder."""

CLOCK_NANOS_MAX = NANOS_PER_DAY
"""So far our clock may be ahead and come back, and no message is accepted again."""
SEEN_NANOS = AGE_NANOS_MAX + AHEAD_NANOS_MAX + CLOCK_NANOS_MAX
"""Seen messages are kept for as long by default: no message that is older is accepted."""
U64_MAX = 2**64 - 1
STEP_ROWS = 500
"""Rows that one step of the steady work looks at, unless told otherwise."""


class Signing:
    """The groups, events and requests of one store.

    - Each call is one transaction, which is repeated if it met another one, and is on disk when the
      call returns. A call that raises has changed nothing.
    - Threads may share it. One process at a time has a folder open: another gets StoreLocked.
    - `clock` answers nanoseconds since 1970 in UTC. No moment that a caller sends is ever used for
      a limit, an expiry or a volume.
    - LibraryMissing names the package of RocksDB if the system has none.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        settings: Settings | SigningSettings | None = None,
        clock: Callable[[], int] = time.time_ns,
        read_only: bool = False,
    ) -> None:
        """Open the store in a folder; without one, where settings and environment say.

        - Rows of the default family are moved where the settings or the environment say so.
        - `read_only` opens it beside a process that has it open, and shows this moment; NotFound
          if there is no store, NotAllowedNow from calls that write.
        """
        section = settings.signing if isinstance(settings, Settings) else settings
        where = None if folder is None else Path(folder)
        self.store = Store.open(section, folder=where, read_only=read_only)
        self.settings = self.store.settings
        self.clock = clock
        self._store_id: str | None = None
        if not read_only:
            _open[os.getpid(), self.store.folder.resolve()] = self

    # Groups and events

    def upsert_group_config(self, config: GroupConfig) -> GroupId:
        """Store a group under the hash of its content; BadInput lists what is wrong with it."""
        return self._run(lambda tx: requests.upsert_group_config(tx, config))

    def get_group_config(self, group_id: GroupId) -> GroupConfig:
        """The group, or NotFound."""
        return requests.get_group_config(self.store, group_id)

    def list_group_configs(
        self, *, after: bytes | None = None, rows_max: int = STEP_ROWS
    ) -> GroupPage:
        """The next groups, by their ids."""
        return reading.list_group_configs(self.store, after=after, rows_max=rows_max)

    def insert_event(self, event: SigningEvent) -> InsertedEvent:
        """Accept an event: its hash, and NEW or SAME.

        EventReplayed if its source gave the same id to other content, or if it was signed for and
        archived.
        """
        return self._run(lambda tx: events.insert_event(tx, event))

    def stamped_event(self, event: SigningEvent) -> SigningEvent:
        """The event with the time at which its source first sent it; by our clock if it is new."""
        known = events.find_by_source(self.store, event)
        sent_at = self.clock() if known is None else known.timestamp_nanos
        return msgspec.structs.replace(event, timestamp_nanos=sent_at)

    def get_event(self, event_hash: EventHash) -> SigningEvent:
        """The event, or NotFound."""
        return events.get_event(self.store, event_hash)

    def list_events(self, *, after: bytes | None = None, rows_max: int = STEP_ROWS) -> EventPage:
        """The next events, by their hashes."""
        return reading.list_events(self.store, after=after, rows_max=rows_max)

    # Requests and proposals

    def insert_request(self, request: SigningRequest, *, group_id: GroupId) -> Stored:
        """Begin a request of a group for an event; see `life.requests.insert_request`."""
        return self._run(
            lambda tx: requests.insert_request(
                tx, request, group_id=group_id, now_nanos=self.clock()
            )
        )

    def adopt_request(self, request_id: RequestId, *, group_id: GroupId) -> Stored:
        """Give a request that another program stored its group."""
        return self._run(
            lambda tx: requests.adopt_request(
                tx, request_id, group_id=group_id, now_nanos=self.clock()
            )
        )

    def get_request(self, request_id: RequestId) -> SigningRequest:
        """The request, also an archived one, or NotFound."""
        with self.store.view() as view:
            return requests.get_request(view, request_id)

    def list_requests(
        self,
        *,
        status: Status | None = None,
        archived: bool = False,
        after: bytes | None = None,
        rows_max: int = STEP_ROWS,
    ) -> RequestPage:
        """The next active or archived requests in a state (none: in any), by their ids."""
        return reading.list_requests(
            self.store, status=status, archived=archived, after=after, rows_max=rows_max
        )

    def insert_proposal(self, proposal: StoredProposal) -> Stored:
        """Store the proposal of a pending request; BadInput unless it is for this request."""
        return self._run(lambda tx: proposals.insert_proposal(tx, proposal, now_nanos=self.clock()))

    def get_proposal(self, request_id: RequestId) -> StoredProposal:
        """The proposal of a request, or NotFound."""
        return proposals.get_proposal(self.store, request_id)

    def insert_request_input(self, request_id: RequestId, added: RequestInput) -> Stored:
        """Store an input of a pending request; the same input again is SAME."""
        return self._run(
            lambda tx: proposals.insert_request_input(tx, request_id, added, now_nanos=self.clock())
        )

    def list_request_inputs(self, request_id: RequestId) -> list[RequestInput]:
        """The inputs of a request, in order."""
        with self.store.view() as view:
            return proposals.list_request_inputs(view, request_id)

    def propose(
        self,
        request: SigningRequest,
        *,
        group_id: GroupId,
        event: SigningEvent,
        inputs: Iterable[RequestInput],
        kpsbt_blob: bytes,
    ) -> Stored:
        """Store an event, its request, the proposal and all inputs together, or nothing.

        The same again is SAME; KeyConflict, EventReplayed and BadInput as for each part.
        """
        proposal = StoredProposal(
            request_id=request.request_id,
            session_id=request.session_id,
            event_hash=request.event_hash,
            validation_hash=request.validation_hash,
            signing_event=event,
            kpsbt_blob=kpsbt_blob,
        )
        added = tuple(inputs)

        def work(tx: StoreTransaction) -> Stored:
            now = self.clock()
            events.insert_event(tx, event)
            stored = requests.insert_request(tx, request, group_id=group_id, now_nanos=now)
            proposals.insert_proposal(tx, proposal, now_nanos=now)
            for each in added:
                proposals.insert_request_input(tx, request.request_id, each, now_nanos=now)
            return stored

        return self._run(work)

    def review_request(self, request_id: RequestId) -> Review:
        """The review of a request before a vote: hashes that do not match, and the policy."""
        with self.store.view() as view:
            group = requests.group_of(view, request_id)
            return proposals.review_request(view, request_id, group, now_nanos=self.clock())

    # Votes, signatures, ends

    def insert_signer_ack(self, request_id: RequestId, ack: SignerAckRecord) -> CountedVote:
        """Count the vote of a member, and decide the request if it decides.

        VoteChanged if the member voted differently before: the attempt is on record.
        """
        try:
            return self._run(
                lambda tx: acks.insert_signer_ack(tx, request_id, ack, now_nanos=self.clock())
            )
        except VoteChanged:
            self._run(
                lambda tx: acks.record_changed_vote(tx, request_id, ack, now_nanos=self.clock())
            )
            raise

    def list_signer_acks(self, request_id: RequestId) -> list[SignerAckRecord]:
        """The votes on a request, by peer."""
        with self.store.view() as view:
            return acks.list_signer_acks(view, request_id)

    def insert_partial_sig(self, request_id: RequestId, record: PartialSigRecord) -> Stored:
        """Verify and store the signature of a member for one input of an approved request."""
        return self._run(
            lambda tx: signatures.insert_partial_sig(tx, request_id, record, now_nanos=self.clock())
        )

    def list_partial_sigs(self, request_id: RequestId) -> list[PartialSigRecord]:
        """The stored signatures of a request, by peer and input."""
        with self.store.view() as view:
            return signatures.list_partial_sigs(view, request_id)

    def missing_signatures(self, request_id: RequestId) -> dict[int, int] | None:
        """How many verified signatures each input still needs; None if the request is ready."""
        with self.store.view() as view:
            group = requests.group_of(view, request_id)
            return signatures.signatures_missing(view, request_id, group)

    def update_request_decision(self, request_id: RequestId, decision: RequestDecision) -> Stored:
        """Move a request to a decision that the table of moves and the facts allow."""
        return self._run(
            lambda tx: decisions.update_request_decision(
                tx, request_id, decision, now_nanos=self.clock()
            )
        )

    def update_request_final_tx(self, request_id: RequestId, final_tx_id: TransactionId) -> Stored:
        """Record that the transaction was sent: finalized, and its amount in today's volume."""
        return self._run(
            lambda tx: finishing.update_request_final_tx(
                tx, request_id, final_tx_id, now_nanos=self.clock()
            )
        )

    def update_request_final_tx_score(
        self, request_id: RequestId, blue_score: int
    ) -> SigningRequest:
        """Record at which blue score the final transaction was accepted."""
        return self._run(
            lambda tx: finishing.update_request_final_tx_score(tx, request_id, blue_score)
        )

    def abort_request(self, request_id: RequestId, *, peer_id: PeerId, reason: str) -> Stored:
        """Give a request up; only its coordinator may."""
        return self._run(
            lambda tx: finishing.abort_request(
                tx, request_id, peer_id=peer_id, reason=reason, now_nanos=self.clock()
            )
        )

    def expire_requests(self, *, after: bytes | None = None, rows_max: int = STEP_ROWS) -> Expiries:
        """Expire requests whose time has run out, at most `rows_max` behind `after`."""
        return sweeping.expire_requests(
            self.store, now_nanos=self.clock(), after=after, rows_max=rows_max
        )

    def list_due(
        self, *, before_nanos: int | None = None, rows_max: int = STEP_ROWS
    ) -> list[RequestId]:
        """The first requests, by the time at which they expire, that are open and expire.

        With `before_nanos` only those whose time ran out before that moment.
        """
        limit = U64_MAX if before_nanos is None else before_nanos
        due = finishing.list_due(self.store, now_nanos=limit, rows_max=rows_max)
        return due.request_ids

    def audit_request(self, request_id: RequestId) -> AuditReport:
        """Everything that is stored of a request, of one moment: `as_json()`, `as_text()`."""
        with self.store.view() as view:
            return audit.audit_request(view, request_id)

    # Volume

    def get_volume_since(self, since_nanos: int) -> int:
        """The sompi that were paid since the beginning of the UTC day of a moment."""
        if since_nanos < 0:
            raise BadInput("a moment is not before 1970")
        with self.store.view() as view:
            return volume.volume_since(view, since_nanos)

    def volume_of_day(self, moment_nanos: int) -> int:
        """The sompi that were paid on the UTC day of a moment."""
        if moment_nanos < 0:
            raise BadInput("a moment is not before 1970")
        return volume.volume_of_day(self.store, moment_nanos)

    def volume_today(self) -> int:
        """The sompi that were paid on this UTC day."""
        return self.volume_of_day(self.clock())

    def reserved_volume(self) -> int:
        """The sompi of all requests that are approved and not finished."""
        return volume.reserved(self.store)

    # Messages of peers

    def accept_envelope(
        self, checks: PeerChecks, envelope: Envelope, *, received_from: str | None = None
    ) -> bytes:
        """The payload of a peer's message, once.

        EnvelopeRefused or RateLimited if a check fails; MessageReplayed if the message was accepted
        before.
        """
        checks.check(envelope, now_nanos=self.clock(), received_from=received_from)
        if not self.mark_seen_message(
            envelope.sender_peer_id, envelope.session_id, envelope.seq_no
        ):
            raise MessageReplayed(
                f"message {envelope.seq_no} of {envelope.sender_peer_id!r} was received before"
            )
        return envelope.payload

    def mark_seen_message(self, peer_id: PeerId, session_id: SessionId, seq_no: int) -> bool:
        """Whether the message is seen for the first time; `seq_no` is of `sequence_number`."""
        return self._run(
            lambda tx: seen.mark_seen_message(
                tx, peer_id, session_id, seq_no, now_nanos=self.clock()
            )
        )

    def cleanup_seen_messages(
        self,
        older_than_nanos: int | None = None,
        *,
        after: bytes | None = None,
        rows_max: int = STEP_ROWS,
    ) -> CleanedUp:
        """Forget messages that were seen before a moment, among the next `rows_max` rows.

        By default those that are too old to be accepted again.
        """
        limit = self._forget_before() if older_than_nanos is None else older_than_nanos
        return self._run(
            lambda tx: seen.cleanup_seen_messages(
                tx, older_than_nanos=limit, after=after, rows_max=rows_max
            )
        )

    def find_old_messages(
        self, *, after: bytes | None = None, rows_max: int = STEP_ROWS
    ) -> OldMessages:
        """Messages that are too old to be accepted again, among the next `rows_max` rows."""
        return seen.find_old_messages(
            self.store, older_than_nanos=self._forget_before(), after=after, rows_max=rows_max
        )

    def _forget_before(self) -> int:
        return self.clock() - SEEN_NANOS

    # Archive

    def find_archivable(
        self, before_nanos: int, *, after: bytes | None = None, rows_max: int = STEP_ROWS
    ) -> Found:
        """The requests for `archive_old_requests`; also of a store opened for reading only."""
        return sweeping.find_archivable(
            self.store, before_nanos=before_nanos, after=after, rows_max=rows_max
        )

    def find_deletable(
        self, before_nanos: int, *, after: bytes | None = None, rows_max: int = STEP_ROWS
    ) -> Found:
        """The requests for `delete_old_archives`; also of a store opened for reading only."""
        return sweeping.find_deletable(
            self.store,
            before_nanos=before_nanos,
            publish=self.settings.publish,
            after=after,
            rows_max=rows_max,
        )

    def archive_old_requests(
        self, before_nanos: int, *, after: bytes | None = None, rows_max: int = STEP_ROWS
    ) -> Archived:
        """Archive requests that ended before a moment, among the next `rows_max` active ones."""
        return sweeping.archive_old_requests(
            self.store, before_nanos=before_nanos, after=after, rows_max=rows_max
        )

    def delete_old_archives(
        self, before_nanos: int, *, after: bytes | None = None, rows_max: int = STEP_ROWS
    ) -> Deleted:
        """Delete archived requests that ended before a moment, with everything that is theirs.

        - At most about `rows_max` rows are deleted, in transactions of at most so many.
        - An event that was signed for stays marked, and can never be signed for again.
        - With `settings.publish`, a request whose end is still to be published is left alone.
        """
        return sweeping.delete_old_archives(
            self.store,
            before_nanos=before_nanos,
            publish=self.settings.publish,
            after=after,
            rows_max=rows_max,
        )

    # Configuration, raw rows, export

    def get_app_config(self) -> AppConfig | None:
        """The configuration under `cfg:app`; Malformed if another program wrote it."""
        key = AppConfigKey()
        value = self.store.get(key.family, key.encode())
        return None if value is None else decode_app_config(value)

    def put_app_config(self, config: AppConfig) -> None:
        """Store the configuration; Malformed, and nothing written, over another program's."""
        key, value = AppConfigKey(), encode_app_config(config)

        def work(tx: StoreTransaction) -> None:
            before = tx.get_for_update(key.family, key.encode())
            if before is not None:
                decode_app_config(before)
            tx.put(key.family, key.encode(), value)

        self._run(work)

    def begin_batch(self) -> SigningBatch:
        """Begin a batch of raw rows; `commit` writes them together."""
        return SigningBatch(self.store.transaction())

    def export_lines(self) -> Iterator[str]:
        """The whole store of this moment as JSON lines, byte for byte; secrets stay sealed."""
        return export.export_lines(self.store)

    def import_lines(self, lines: Iterable[str]) -> Imported:
        """Store the rows that `export_lines` wrote; rows that are there already are skipped.

        KeyConflict at a row that the store holds otherwise, Malformed at a line that is damaged or
        missing. Rows of earlier steps stay: importing again goes on.
        """
        return export.import_lines(self.store, lines)

    # Upkeep

    def health_check(self) -> Health:
        """Whether the store can be read and written, and what is wrong."""
        return upkeep.health(self.store)

    def statistics(self) -> Statistics:
        """Rows and bytes by family, as RocksDB estimates them."""
        return upkeep.statistics(self.store)

    def disk_usage(self) -> DiskUsage:
        """Bytes of the folder, by family."""
        return upkeep.disk_usage(self.store)

    def compact(self, family: Family | None = None) -> None:
        """Rewrite the data files of a family (none: of all) without what was removed."""
        upkeep.compact(self.store, family)

    def create_checkpoint(self, target: Path | str) -> None:
        """Make `target`, which must not exist, a copy of this moment; the store stays in use."""
        upkeep.checkpoint(self.store, Path(target))

    def back_up(self, backups: Path | str, *, keep: int | None = None) -> Backup:
        """Add a backup to a folder of backups; keep only the newest `keep`."""
        return upkeep.back_up(self.store, Path(backups), keep=keep)

    # Publishing

    def store_id(self) -> str:
        """The random id of this store, made when it is first asked for."""
        if self._store_id is None:
            self._store_id = self._run(store_id)
        return self._store_id

    def relay(self, publish: Publish, *, rows_max: int = STEP_ROWS) -> int:
        """Publish requests that ended; how many were new. Repeat until it answers 0.

        A message is confirmed by the call after the one that published it: see `signing.relay`.
        """
        return relay_step(self.store, self.store_id(), publish, rows_max=rows_max)

    def list_outgoing(self, *, rows_max: int = STEP_ROWS) -> Sequence[FinishedRequest]:
        """Requests that were finalized or rejected, and whose messages are not confirmed yet."""
        return outgoing.list_outgoing(self.store, rows_max=rows_max)

    def close(self) -> None:
        """Close the store, after the calls in progress have returned; done twice is fine."""
        place = os.getpid(), self.store.folder.resolve()
        if _open.get(place) is self:
            del _open[place]
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Callable[[StoreTransaction], T]) -> T:
        return self.store.run(work)


def open_in_this_process(folder: Path) -> Signing | None:
    """The object of this process that has the folder open for writing, if any."""
    return _open.get((os.getpid(), folder.resolve()))

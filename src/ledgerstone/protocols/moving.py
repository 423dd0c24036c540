"""Many events at once: imported in batches that can be resumed, and exported.

    events ──▶ batch: BEGIN; append all; project each; position; COMMIT ──▶ the next batch
                        └─ one is known, waits or fails: each by itself, in the same transaction

How far an import has come is kept with each batch, with a hash of what was read up to there: one
that was broken off goes on where it ended, and refuses another file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, KeyConflict, LedgerstoneError, TooLarge
from ledgerstone.failpoints import hit
from ledgerstone.protocols import applying, incoming, log
from ledgerstone.protocols.applying import Applied, Mixed
from ledgerstone.protocols.events import Envelope, encode
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.tables import KEY_CHARS_MAX
from ledgerstone.protocols.values import Values
from ledgerstone.store.database import Database
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.transaction import Transaction

BATCH_EVENTS_MAX = 1000
BATCH_BYTES_MAX = 8 << 20
"""A batch ends with the event that exceeds it."""
FRAME_BYTES_MAX = 4096
"""Identity, type and moment of an event, beside its content."""
POSITION = "import:"
HASH_BYTES = 16


class Moved(msgspec.Struct):
    """What an import did; `resumed` events were done by a run before."""

    new: int = 0
    known: int = 0
    blocked: int = 0
    failed: int = 0
    resumed: int = 0

    @property
    def all(self) -> int:
        return self.new + self.known + self.blocked + self.failed + self.resumed


class Importer:
    """Imports events into a protocol."""

    def __init__(
        self,
        database: Database[Any],
        protocol: Protocol,
        *,
        batch: int,
        bytes_max: int,
        retry_seconds: float,
    ) -> None:
        if not 1 <= batch <= BATCH_EVENTS_MAX:
            raise BadInput(f"a batch has 1 to {BATCH_EVENTS_MAX} events, not {batch}")
        self._database = database
        self._protocol = protocol
        self._batch = batch
        self._bytes_max = bytes_max
        self._retry_seconds = retry_seconds

    def run(
        self,
        envelopes: Iterable[Envelope],
        *,
        name: str | None = None,
        progress: Callable[[Moved], None] = lambda _: None,
    ) -> Moved:
        """Apply them all; with a name the import goes on where one of this name has ended.

        KeyConflict if the import of this name has read other events.
        """
        position = _Position() if name is None else self._position(name)
        moved = Moved(resumed=position.events)
        reader = _Reader(envelopes, bytes_max=self._bytes_max, hashing=name is not None)
        reader.skip(position, name or "")
        while batch := reader.batch(self._batch):
            position = reader.position
            applied = self._one(batch, name, position)
            moved.new += applied.count(Applied.NEW)
            moved.known += applied.count(Applied.KNOWN)
            moved.blocked += applied.count(Applied.BLOCKED)
            moved.failed = position.events - moved.new - moved.known - moved.blocked - moved.resumed
            hit("protocols.imported")
            progress(moved)
        return moved

    def _one(
        self, batch: Sequence[Envelope], name: str | None, position: _Position
    ) -> list[Applied]:
        def fast(tx: Transaction) -> list[Applied]:
            self._keep_position(tx, name, position)
            return applying.apply_all(tx, self._protocol, batch, log.now_of(tx))

        def careful(tx: Transaction) -> list[Applied]:
            self._keep_position(tx, name, position)
            now = log.now_of(tx)
            return [each for envelope in batch if (each := self._place(tx, envelope, now))]

        try:
            return self._database.run(fast)
        except LedgerstoneError as error:
            if error.retryable:
                raise
        except Mixed:
            pass
        except Exception:  # noqa: BLE001, S110 - a projector may raise anything: it is found below
            pass
        return self._database.run(careful)

    def _place(self, tx: Transaction, envelope: Envelope, now: int) -> Applied | None:
        """What became of an event; None: it failed, and is retried like one that came in."""
        try:
            return applying.place(tx, self._protocol, envelope, now)
        except Exception as error:
            if isinstance(error, LedgerstoneError) and error.retryable:
                raise
            wire = encode(log.dated(envelope, now))
            wait = self._retry_seconds
            incoming.take_back(tx, self._protocol.name, wire, error, delay_seconds=wait)
            return None

    def _position(self, name: str) -> _Position:
        check_name(name, "the name of an import", chars_max=KEY_CHARS_MAX - len(POSITION))
        with self._database.reading() as tx:
            kept = Values(tx, self._protocol.name).get(POSITION + name)
        return _Position() if kept is None else msgspec.convert(kept, _Position)

    def _keep_position(self, tx: Transaction, name: str | None, position: _Position) -> None:
        if name is not None:
            kept = msgspec.to_builtins(position)
            Values(tx, self._protocol.name).set(POSITION + name, kept)


class _Position(msgspec.Struct, frozen=True):
    """How many events were read, and a hash of them."""

    events: int = 0
    hash: str = ""


class _Reader:
    """Events, read in batches of bounded size, counted and hashed."""

    def __init__(self, envelopes: Iterable[Envelope], *, bytes_max: int, hashing: bool) -> None:
        self._left = iter(envelopes)
        self._bytes_max = bytes_max
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES) if hashing else None
        self._events = 0

    @property
    def position(self) -> _Position:
        return _Position(self._events, "" if self._hash is None else self._hash.hexdigest())

    def skip(self, position: _Position, name: str) -> None:
        """Read over the events that were imported before; KeyConflict if they are others."""
        for event in islice(self._left, position.events):
            self._read(event)
        if position.events and self.position != position:
            message = f"the import {name} has read {position.events:,} other events"
            raise KeyConflict(message, hint="give it the file that it began with, or another name")

    def batch(self, events_max: int) -> list[Envelope]:
        """The next events; none at the end. BadInput names the first that no database keeps."""
        read, size = list[Envelope](), 0
        for event in islice(self._left, events_max):
            read.append(event)
            size += self._checked(event)
            if size >= BATCH_BYTES_MAX:
                break
        return read

    def _checked(self, event: Envelope) -> int:
        try:
            event.check()
            if event.type == applying.WIRE:
                raise BadInput("bytes for a decoder are received, and not imported")
            size = self._read(event)
        except BadInput as error:
            raise BadInput(f"event {self._events + 1}: {error.message}") from error
        if size > self._bytes_max + FRAME_BYTES_MAX:
            message = f"event {self._events} has {size} bytes, at most {self._bytes_max} are taken"
            raise TooLarge(message, hint="raise store.body_bytes_max, or send it as a file")
        return size

    def _read(self, event: Envelope) -> int:
        """Count and hash an event; its size in bytes."""
        wire = encode(event)
        if self._hash is not None:
            self._hash.update(wire + b"\n")
        self._events += 1
        return len(wire)


def exported(
    database: Database[Any],
    protocol: Protocol,
    *,
    after: int = 0,
    kept_only: bool = False,
    page: int = BATCH_EVENTS_MAX,
) -> Iterator[tuple[int, Envelope]]:
    """Every event of the log behind a number, with its number.

    EventsPruned at one whose content was pruned, unless `kept_only` passes over such.
    """
    while True:
        with database.reading() as tx:
            rows = log.rows_after(tx, protocol.name, after, limit=page)
        for row in rows:
            if not kept_only or not log.is_pruned(row):
                yield row[0], log.envelope_of(row)
        if len(rows) < page:
            return
        after = rows[-1][0]

"""Many events at once: imported in batches that can be resumed, and exported.

    events ──▶ batch: BEGIN; append all; project each; position; COMMIT ──▶ the next batch
                        └─ one is known, waits or fails: each by itself, in the same transaction

How far an import has come is kept with each batch: one that was broken off goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, LedgerstoneError
from ledgerstone.failpoints import hit
from ledgerstone.protocols import applying, incoming, log
from ledgerstone.protocols.applying import Applied, Mixed
from ledgerstone.protocols.events import Envelope, encode
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.values import Values
from ledgerstone.store.database import Database
from ledgerstone.store.transaction import Transaction

BATCH_EVENTS_MAX = 1000
POSITION = "import:{}"
NO_EVENTS: Sequence[Envelope] = ()


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
        retry_seconds: float,
    ) -> None:
        if not 1 <= batch <= BATCH_EVENTS_MAX:
            raise BadInput(f"a batch has 1 to {BATCH_EVENTS_MAX} events, not {batch}")
        self._database = database
        self._protocol = protocol
        self._batch = batch
        self._retry_seconds = retry_seconds

    def run(
        self,
        envelopes: Iterable[Envelope],
        *,
        name: str | None = None,
        progress: Callable[[Moved], None] = lambda _: None,
    ) -> Moved:
        """Apply them all; with a name the import goes on where one of this name has ended."""
        moved = Moved(resumed=self._position(name))
        left = iter(envelopes)
        # What was done before is read over, a batch at a time.
        for _ in islice(left, moved.resumed):
            pass
        while batch := list(islice(left, self._batch)):
            _check(batch, moved.all)
            position = moved.all + len(batch)
            applied = self._one(batch, name, position)
            moved.new += applied.count(Applied.NEW)
            moved.known += applied.count(Applied.KNOWN)
            moved.blocked += applied.count(Applied.BLOCKED)
            moved.failed = position - moved.new - moved.known - moved.blocked - moved.resumed
            hit("protocols.imported")
            progress(moved)
        return moved

    def _one(self, batch: Sequence[Envelope], name: str | None, position: int) -> list[Applied]:
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

    def _position(self, name: str | None) -> int:
        if name is None:
            return 0
        with self._database.reading() as tx:
            return int(Values(tx, self._protocol.name).get(POSITION.format(name), 0))

    def _keep_position(self, tx: Transaction, name: str | None, position: int) -> None:
        if name is not None:
            Values(tx, self._protocol.name).set(POSITION.format(name), position)


def _check(batch: Sequence[Envelope], before: int) -> None:
    """BadInput names the first event that not every database keeps."""
    for number, each in enumerate(batch, start=before + 1):
        try:
            each.check()
            if each.type == applying.WIRE:
                raise BadInput("bytes for a decoder are received, and not imported")
        except BadInput as error:
            raise BadInput(f"event {number}: {error.message}") from error


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

"""A protocol on a ledger: its commands, its queues, its tick.

chat = ledger.protocol(protocol)
chat.command("message.create", {"author": "ann", "text": "hello"}, key="m-1")
chat.receive([blob])
chat.work()                 what a worker does, here and now
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ledgerstone.engine.source import Source
from ledgerstone.engine.worker import Worker
from ledgerstone.protocols import incoming, log
from ledgerstone.protocols.commands import Commands, SliceKeeper
from ledgerstone.protocols.connection import Reading
from ledgerstone.protocols.deferred import DeferredSource
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.incoming import IncomingSource, Wire
from ledgerstone.protocols.install import install
from ledgerstone.protocols.moving import Importer, Moved, exported
from ledgerstone.protocols.outgoing import OutgoingSource
from ledgerstone.protocols.protocol import Protocol, load
from ledgerstone.protocols.rechecking import RecheckSource
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.retention.rebuilding import Verified, verify
from ledgerstone.protocols.retention.source import (
    Retained,
    RetentionSource,
    Wanted,
    declare,
    prunes,
)
from ledgerstone.protocols.tail import EventTail
from ledgerstone.protocols.ticking import Ticked, Ticker
from ledgerstone.settings import Settings
from ledgerstone.store.database import Database

T = TypeVar("T")
ROUNDS_MAX = 1_000_000
IMPORT_EVENTS = 500


class Worked(msgspec.Struct, frozen=True):
    """How many items of each queue were claimed."""

    incoming: int = 0
    rechecks: int = 0
    deferred: int = 0
    outgoing: int = 0
    retention: int = 0


class Running:
    """One protocol on one database; its tables are made when this is."""

    def __init__(
        self,
        protocol: Protocol,
        database: Database[Any],
        settings: Settings,
        *,
        keep_slice: SliceKeeper | None = None,
    ) -> None:
        self.protocol = protocol
        self.database = database
        self._settings = settings
        self._registry = Registry(
            msgspec.structs.replace(settings.protocols, folders=[]), [protocol]
        )
        self.installed = install(database, protocol)
        if prunes(self._registry.retention(protocol)):
            declare(database, protocol.name)
        self._commands = Commands(
            database,
            protocol,
            bytes_max=settings.store.body_bytes_max,
            keep_slice=keep_slice,
        )
        self._ticker = Ticker(
            database,
            protocol,
            self._commands,
            lease_seconds=settings.protocols.tick_lease_seconds,
        )

    def command(
        self, name: str, params: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Mapping[str, Any]:
        """Run a command in a transaction of its own, and answer what it answers."""
        return self._commands.run(name, params, key=key).answer

    def receive(self, wires: Sequence[Wire | bytes], *, received_by: str = "") -> int:
        """Take in what arrived; how many items."""
        made = [
            each if isinstance(each, Wire) else Wire(blob=each, received_by=received_by)
            for each in wires
        ]
        bytes_max = self._settings.store.body_bytes_max
        return self.database.run(
            lambda tx: incoming.receive(tx, self.protocol, made, bytes_max=bytes_max)
        )

    def import_events(
        self,
        envelopes: Iterable[Envelope],
        *,
        name: str | None = None,
        batch: int = IMPORT_EVENTS,
        progress: Callable[[Moved], None] = lambda _: None,
    ) -> Moved:
        """Apply many events, so many a commit; one that has a name can be resumed.

        - TooLarge for an event larger than `store.body_bytes_max`.
        - KeyConflict if the import of this name has read other events.
        """
        importer = Importer(
            self.database,
            self.protocol,
            batch=batch,
            bytes_max=self._settings.store.body_bytes_max,
            retry_seconds=self._settings.protocols.retry_seconds,
        )
        return importer.run(envelopes, name=name, progress=progress)

    def export_events(
        self, *, after: int = 0, kept_only: bool = False
    ) -> Iterator[tuple[int, Envelope]]:
        """Every event of the log behind a number; `kept_only` passes over those without content."""
        return exported(self.database, self.protocol, after=after, kept_only=kept_only)

    def tail(self, *, after: int = 0) -> EventTail:
        """What follows the log behind a position."""
        return EventTail(self.database, self.protocol.name, after=after)

    def read(self, work: Callable[[Reading], T]) -> T:
        """`work(db)` in a transaction that only reads."""
        with self.database.reading() as tx:
            return work(Reading(tx, self.protocol.name, log.now_of(tx)))

    def tick(self) -> Ticked:
        """Run the jobs that are due, unless another process does."""
        return self._ticker.tick()

    def snapshot(self, *, progress: Callable[[int], None] = lambda _: None) -> Retained:
        """Copy its tables now; `progress` is told how many rows were copied."""
        return self._retain(Wanted(snapshot=True, progress=progress))

    def prune(self, *, keep_days: float) -> Retained:
        """Remove the content of events that a snapshot has, and that are so old."""
        return self._retain(Wanted(keep_days=keep_days))

    def verify(self, *, progress: Callable[[int], None] = lambda _: None) -> Verified:
        """Make its tables anew from snapshot and log, beside the live ones, and compare."""
        return verify(self.database, self.protocol, progress=progress)

    def _retain(self, wanted: Wanted) -> Retained:
        declare(self.database, self.protocol.name, now=True)
        source = RetentionSource(self._registry, self.database, wanted=wanted)
        self._drain([source])
        if source.trouble is not None:
            raise source.trouble
        return source.did

    def sources(self, *, together: int = 1) -> list[Source]:
        """What a worker claims from; `together` items of `incoming` share a transaction."""
        return sources(self._registry, self.database, together=together)

    def work(self, *, together: int = 1, rounds_max: int = ROUNDS_MAX) -> Worked:
        """Do what is due in its queues, here, until nothing is left."""
        return Worked(**self._drain(self.sources(together=together), rounds_max=rounds_max))

    def _drain(self, sources: Sequence[Source], *, rounds_max: int = ROUNDS_MAX) -> dict[str, int]:
        """What was claimed of each, until nothing is left."""
        worker = Worker(self.database, sources, self._settings.engine)
        counted: dict[str, int] = {}
        try:
            for _ in range(rounds_max):
                ticks = worker.tick()
                for pump, each in zip(worker.pumps, ticks, strict=True):
                    name = pump.source.name.rpartition(".")[2]
                    counted[name] = counted.get(name, 0) + each.claimed
                if not any(each.claimed or each.settled for each in ticks):
                    break
        finally:
            worker.stop(grace_seconds=0)
        return counted


def sources(registry: Registry, database: Database[Any], *, together: int = 1) -> list[Source]:
    """The queues of the protocols of a ledger."""
    if not len(registry):
        return []
    made: list[Source] = [
        IncomingSource(registry, database, together=together),
        RecheckSource(registry, database, registry.backoff),
        DeferredSource(registry, database),
    ]
    if any(protocol.send is not None for protocol in registry):
        made.append(OutgoingSource(registry, database))
    if any(prunes(registry.retention(protocol)) for protocol in registry):
        made.append(RetentionSource(registry, database))
    return made


def running(
    protocol: Protocol | Path | str,
    registry: Registry,
    database: Database[Any],
    settings: Settings,
) -> Running:
    """Run a protocol of a ledger; one that is given is from now on among them."""
    if isinstance(protocol, str):
        found = registry.found(protocol)
    else:
        found = load(protocol) if isinstance(protocol, Path) else protocol
        registry.add(found)
    return Running(found, database, settings, keep_slice=registry.keep_slice)

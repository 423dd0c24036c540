"""The room of protocols, as a ledger takes it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source
from ledgerstone.protocols import deferred, keys, refusals, tail
from ledgerstone.protocols.calls import Protocols
from ledgerstone.protocols.read import checks
from ledgerstone.protocols.read.status import QueueFacts, facts_of, waits
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.running import Running, sources
from ledgerstone.protocols.tables import ADDED
from ledgerstone.room import Opened, Room
from ledgerstone.settings import Settings
from ledgerstone.settings.protocols import ProtocolSettings
from ledgerstone.store.rooms import RowSecurity
from ledgerstone.store.transaction import Transaction

KEYS_EVERY_SECONDS = 60.0
ADOPT_EVERY_SECONDS = 2.0


def _open(settings: Settings) -> Registry:
    return Registry(settings.protocols)


def _calls(tx: Transaction, registry: Registry) -> Protocols:
    return Protocols(tx, registry)


def _sources(opened: Opened[Registry]) -> list[Source]:
    return sources(opened.state, opened.database)


def _duties(opened: Opened[Registry], _: object) -> Sequence[Duty]:
    settings = opened.settings.protocols

    def forgotten(tx: Transaction) -> int:
        days = settings.keep_keys_days
        return keys.forget(tx, keep_days=days) + refusals.forget(tx, keep_days=days)

    forget = Duty("protocols.keys", KEYS_EVERY_SECONDS, forgotten)
    ticking = [
        Duty(f"protocols.tick:{each.name}", settings.tick_seconds, rounds=_ticks(opened, each.name))
        for each in opened.state
        if each.jobs
    ]
    return [forget, *_adopting(opened), *ticking, *tail.duties(opened.database)]


def _adopting(opened: Opened[Registry]) -> list[Duty]:
    """What another program defers names no protocol: it is for the only one there is."""
    names = [each.name for each in opened.state]
    if len(names) != 1:
        return []
    (name,) = names
    return [
        Duty(
            "protocols.adopt",
            ADOPT_EVERY_SECONDS,
            lambda tx: deferred.adopt(tx, name),
            needed=deferred.adoptable,
        )
    ]


def _ticks(opened: Opened[Registry], name: str) -> Callable[[], int]:
    running = Running(
        opened.state.found(name),
        opened.database,
        opened.settings,
        keep_slice=opened.state.keep_slice,
    )
    return lambda: len(running.tick().ran)


def _facts(opened: Opened[Registry], tx: Transaction | None) -> list[QueueFacts] | None:
    return None if tx is None else facts_of(tx, opened.state)


def _begin(opened: Opened[Registry]) -> None:
    for protocol in opened.state:
        Running(protocol, opened.database, opened.settings)


PROTOCOLS: Room[Protocols, Registry] = Room(
    name="protocols",
    enabled=lambda settings: settings.protocols.enabled,
    open=_open,
    calls=_calls,
    tables=ADDED,
    migrations="ledgerstone.protocols.migrations",
    settings=ProtocolSettings,
    sources=_sources,
    duties=_duties,
    begin=_begin,
    security=RowSecurity(refused=ADDED),
    failpoints=frozenset(
        {
            "protocols.projected",
            "protocols.applied",
            "protocols.kept",
            "protocols.unblocked",
            "protocols.rechecked",
            "protocols.drained",
            "protocols.job_ran",
            "protocols.imported",
            "protocols.snapshot_part",
            "protocols.snapshot_copied",
            "protocols.snapshot_cleaned",
            "protocols.pruned",
        }
    ),
    status={"protocols": _facts},
    doctor={"protocols": checks.protocols},
    waiting=lambda _, tx: waits(tx),
    history=("events",),
    cli={
        "protocols": "ledgerstone.protocols.cli.protocols:app",
        "events": "ledgerstone.protocols.cli.events:app",
    },
)

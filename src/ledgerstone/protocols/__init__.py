"""Event protocols: commands, projectors, and events that wait for one another.

Read `protocol` (what is declared), then `applying` (what happens to an event), `incoming`,
`rechecks` and `rechecking` (what waits), `deferred`, `commands` and `ticking`.
"""

from __future__ import annotations

from ledgerstone.protocols.calls import Protocols
from ledgerstone.protocols.connection import Projecting, Reading
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.incoming import Wire
from ledgerstone.protocols.protocol import Protocol, load
from ledgerstone.protocols.results import (
    BlobAppendSlice,
    Blocked,
    DeferredEnqueue,
    IncomingRemove,
    OutgoingEnqueue,
    Reason,
    Result,
)
from ledgerstone.protocols.running import Running, running
from ledgerstone.settings.protocols import Retention

__all__ = [
    "BlobAppendSlice",
    "Blocked",
    "DeferredEnqueue",
    "Envelope",
    "IncomingRemove",
    "OutgoingEnqueue",
    "Projecting",
    "Protocol",
    "Protocols",
    "Reading",
    "Reason",
    "Result",
    "Retention",
    "Running",
    "Wire",
    "load",
    "running",
]

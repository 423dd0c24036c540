"""Following the log: events as they are committed, each once, also after a restart.

With one writer (SQLite) the numbers of events follow their commits: they are the positions. With
several, an event with a lower number may be committed later: there the sequencer gives positions
after the commit (`items/sequencer.py`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self

from sqlalchemy import BigInteger, bindparam, select

from ledgerstone.engine.duties import Duty
from ledgerstone.errors import EventsPruned
from ledgerstone.items.positions import LIMIT_MAX, POLL_SECONDS, Positions
from ledgerstone.items.sequencer import Sequencer
from ledgerstone.protocols import log
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.log import SEQUENCE
from ledgerstone.protocols.retention.records import pruned_to
from ledgerstone.protocols.tables import events
from ledgerstone.store.database import Database
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction
from ledgerstone.store.wakeup import WakeSignal

_COLUMNS = (
    events.c.protocol,
    events.c.id,
    events.c.event_type,
    events.c.created_at_ms,
    events.c.payload,
    events.c.received_by,
    events.c.event_id,
)
_positions = Positions(SEQUENCE, _COLUMNS)
_numbered = Statement(
    "protocols.tail",
    select(*_COLUMNS)
    .where(events.c.id > bindparam("after_", type_=BigInteger()))
    .order_by(events.c.id)
    .limit(bindparam("limit", type_=BigInteger())),
)


class Followed(NamedTuple):
    """An event, and its position in the order of the commits."""

    position: int
    event: Envelope


def duties(database: Database[Any]) -> list[Duty]:
    """What gives positions, where numbers do not follow the commits."""
    return [] if database.dialect.one_writer else [Sequencer(SEQUENCE).duty()]


class EventTail:
    """Follows the events of a protocol.

        with chat.tail(after=seen) as tail:
            for position, event in tail.wait(seconds=10):
                …

    `after` is the position up to which everything was answered: a reader that keeps it goes on
    there after a restart, and misses nothing. EventsPruned if that was pruned meanwhile.
    """

    def __init__(self, database: Database[Any], protocol: str, *, after: int = 0) -> None:
        self.after = after
        self._protocol = protocol
        self._database = database
        self._wake_signal = WakeSignal()
        self._watcher = database.watcher()

    def __enter__(self) -> Self:
        self._database.wake_signals.subscribe(SEQUENCE.channel, self._wake_signal)
        if self._watcher is not None:
            self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        self._database.wake_signals.unsubscribe(SEQUENCE.channel, self._wake_signal)

    def wait(self, *, seconds: float, limit: int = 1000) -> list[Followed]:
        """What comes next, as soon as there is something; nothing if that takes longer."""
        monotonic = self._database.clock.monotonic
        until = monotonic() + seconds
        while True:
            found = self.read(limit=limit)
            left = until - monotonic()
            if found or left <= 0:
                return found
            self._wake_signal.wait(min(left, POLL_SECONDS))

    def read(self, *, limit: int = 1000) -> list[Followed]:
        """What comes next, if it is there already; other protocols' events are passed over."""
        limit = min(limit, LIMIT_MAX)
        while True:
            with self._database.reading() as tx:
                rows = self._rows(tx, limit)
            try:
                found = [
                    Followed(position, log.envelope_of(row[1:]))
                    for position, row in rows
                    if row[0] == self._protocol
                ]
            except EventsPruned as error:
                raise self._behind_pruned() from error
            if rows:
                self.after = rows[-1][0]
            if found or len(rows) < limit:
                return found

    def _behind_pruned(self) -> EventsPruned:
        with self._database.reading() as tx:
            to = pruned_to(tx, self._protocol)
        message = (
            f"events of {self._protocol} up to position {to:,} were pruned,"
            f" and this reader stands at {self.after:,}"
        )
        hint = f"read what came of them from the protocol's tables, and go on behind {to}"
        return EventsPruned(message, hint=hint)

    def _rows(self, tx: Transaction, limit: int) -> list[tuple[int, Row]]:
        if self._database.dialect.one_writer:
            rows = _numbered.rows(tx, after_=self.after, limit=limit)
            return [(row[1], row) for row in rows]
        found = _positions.after(tx, self.after, limit=limit)
        return [(each.position, each.values) for each in found]

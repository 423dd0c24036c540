"""Ours: messages are published in transactions and carried by a relay with default settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from time import perf_counter, process_time

from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from bench.messaging import broker, load
from bench.messaging.load import Mode
from bench.side import Looked, Note, expect, looking_by, lots, plain_engine
from ledgerstone.ledger import Ledger
from ledgerstone.messaging import NewMessage
from ledgerstone.messaging.brokers.transport import Answer, Heard, Transport
from ledgerstone.messaging.message import Message

UNDELIVERED = "SELECT 1 FROM messenger_outbox WHERE delivered_at IS NULL LIMIT 1"
DELIVERED = "SELECT COUNT(*) FROM messenger_outbox WHERE delivered_at IS NOT NULL"


class Relay:
    """The outbox and its relay to one broker."""

    setting = ""
    reads_when_idle = False

    def __init__(self, mode: Mode, broker: str) -> None:
        self.name: str = mode
        self._settings = load.settings(broker, mode)
        self._partitions = load.PARTITIONS if mode == "ordered" else 0
        self._broker = broker

    def prepare(self, url: str) -> None:
        with opened(url, self._settings) as ledger:
            ledger.migrate()

    def fill(self, url: str, count: int) -> Timing:
        messages = load.new_messages(self._partitions)
        with opened(url, self._settings) as ledger:
            _publish(ledger, islice(messages, 1))
            settle_memory()
            began, cpu_began = perf_counter(), process_time()
            for lot in lots(count - 1):
                _publish(ledger, islice(messages, lot))
            ended, cpu_ended = perf_counter(), process_time()
        return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)

    def work(self, url: str, note: Note) -> None:
        with opened(url, self._settings) as ledger:
            relay = ledger.relay_source(load.DESTINATION)
            relay.transport = _Counted(relay.transport, note)
            ledger.worker(relay).run()

    def looking(self, url: str) -> AbstractContextManager[Looked]:
        return looking_by(plain_engine(url), UNDELIVERED)

    def recorded(self, url: str, total: int) -> None:
        with plain_engine(url).connect() as connection:
            expect(connection.exec_driver_sql(DELIVERED).scalar(), total, self.name)
        expect(broker.kept(self._broker, total), total, f"the broker after {self.name}")


class _Counted:
    """A transport; each call says how many messages it was given."""

    def __init__(self, transport: Transport, note: Note) -> None:
        self._transport = transport
        self._note = note
        self.close = transport.close

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        answers = self._transport.send(messages, seconds_max=seconds_max, heard=heard)
        self._note(len(messages))
        return answers


def _publish(ledger: Ledger, messages: Iterable[NewMessage]) -> None:
    with ledger.transaction() as tx:
        tx.outbox.publish_many(list(messages))

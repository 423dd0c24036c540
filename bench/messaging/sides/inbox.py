"""Taking messages from the broker: a receipt and one row in one transaction, then the ack.

All have the same tables, prefetch and number of threads. Ours is a worker with default settings;
the bare client and the bare driver are put together by hand.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from time import perf_counter, process_time
from typing import Any
from uuid import UUID

import pika

from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from bench.messaging import load
from bench.messaging.broker import QUEUE
from bench.side import Looked, Note, expect, looking_by, lots, plain_engine
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.brokers.transport import SendResult
from ledgerstone.messaging.brokers.transports.amqp import AmqpTransport
from ledgerstone.messaging.message import Message

CONSUMER = "bench"
SEND_SECONDS_MAX = 60.0
EFFECTS = "CREATE TABLE effect (id BIGSERIAL PRIMARY KEY, message_id TEXT NOT NULL)"
SENT = "CREATE TABLE sent (number BIGINT NOT NULL)"
EFFECT = "INSERT INTO effect (message_id) VALUES (%s)"
RECEIPT = """\
INSERT INTO message_broker_deduplication (message_id, consumer, message_name, processed_at)
VALUES (%s, %s, %s, date_trunc('second', now() AT TIME ZONE 'UTC')) ON CONFLICT DO NOTHING"""
UNFINISHED = """\
SELECT 1 WHERE (SELECT COUNT(*) FROM effect) < (SELECT COALESCE(SUM(number), 0) FROM sent)"""
DONE = "SELECT (SELECT COUNT(*) FROM effect), (SELECT COUNT(*) FROM message_broker_deduplication)"


class Inbox:
    """A worker with the deliveries of a subscription."""

    name = "ours"
    setting = ""
    reads_when_idle = False

    def __init__(self, broker: str) -> None:
        self._settings = load.settings(broker)
        self._broker = broker

    def prepare(self, url: str) -> None:
        with opened(url, self._settings) as ledger:
            ledger.migrate()
        with plain_engine(url).begin() as connection:
            connection.exec_driver_sql(EFFECTS)
            connection.exec_driver_sql(SENT)

    def fill(self, url: str, count: int) -> Timing:
        """Put so many into the queue."""
        with plain_engine(url).begin() as connection:
            connection.exec_driver_sql("INSERT INTO sent VALUES (%s)", (count,))
        settings = self._settings
        destination = settings.destinations[load.DESTINATION]
        transport = AmqpTransport(load.DESTINATION, destination, settings.source)
        began, cpu_began = perf_counter(), process_time()
        for lot in lots(count):
            answers = transport.send(load.in_memory(lot), seconds_max=SEND_SECONDS_MAX)
            expect({answer.result for answer in answers}, {SendResult.DELIVERED}, "the broker")
        ended, cpu_ended = perf_counter(), process_time()
        transport.close()
        return Timing(count=count, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)

    def work(self, url: str, note: Note) -> None:
        with opened(url, self._settings) as ledger:

            @ledger.consumer(load.NAME, name=CONSUMER)
            def handle(tx: Transaction, message: Message) -> None:
                self._effect(tx, message)
                note()

            settle_memory()
            ledger.worker(ledger.deliveries(load.SUBSCRIPTION)).run()
            message = "the worker ended"
            raise RuntimeError(message)

    def _effect(self, tx: Transaction, message: Message) -> None:
        """The row of the handler, written with the driver, as the bare client writes it."""
        tx.cursor().execute(EFFECT, (message.id,))

    def looking(self, url: str) -> AbstractContextManager[Looked]:
        return looking_by(plain_engine(url), UNFINISHED)

    def recorded(self, url: str, total: int) -> None:
        with plain_engine(url).connect() as connection:
            found = tuple(connection.exec_driver_sql(DONE).one())
        expect(found, (total, total), self.name)


class SQLAlchemyInbox(Inbox):
    """The same worker; its handler writes the row with SQLAlchemy's connection."""

    name = "ours by SQLAlchemy"

    def _effect(self, tx: Transaction, message: Message) -> None:
        tx.connection.exec_driver_sql(EFFECT, (message.id,))


class BareInbox(Inbox):
    """pika hands deliveries to threads, psycopg writes, and the ack goes back through the loop."""

    name = "client"

    def work(self, url: str, note: Note) -> None:
        subscription = self._settings.subscriptions[load.SUBSCRIPTION]
        arrived: SimpleQueue[tuple[int, str, str]] = SimpleQueue()
        connection: Any = pika.SelectConnection(
            pika.URLParameters(self._broker),
            on_open_callback=lambda it: it.channel(on_open_callback=begin),
            on_open_error_callback=_stopped,
            on_close_callback=_stopped,
        )

        def begin(channel: Any) -> None:
            for _ in range(subscription.concurrency):
                arguments = (url, arrived, connection, channel, note)
                threading.Thread(target=_handle, args=arguments, daemon=True).start()
            channel.basic_qos(prefetch_count=subscription.prefetch)
            channel.basic_consume(QUEUE, deliver)

        def deliver(_: Any, method: Any, properties: Any, __: bytes) -> None:
            arrived.put((method.delivery_tag, properties.message_id, properties.type))

        settle_memory()
        connection.ioloop.start()


def _stopped(connection: Any, _: BaseException) -> None:
    connection.ioloop.stop()


def _handle(
    url: str,
    arrived: SimpleQueue[tuple[int, str, str]],
    connection: Any,
    channel: Any,
    note: Note,
) -> None:
    """One thread, with a connection to the database of its own."""
    psycopg: Any = import_module("psycopg")
    with psycopg.connect(url) as database:
        while True:
            tag, message_id, name = arrived.get()
            receipt = (UUID(message_id).bytes, CONSUMER, name)
            if database.execute(RECEIPT, receipt, prepare=True).rowcount:
                database.execute(EFFECT, (message_id,), prepare=True)
                note()
            database.commit()
            connection.ioloop.add_callback_threadsafe(partial(channel.basic_ack, tag))

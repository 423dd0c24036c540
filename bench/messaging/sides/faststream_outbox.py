"""faststream-outbox, as its documents make it fast: asyncpg, large batches, deletes in batches.

Its relay is the documented one: a publisher of a RabbitMQ broker stacked on an outbox subscriber.
uvloop, no checks of types and a body of bytes, which is not decoded, are faster than its examples.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, asynccontextmanager
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

from bench.measure import Timing, settle_memory
from bench.messaging import broker, load
from bench.side import Looked, Note, expect, looking_by, lots, plain_engine

WORKERS = 20
BATCH_SIZE = 500
FLUSH_SIZE = 100
FETCH_SECONDS_MIN, FETCH_SECONDS_MAX = 0.01, 0.1
CONNECTIONS_MORE = 2
"""Beside those of the workers: one that fetches, one to spare."""
TABLE = "outbox"
UNFINISHED = f"SELECT 1 FROM {TABLE} LIMIT 1"  # noqa: S608 - our own word


class FaststreamOutbox:
    """faststream-outbox with its own table."""

    name = "faststream-outbox"
    setting = f"{WORKERS} workers, batches of {BATCH_SIZE}, deletes by {FLUSH_SIZE}"
    reads_when_idle = False

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def prepare(self, url: str) -> None:
        _run(_prepare(url))

    def fill(self, url: str, count: int) -> Timing:
        timing: Timing = _run(_fill(url, count))
        return timing

    def work(self, url: str, note: Note) -> None:
        _run(_work(url, self._broker, note))

    def looking(self, url: str) -> AbstractContextManager[Looked]:
        return looking_by(plain_engine(url), UNFINISHED)

    def recorded(self, url: str, total: int) -> None:
        """It deletes what it has carried: only the broker can tell."""
        expect(broker.kept(self._broker, total), total, self.name)


def _run(work: Any) -> Any:
    return import_module("uvloop").run(work)


@asynccontextmanager
async def _outbox(url: str) -> Any:
    """Its broker, which is the table, and the engine under it."""
    peer = import_module("faststream_outbox")
    sqlalchemy = import_module("sqlalchemy")
    table = peer.make_outbox_table(sqlalchemy.MetaData(), table_name=TABLE)
    engine = import_module("sqlalchemy.ext.asyncio").create_async_engine(
        url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=WORKERS + CONNECTIONS_MORE
    )
    yield peer.OutboxBroker(engine, outbox_table=table, logger=None, apply_types=False), engine
    await engine.dispose()


async def _prepare(url: str) -> None:
    peer, sqlalchemy = import_module("faststream_outbox"), import_module("sqlalchemy")
    metadata = sqlalchemy.MetaData()
    peer.make_outbox_table(metadata, table_name=TABLE)
    async with _outbox(url) as (_, engine), engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(sqlalchemy.text(peer.outbox_autovacuum_ddl(TABLE)))


async def _fill(url: str, count: int) -> Timing:
    async with _outbox(url) as (outbox, engine), engine.connect() as connection:
        await _send(outbox, connection, 1)
        settle_memory()
        began, cpu_began = perf_counter(), process_time()
        for lot in lots(count - 1):
            await _send(outbox, connection, lot)
        ended, cpu_ended = perf_counter(), process_time()
    return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


async def _send(outbox: Any, connection: Any, count: int) -> None:
    async with connection.begin():
        await outbox.publish_batch(*[load.RAW] * count, queue=load.NAME, session=connection)


async def _work(url: str, broker_url: str, note: Note) -> None:
    rabbit = import_module("faststream.rabbit")
    target = rabbit.RabbitBroker(broker_url, logger=None, apply_types=False)
    exchange = rabbit.RabbitExchange(broker.EXCHANGE, type=rabbit.ExchangeType.TOPIC, durable=True)
    async with _outbox(url) as (outbox, _):

        @target.publisher(routing_key=load.NAME, exchange=exchange, persist=True, mandatory=True)  # type: ignore[untyped-decorator] # no types without the peer
        @outbox.subscriber(  # type: ignore[untyped-decorator] # no types without the peer
            load.NAME,
            max_workers=WORKERS,
            fetch_batch_size=BATCH_SIZE,
            min_fetch_interval=FETCH_SECONDS_MIN,
            max_fetch_interval=FETCH_SECONDS_MAX,
            terminal_flush_batch_size=FLUSH_SIZE,
        )
        async def relay(body: bytes) -> bytes:
            note()
            return body

        await target.start()
        await outbox.start()
        await asyncio.Event().wait()

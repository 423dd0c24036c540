"""How soon a relay finds what is to leave next, with much waiting behind it.

The rows are copies of one real message for each partition; nothing of them is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from time import perf_counter

import msgspec
from sqlalchemy import Connection

from bench.ledgers import opened
from bench.measure import settle_memory
from bench.messaging import load
from bench.side import plain_engine
from ledgerstone.engine.source import Ask
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.relay import lanes
from ledgerstone.messaging.relay.heads import Heads
from ledgerstone.messaging.relay.lanes import HeldLane
from ledgerstone.messaging.relay.memory_budget import Budget
from ledgerstone.settings import MessagingSettings

LEASE_SECONDS = 60.0
MEMORY_BYTES = 1 << 30
WORKER = "bench"
WARM_UP = 20
"""Looks that are not counted: the first ones compile and prepare the statements."""
MS_IN_SECOND = 1e3
COPIES = """\
INSERT INTO messenger_outbox (body, headers, queue_name, partition_key, created_at, available_at)
SELECT body, headers, queue_name, partition_key, created_at, available_at
FROM messenger_outbox, generate_series(2, %s) ORDER BY generate_series, messenger_outbox.id"""
LAST = """\
UPDATE outbox_lane SET last_id = (SELECT MAX(id) FROM messenger_outbox AS behind
WHERE behind.queue_name = outbox_lane.queue_name
AND behind.partition_key = outbox_lane.partition_key)"""
LET_GO = "UPDATE outbox_lane SET lease_until_ms = NULL, worker = NULL"
CLEAN = "VACUUM (ANALYZE) messenger_outbox, outbox_lane"


class Lookups(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of claiming and reading: one lane and its head, and as many as a round has."""

    one: list[float]
    round: list[float]


def settings() -> MessagingSettings:
    """A destination that nobody has to reach."""
    return load.settings("amqp://nowhere", "ordered")


def prepare(url: str) -> None:
    """The tables."""
    with opened(url, settings()) as ledger:
        ledger.migrate()


def lookups(urls: Mapping[int, str], *, ones: int, rounds: int) -> dict[int, Lookups]:
    """Look so often, in databases by how many rows wait in their `PARTITIONS` lanes.

    In one after the other, each time: what slows one down for a while slows all down.
    """
    for waiting, url in urls.items():
        _fill(url, waiting)
    with ExitStack() as stack:
        ledgers = {n: stack.enter_context(opened(url, settings())) for n, url in urls.items()}
        settle_memory()
        one = _looked_in_turn(ledgers, WARM_UP + ones, limit=1, keep=True)
        for url in urls.values():
            with _connected(url) as connection:
                connection.exec_driver_sql(LET_GO)
                connection.exec_driver_sql(CLEAN)
        many = _looked_in_turn(ledgers, 1 + rounds, limit=load.PARTITIONS, keep=False)
    return {n: Lookups(one=one[n][WARM_UP:], round=many[n][1:]) for n in urls}


def _looked_in_turn(
    ledgers: Mapping[int, Ledger], times: int, *, limit: int, keep: bool
) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {n: [] for n in ledgers}
    heads = {n: Heads(ledger.registry.shared) for n, ledger in ledgers.items()}
    for _ in range(times):
        for n, ledger in ledgers.items():
            found[n].append(_looked(ledger, heads[n], limit=limit, keep=keep))
    return found


def _fill(url: str, waiting: int) -> None:
    with opened(url, settings()) as ledger, ledger.transaction() as tx:
        messages = islice(load.new_messages(load.PARTITIONS), load.PARTITIONS)
        tx.outbox.publish_many(list(messages))
    with _connected(url) as connection:
        connection.exec_driver_sql(COPIES, (waiting // load.PARTITIONS,))
        connection.exec_driver_sql(LAST)
        connection.exec_driver_sql(CLEAN)


def _connected(url: str) -> Connection:
    return plain_engine(url).connect().execution_options(isolation_level="AUTOCOMMIT")


class _Undone(Exception):
    """What was claimed is given back."""


def _looked(ledger: Ledger, heads: Heads, *, limit: int, keep: bool) -> float:
    """Claim the next lanes and read the head of each: milliseconds, without the commit."""
    seconds = 0.0
    try:
        with ledger.transaction() as tx:
            began = perf_counter()
            taken = lanes.claim.run(tx, Ask(limit, WORKER, LEASE_SECONDS), queue=load.DESTINATION)
            found = heads.read(
                tx,
                load.DESTINATION,
                [HeldLane.of(each) for each in taken],
                each=1,
                budget=Budget(MEMORY_BYTES),
            )
            seconds = perf_counter() - began
            if [len(some.rows) for some in found.values()] != [1] * limit:
                message = f"{limit} heads were to be found, not {len(found)}"
                raise RuntimeError(message)
            if not keep:
                raise _Undone
    except _Undone:
        pass
    return seconds * MS_IN_SECOND

"""Messaging under fire: every committed message takes effect once, in order, whoever is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone import Ledger
from ledgerstone.messaging.brokers.amqp import topology
from ledgerstone.settings import Settings
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres, PrivateRabbitMQ
from tests.brokers import virtual_host
from tests.contract.messaging.traffic import MESSAGES, SendResult, survive_kills
from tests.harness.traffic import EVENT

KEPT = SendResult(committed=MESSAGES, missing=0, twice=0, unfounded=0, out_of_order=[])


@pytest.fixture(
    params=[
        pytest.param(PrivatePostgres, id="postgres", marks=pytest.mark.postgres),
        pytest.param(PrivateMariaDB, id="mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[PrivatePostgres | PrivateMariaDB]:
    """A server that waits for the disk."""
    with request.param() as started:
        yield started


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.xdist_group("rabbitmq")
def test_through_a_broker(
    server: PrivatePostgres | PrivateMariaDB, rabbit: PrivateRabbitMQ
) -> None:
    """Relays, consumers and RabbitMQ are killed with -9: nothing lost, doubled or out of order."""
    url = server.create_database("ledger")
    with virtual_host(rabbit) as host:
        there = f"{rabbit.url}{host}"
        messaging = {
            "destinations": {"broker": {"url": there, "exchange": "events"}},
            "routes": {"account.*": ["broker"]},
            "subscriptions": {"accounts": {"url": there, "queue": "accounts"}},
            # Not a topic exchange: RabbitMQ 3.10 can forget its routes when it is killed.
            "exchanges": {"events": {"type": "direct"}},
            "queues": {"accounts": {"one_consumer": True, "bindings": {"events": [EVENT]}}},
        }
        settings = Settings.load(environ={}, url=url, messaging=messaging)
        destination = settings.messaging.destinations["broker"]
        declared = topology.declare("broker", destination, topology.plan(settings.messaging))
        assert all(each.ok for each in declared)
        rabbit.write_out()

        def cut_power() -> None:
            rabbit.kill()
            rabbit.restart()

        with Ledger(url, settings=settings) as ledger:
            ledger.migrate()
            verdict = survive_kills(
                ledger,
                url,
                carriers=("broker",),
                subscription="accounts",
                settings={f"messaging_{k}": json.dumps(v) for k, v in messaging.items()},
                disturb=cut_power,
            )

    assert verdict == KEPT


@pytest.mark.slow
@pytest.mark.torture
def test_without_a_broker(tmp_path: Path) -> None:
    """On a file, straight to the consumers: the same holds.

    Eight processes take turns to write to it: a lease is long enough to wait for one.
    """
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger(url, settings=Settings.load(environ={}, url=url)) as ledger:
        ledger.migrate()

        verdict = survive_kills(
            ledger,
            url,
            carriers=("local",),
            subscription=None,
            settings={"engine_lease_seconds": 5},
        )

    assert verdict == KEPT

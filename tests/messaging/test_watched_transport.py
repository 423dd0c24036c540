"""What a worker of a library says of its destinations."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.server import HOST, free_port


def test_out_of_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destination that cannot be reached is in the log, once, also without the command line."""
    monkeypatch.setattr(logging.getLogger("ledgerstone"), "propagate", True)
    url = f"sqlite:///{tmp_path}/shop.db"
    broker = {"url": f"amqp://guest:wrong@{HOST}:{free_port()}/"}
    settings = Settings.load(
        url=url,
        environ={},
        messaging={"destinations": {"broker": broker}, "routes": {"*": ["broker"]}},
    )
    with Ledger(settings=settings) as ledger, caplog.at_level(logging.WARNING):
        with ledger.transaction() as tx:
            tx.outbox.publish("order.placed", {}, partition="a")
            tx.outbox.publish("order.placed", {}, partition="b")
        worker = ledger.worker(ledger.relay_source("broker"))
        for _ in range(3):
            worker.tick()

    said = [
        each.message for each in caplog.records if "messages wait until it is back" in each.message
    ]
    assert len(said) == 1
    assert said[0].startswith("broker")

"""The command for every test of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.ledger import Ledger
from ledgerstone.testing.servers import PrivateRabbitMQ
from tests.brokers import connected
from tests.cli.program import Program
from tests.cli.shop import ledger_in


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The command, called in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Program(folder)


@pytest.fixture
def broker(rabbit: PrivateRabbitMQ) -> Iterator[PrivateRabbitMQ]:
    """A broker without the exchange and the queue of the shop, which go at the end."""
    yield rabbit
    with connected(rabbit.url) as connection:
        connection.channel().queue_delete("orders")
        connection.channel().exchange_delete("events")


@pytest.fixture
def embedded(program: Program) -> Iterator[Ledger]:
    """A ledger on the embedded database that the command uses unless it is told otherwise."""
    with ledger_in(program) as ledger:
        yield ledger

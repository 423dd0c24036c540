"""Whether a place can be reached: one server of several is enough."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from ledgerstone.errors import TargetDown
from ledgerstone.messaging.read.reaching import reached
from ledgerstone.settings import DestinationSettings
from ledgerstone.testing.server import free_port


def test_one_of_several_servers() -> None:
    """A cluster is reached when one of its servers accepts connections, whichever that is."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        url = f"nats://127.0.0.1:{free_port()},127.0.0.1:{port}"

        told = reached("events", DestinationSettings(url=url))

    assert told == f"127.0.0.1:{port} accepts connections"


def test_none_of_several_servers() -> None:
    """When none does, the error names each of them."""
    ports = [free_port(), free_port()]
    url = "nats://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    with pytest.raises(TargetDown) as raised:
        reached("events", DestinationSettings(url=url))

    assert all(f"127.0.0.1:{port}" in str(raised.value) for port in ports)


def test_a_webhook_with_commas() -> None:
    """A webhook has one server, whatever stands in its path."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        url = f"http://127.0.0.1:{port}/a,http://b"

        assert reached("hook", DestinationSettings(url=url)) == (
            f"127.0.0.1:{port} accepts connections"
        )

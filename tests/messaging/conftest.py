"""One RabbitMQ for all that talk to one: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerstone.testing.servers import PrivateRabbitMQ

BODY_BYTES_MAX = 200_000


@pytest.fixture(scope="session")
def rabbit() -> Iterator[PrivateRabbitMQ]:
    """A broker that is killed and comes back, and takes no larger body than this."""
    with PrivateRabbitMQ(settings={"max_message_size": str(BODY_BYTES_MAX)}) as server:
        yield server

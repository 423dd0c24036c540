"""Every test of the project sees the shipped fixtures and one broker, and can be interrupted."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

from ledgerstone.testing.server import MEMORY_FOLDER, memory_is_plenty
from ledgerstone.testing.servers import PrivateRabbitMQ

pytest_plugins = ["ledgerstone.testing.fixtures"]

# Until all tests are collected nothing becomes garbage; to look for it takes a third of the time.
gc.disable()

# A shell that runs `make test` in the background makes all of it deaf to Ctrl-C; the programs that
# the tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# PyMySQL reads the certificates of the system for each connection, and checks none: that takes
# longer than most tests.
os.environ["SSL_CERT_FILE"] = os.devnull

# So do servers and databases that come and go: making files is slow where others were just removed.
if "TMPDIR" not in os.environ and memory_is_plenty():
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY_FOLDER)

BROKER_BODY_BYTES_MAX = 200_000


@pytest.fixture(scope="session")
def rabbit() -> Iterator[PrivateRabbitMQ]:
    """A broker that is killed and comes back, and takes no larger body than this.

    It takes seconds to start: who uses it belongs to the group "rabbitmq", and leaves it empty.
    """
    with PrivateRabbitMQ(settings={"max_message_size": str(BROKER_BODY_BYTES_MAX)}) as server:
        yield server


def pytest_collection_finish() -> None:
    """From now on there is garbage; what was imported and collected is none."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: at the end one worker would be busy and the others idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)

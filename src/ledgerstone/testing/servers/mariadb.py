"""A private MariaDB, from the packages of the system."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from ledgerstone.testing.server import (
    HOST,
    QUERY_SECONDS_MAX,
    START_SECONDS_MAX,
    Machine,
    ServerFailed,
    ask,
    database_name,
    find_program,
    free_port,
)
from ledgerstone.testing.servers.administration import Administration
from ledgerstone.testing.waiting import until

DIRECTORY_NOT_EMPTY = "1010"

INSTALL = "apt-get install mariadb-server-core mariadb-client"
PROGRAMS = ("mariadb-install-db", "mariadbd", "mariadb", "mariadb-dump")
SETTINGS = {
    "bind-address": HOST,
    "skip-name-resolve": "ON",
    "character-set-server": "utf8mb4",
    "max-connections": "200",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-use-native-aio": "OFF",
    "key-buffer-size": "1M",
    "aria-pagecache-buffer-size": "8M",
}
SETTINGS_WITHOUT_FSYNC = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "debug-no-sync": "ON",
}
DUMP = ("--compact", "--skip-opt", "--create-options", "--extended-insert", "--routines")
"""The shortest form: nobody reads it but a server."""


class PrivateMariaDB:
    """A MariaDB of one's own; see `Server` and `DatabaseServer` for what it promises.

    - Commits survive `kill()`. With `fsync=False` it is faster, and nothing is promised after one.
    - `settings` are server options without their dashes, over the defaults here.
    - `bin_folder` picks the installation; without it the programs on PATH.
    """

    name = "mariadb"

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
        self._machine = Machine(self.name, start_seconds_max=start_seconds_max, forgetful=not fsync)
        self._dumps: dict[str, str] = {}
        self._administration = Administration(partial(_connect, self.port))

    @property
    def url(self) -> str:
        return self._url("test")

    @property
    def folder(self) -> Path:
        return self._machine.folder

    def _url(self, database: str) -> str:
        return f"mysql://root@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        with self._machine.assembly():
            # All of them before the first is run, so that a missing one is told at once.
            install, *_ = map(self._program, PROGRAMS)
            root = "--auth-root-authentication-method=normal"
            self._machine.run([install, "--no-defaults", root, *self._options(), "--debug-no-sync"])
            self.restart()

    def restart(self) -> None:
        where = [f"--port={self.port}", "--socket=mariadb.sock", "--pid-file=mariadb.pid"]
        self._machine.boot(
            [self._program("mariadbd"), "--no-defaults", *self._options(), *where],
            answers=self._answers,
        )

    def _answers(self) -> bool:
        # Another server may hold the port: only ours knows this folder.
        try:
            return Path(self._client("SELECT @@datadir")) == self._data
        except ServerFailed:
            return False

    def _program(self, name: str) -> Path:
        folders = [self._bin_folder] if self._bin_folder else []
        return find_program(name, folders=folders, install=INSTALL)

    def _options(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        return [f"--datadir={self._data}", *settings]

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
        copied = "" if template is None else self._dumped(template)
        self._administration.run(f"CREATE DATABASE {database_name(name)}; USE {name}; {copied}")
        return self._url(name)

    def _dumped(self, database: str) -> str:
        """The statements that make a copy of it; kept, so that the server is asked once."""
        if database not in self._dumps:
            dump = self._ask("mariadb-dump", *DUMP, database_name(database))
            # Only the client program knows DELIMITER; the server finds the end of a trigger itself.
            lines = [line for line in dump.splitlines() if not line.startswith("DELIMITER ")]
            dump = "\n".join(lines).replace(";;", ";")
            # Its tables are in the order of their names, whichever refers to which.
            self._dumps[database] = f"SET foreign_key_checks = 0;\n{dump}"
        return self._dumps[database]

    def drop_database(self, name: str) -> None:
        # DROP DATABASE would wait for open transactions.
        self._disconnect_all(database_name(name))
        until(lambda: self._dropped(name), what=f"the end of {name}")
        self._dumps.pop(name, None)

    def _dropped(self, name: str) -> bool:
        try:
            self._administration.run(f"DROP DATABASE IF EXISTS {name}")
        except ServerFailed as failed:
            if DIRECTORY_NOT_EMPTY not in str(failed):
                raise
            # The server was about to remove a file of its own there: the next try finds it gone.
            return False
        return True

    def _disconnect_all(self, database: str) -> None:
        others = (
            "SELECT id FROM information_schema.processlist "  # noqa: S608 - a checked name
            f"WHERE db = '{database}' AND id <> CONNECTION_ID()"
        )
        for (connection,) in self._administration.run(others):
            # It may leave by itself meanwhile; then there is nothing to kill.
            with contextlib.suppress(ServerFailed):
                self._client(f"KILL {connection}")

    def _client(self, statements: str, *, database: str = "") -> str:
        patience = f"--connect-timeout={int(QUERY_SECONDS_MAX)}"
        return self._ask("mariadb", patience, "-NB", database, told=statements)

    def _ask(self, program: str, *arguments: str, told: str = "") -> str:
        where = [f"--host={HOST}", f"--port={self.port}", "--protocol=tcp", "--user=root"]
        return ask([self._program(program), "--no-defaults", *where, *arguments], told=told)


def _connect(port: int) -> Any:
    import pymysql
    from pymysql.constants import CLIENT

    return pymysql.connect(
        host=HOST,
        port=port,
        user="root",
        autocommit=True,
        charset="utf8mb4",
        connect_timeout=int(QUERY_SECONDS_MAX),
        client_flag=CLIENT.MULTI_STATEMENTS,
    )

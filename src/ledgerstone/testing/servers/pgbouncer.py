"""A private PgBouncer: a pooler in transaction mode in front of a private PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ledgerstone.testing.server import (
    HOST,
    START_SECONDS_MAX,
    Machine,
    ServerFailed,
    find_program,
    free_port,
)
from ledgerstone.testing.servers.postgres import PrivatePostgres

INSTALL = "apt-get install pgbouncer"
POOL_SIZE = 20
SETTINGS = {
    "listen_addr": HOST,
    "unix_socket_dir": "",
    "auth_type": "trust",
    "admin_users": "postgres",
    "pool_mode": "transaction",
    "max_client_conn": "1000",
    # The default is 15 seconds of refusals after PostgreSQL is back.
    "server_login_retry": "0.1",
}


class PrivatePgBouncer:
    """A PgBouncer of one's own; see `Server` and `DatabaseServer` for what it promises.

    - Every database of `postgres` is reachable through it by the same name.
    - `postgres` is started before it, and may be killed and restarted behind it.
    - `settings` are lines of pgbouncer.ini, over the defaults here.
    """

    name = "pgbouncer"

    def __init__(
        self,
        postgres: PrivatePostgres,
        *,
        port: int | None = None,
        pool_size: int = POOL_SIZE,
        settings: Mapping[str, str] | None = None,
        bin_folder: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> None:
        self.port = port or free_port()
        self._postgres = postgres
        self._settings = SETTINGS | {"default_pool_size": str(pool_size)} | dict(settings or {})
        self._bin_folder = bin_folder
        self._machine = Machine(self.name, start_seconds_max=start_seconds_max)

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
            users = self._machine.write("users.txt", '"postgres" ""\n')
            self._machine.write("pgbouncer.ini", self._configuration(users))
            self.restart()

    def _configuration(self, users: Path) -> str:
        target = f"host={HOST} port={self._postgres.port}"
        settings = {"listen_port": str(self.port), "auth_file": str(users)} | self._settings
        return "\n".join(
            [
                "[databases]",
                f"{self.folder.name} = {target} dbname=postgres",
                f"* = {target}",
                "[pgbouncer]",
                *(f"{name} = {value}" for name, value in settings.items()),
                "",
            ]
        )

    def restart(self) -> None:
        folders = [self._bin_folder] if self._bin_folder else []
        program = find_program("pgbouncer", folders=folders, install=INSTALL)
        self._machine.boot([program, self.folder / "pgbouncer.ini"], answers=self._answers)

    def _answers(self) -> bool:
        # Another pooler may hold the port: only ours has a database named after this folder.
        try:
            databases = self._postgres.psql("SHOW DATABASES", database="pgbouncer", port=self.port)
        except ServerFailed:
            return False
        return self.folder.name in databases

    def stop(self) -> None:
        self._machine.stop()

    def kill(self) -> None:
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
        self._postgres.create_database(name, template=template)
        return self._url(name)

    def drop_database(self, name: str) -> None:
        self._postgres.drop_database(name)

"""A private NATS server with JetStream."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ledgerstone.testing.server import (
    CONNECT_SECONDS_MAX,
    HOST,
    START_SECONDS_MAX,
    Machine,
    find_program,
    free_port,
)

INSTALL = "apt-get install nats-server"
GREETING_BYTES_MAX = 65_536


class PrivateNats:
    """A NATS server of one's own; see `Server` for what it promises.

    - JetStream is on and keeps its streams in the server's folder.
    - What a stream confirmed survives `kill()`.
    - `lines` are further lines of its configuration file, `files` lie beside it by these names.
    - `bin_folder` picks the installation; without it the program on PATH.
    """

    name = "nats"

    def __init__(
        self,
        *,
        port: int | None = None,
        lines: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        bin_folder: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> None:
        self.port = port or free_port()
        self._lines = lines
        self._files = dict(files or {})
        self._bin_folder = bin_folder
        self._machine = Machine(self.name, start_seconds_max=start_seconds_max)

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def folder(self) -> Path:
        return self._machine.folder

    def start(self) -> None:
        with self._machine.assembly():
            folder = self.folder
            for name, text in self._files.items():
                self._machine.write(name, text)
            self._machine.write(
                "nats.conf",
                "\n".join(
                    [
                        f'listen: "{HOST}:{self.port}"',
                        f'server_name: "{folder.name}"',
                        f'jetstream {{ store_dir: "{folder / "data"}" }}',
                        *self._lines,
                        "",
                    ]
                ),
            )
            self.restart()

    def restart(self) -> None:
        folders = [self._bin_folder] if self._bin_folder else []
        program = find_program("nats-server", folders=folders, install=INSTALL)
        command = [program, "--config", self.folder / "nats.conf"]
        self._machine.boot(command, answers=self._answers)

    def _answers(self) -> bool:
        # Another server may hold the port: only ours greets with this name.
        try:
            return bool(greeting(self.port).get("server_name") == self.folder.name)
        except (OSError, ValueError):
            return False

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


def greeting(port: int, *, seconds_max: float = CONNECT_SECONDS_MAX) -> dict[str, Any]:
    """The server's greeting about itself; `OSError` or `ValueError` without one."""
    with socket.create_connection((HOST, port), timeout=seconds_max) as connection:
        line = connection.makefile("rb").readline(GREETING_BYTES_MAX)
    word, _, found = line.partition(b" ")
    if word != b"INFO":
        raise ConnectionError(f"port {port} does not speak NATS")
    return dict(json.loads(found))

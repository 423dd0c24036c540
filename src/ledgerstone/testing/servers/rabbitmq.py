"""A private RabbitMQ: one node with its own cookie and its own port mapper (epmd)."""

from __future__ import annotations

import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Self

import msgspec

from ledgerstone.testing.server import (
    CONNECT_SECONDS_MAX,
    HOST,
    START_SECONDS_MAX,
    Machine,
    ServerFailed,
    ask,
    find_program,
    free_port,
)
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

NOT_CONNECTED = "failed to connect"
"""The message of erl_call if it has not reached the node."""
INSTALL = "apt-get install rabbitmq-server"
# The command on PATH of Debian is a wrapper that changes the user; the real one is here.
SYSTEM_FOLDER = Path("/usr/lib/rabbitmq/bin")
SETTINGS = {
    "log.console": "true",
    "log.console.use_colors": "off",
    "log.file": "false",
    "disk_free_limit.absolute": "1MB",
    # A client may take its time on a machine that is busy.
    "handshake_timeout": "300000",
    "ssl_handshake_timeout": "300000",
}
ERLANG_ON_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME = 1
FRAME_HEADER_BYTES = 7
FRAME_BYTES_MAX = 65_536


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates that a broker shows and trusts, as PEM; `authority` signs its clients'."""

    authority: str
    certificate: str
    key: str


class PrivateRabbitMQ:
    """A RabbitMQ of one's own; see `Server` for what it promises.

    - It starts in seconds, not milliseconds: share one among tests.
    - `settings` are lines of rabbitmq.conf, over the defaults here.
    - With `tls` it listens at `tls_url` too, for those who show a certificate of the authority.
    - `control` runs rabbitmqctl and answers what it prints; `evaluate` asks the broker itself.
    - A queue may be forgotten if the broker is killed right after it was declared: `write_out`.
    - `bin_folder` picks the installation; without it the one of the system.
    """

    name = "rabbitmq"

    def __init__(
        self,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        bin_folder: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
        tls: Certificates | None = None,
    ) -> None:
        self.port = port or free_port()
        self._tls = tls
        self._tls_port = free_port() if tls else None
        self._ports_inside = {"ERL_EPMD_PORT": free_port(), "RABBITMQ_DIST_PORT": free_port()}
        self._settings = SETTINGS | dict(settings or {})
        self._bin_folder = bin_folder
        self._machine = Machine(self.name, start_seconds_max=start_seconds_max)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    @property
    def tls_url(self) -> str:
        # By name and not by number: a certificate is for a name.
        return f"amqps://guest:guest@localhost:{self._tls_port}/"

    @property
    def folder(self) -> Path:
        return self._machine.folder

    def start(self) -> None:
        with self._machine.assembly():
            settings = {"listeners.tcp.1": f"{HOST}:{self.port}"} | self._listening_by_tls()
            settings |= self._settings
            lines = [f"{name} = {value}\n" for name, value in settings.items()]
            self._machine.write("rabbitmq.conf", "".join(lines))
            self._machine.write("enabled_plugins", "[].\n")
            self._machine.write(".erlang.cookie", secrets.token_hex(), mode=0o400)
            self.restart()

    def _listening_by_tls(self) -> dict[str, str]:
        if self._tls is None:
            return {}
        files = {
            "cacertfile": self._machine.write("authority.pem", self._tls.authority),
            "certfile": self._machine.write("certificate.pem", self._tls.certificate),
            "keyfile": self._machine.write("key.pem", self._tls.key),
        }
        return {f"ssl_options.{name}": str(path) for name, path in files.items()} | {
            "listeners.ssl.1": f"{HOST}:{self._tls_port}",
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "true",
        }

    def restart(self) -> None:
        program = self._program("rabbitmq-server")
        self._machine.boot([program], self._environment(), answers=self._answers)

    def control(self, *arguments: str) -> str:
        """The output of rabbitmqctl; `ServerFailed` with its own words when it fails."""
        home = {"HOME": str(self.folder), "TMPDIR": str(self.folder)}
        program = self._program("rabbitmqctl")
        return ask([program, "--quiet", *arguments], environment=self._environment() | home)

    def evaluate(self, expression: str) -> str:
        """The value of an Erlang expression in the broker; `ServerFailed` when it fails.

        rabbitmqctl would start a second Erlang for it, which takes a second of the processor.
        """
        command = [find_program("erl_call", install=INSTALL), "-r", "-n", self._node(), "-e"]
        environment = self._environment() | {"HOME": str(self.folder)}
        said = _answered(command, environment, f"{expression}.\n")
        if not said.startswith("{ok,"):
            raise ServerFailed(f"{self.name} did not evaluate {expression}: {said}")
        return said.removeprefix("{ok,").removesuffix("}").strip()

    def write_out(self) -> None:
        """Let declarations survive `kill`: the broker writes them seconds later otherwise."""
        self.evaluate("mnesia:sync_log()")

    def _program(self, name: str) -> Path:
        folders = [self._bin_folder] if self._bin_folder else list(_installations())
        return find_program(name, folders=folders, install=INSTALL)

    def _node(self) -> str:
        return f"{self.folder.name}@localhost"

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        inside = {name: str(port) for name, port in self._ports_inside.items()}
        return inside | {
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": self._node(),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_ON_LOOPBACK,
        }

    def _answers(self) -> bool:
        # Another broker may hold the port: only ours greets with this node's name.
        try:
            return self.folder.name.encode() in greeting(self.port)
        except OSError:
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


def greeting(port: int, *, seconds_max: float = CONNECT_SECONDS_MAX) -> bytes:
    """The broker's first frame, Connection.Start; `OSError` when there is none in time."""
    with socket.create_connection((HOST, port), timeout=seconds_max) as connection:
        connection.sendall(PROTOCOL_HEADER)
        stream = connection.makefile("rb")
        header = stream.read(FRAME_HEADER_BYTES)
        size = int.from_bytes(header[3:], "big")
        if len(header) < FRAME_HEADER_BYTES or header[0] != METHOD_FRAME or size > FRAME_BYTES_MAX:
            raise ConnectionError(f"port {port} does not speak AMQP 0-9-1")
        return header + stream.read(size)


def _installations() -> Iterator[Path]:
    yield SYSTEM_FOLDER
    if program := shutil.which("rabbitmq-server"):
        yield Path(program).resolve().parent


def _answered(command: Sequence[object], environment: Mapping[str, str], told: str) -> str:
    """The node's answer; a busy node may miss the handshake."""
    deadline = monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            return ask(command, environment=environment, told=told)
        except ServerFailed as error:
            # Then nothing was evaluated.
            if NOT_CONNECTED not in str(error) or monotonic() > deadline:
                raise

"""A receiver of webhooks: a real HTTP server in threads, which can be told what to answer."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.message import Message
from ledgerstone.testing.server import HOST, free_port

LOOK_SECONDS = 0.01
DRIP_SECONDS = 0.05
_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is answered; `raw` replaces all of it, and the connection is closed behind it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw: bytes | None = None
    drip: bool = False
    """Whether it answers letter by letter and never comes to an end."""
    reset: bool = False
    """Whether the connection is broken off behind the answer, without a word of farewell."""
    before: Callable[[], object] = bool
    """Called before it is answered."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What came."""

    path: str
    headers: dict[str, str]
    """By small letters; values are read as UTF-8."""
    body: bytes
    connection: tuple[str, int]
    status: int | None

    @property
    def message(self) -> Message:
        """The message that it carries."""
        own = {name: value for name, value in self.headers.items() if not name.startswith("ce-")}
        if self.headers["content-type"] == cloudevents.STRUCTURED:
            return cloudevents.of_document(self.body, own)
        found = {
            name.removeprefix("ce-"): unquote(value, errors="strict")
            for name, value in self.headers.items()
            if name.startswith("ce-")
        }
        found["datacontenttype"] = self.headers["content-type"]
        return cloudevents.of_attributes(found, self.body, own)


class Receiver:
    """Answers what `replies` says for the name of a message, otherwise 200.

    - `requests` are all that came, `kept` those that were answered with 2xx.
    - `stop` cuts every connection, `pause` leaves all of them without an answer.
    """

    def __init__(self, certificate: str | None = None) -> None:
        self.port = free_port()
        self.replies: dict[str, Reply] = {}
        self.requests: list[Request] = []
        self.asked_for: list[str | None] = []
        """The names that clients asked for in the handshake of TLS."""
        self.accepted = 0
        self.running = threading.Event()
        self.answering = threading.Event()
        self._certificate = certificate
        self._server: _Server | None = None
        self.start()

    @property
    def kept(self) -> list[Request]:
        return [came for came in self.requests if came.status and 200 <= came.status < 300]

    @property
    def url(self) -> str:
        scheme = "https" if self._certificate else "http"
        return f"{scheme}://{HOST}:{self.port}/hook"

    def start(self) -> None:
        self.running.set()
        self.answering.set()
        self._server = _Server(self)
        if self._certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            context.sni_callback = lambda _sock, name, _context: self.asked_for.append(name)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(LOOK_SECONDS,), daemon=True).start()

    def stop(self) -> None:
        self.running.clear()
        if self._server is not None:
            server, self._server = self._server, None
            server.hide()
            server.cut()
        self.answering.set()

    def hide(self) -> None:
        """Take no more connections; those that are there go on."""
        assert self._server
        self._server.hide()

    def cut(self) -> None:
        """End every connection, and take new ones."""
        assert self._server
        self._server.cut()

    def pause(self) -> None:
        self.answering.clear()

    def resume(self) -> None:
        self.answering.set()


class _Server(ThreadingHTTPServer):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.live: set[socket.socket] = set()
        super().__init__((HOST, receiver.port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        found = super().get_request()
        self.receiver.accepted += 1
        self.live.add(found[0])
        return found

    def shutdown_request(self, request: Any) -> None:
        self.live.discard(request)
        super().shutdown_request(request)

    def hide(self) -> None:
        self.shutdown()
        self.server_close()

    def cut(self) -> None:
        for connection in list(self.live):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.live.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is not worth a word."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver.answering.wait()
        if not receiver.running.is_set():
            self.close_connection = True
            return
        headers = {
            name.lower(): value.encode("latin-1").decode() for name, value in self.headers.items()
        }
        reply = receiver.replies.get(headers.get("ce-type", ""), Reply())
        reply.before()
        receiver.requests.append(
            Request(
                path=self.path,
                headers=headers,
                body=body,
                connection=self.client_address,
                status=reply.status if reply.raw is None and not reply.drip else None,
            )
        )
        self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        if reply.drip:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self._gone():
                self.wfile.write(b"x")
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            self.close_connection = True
            if reply.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                socket.close(self.connection.detach())
            return
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if reply.body:
            self.wfile.write(reply.body)

    def _gone(self) -> bool:
        """Wait a moment for the client to hang up."""
        self.connection.settimeout(DRIP_SECONDS)
        try:
            return not self.connection.recv(1)
        except TimeoutError:
            return False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
        """Nobody reads it."""

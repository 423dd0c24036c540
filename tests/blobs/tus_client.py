"""A client of the tus protocol over plain sockets, which can break off in the middle of a body."""

from __future__ import annotations

import base64
import http.client
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

BODY_TYPE = "application/offset+octet-stream"
HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)
"""Close at once, with RST in the place of FIN."""


class Response(msgspec.Struct, frozen=True):
    """What the server answered; names of headers have small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def offset(self) -> int:
        return int(self.headers["upload-offset"])


class Client(msgspec.Struct, frozen=True):
    """Requests of one user to a server on this machine; each has a connection of its own."""

    port: int
    user: str = "ann"

    def request(self, method: str, path: str, body: bytes = b"", /, **headers: str) -> Response:
        """One request; `upload_offset="0"` is the header Upload-Offset."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=WAIT_SECONDS_MAX)
        try:
            connection.request(method, path, body or None, self._headers(headers))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, found, answer.read())
        finally:
            connection.close()

    def raw(self, lines: list[str], body: bytes = b"") -> Response:
        """One request as it stands: a request line and headers, then the body."""
        with socket.create_connection((HOST, self.port), timeout=WAIT_SECONDS_MAX) as connection:
            head = [lines[0], f"Host: {HOST}", *lines[1:], "", ""]
            connection.sendall("\r\n".join(head).encode("latin-1") + body)
            answer = http.client.HTTPResponse(connection, method=lines[0].partition(" ")[0])
            answer.begin()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, found, answer.read())

    def create(self, size: int, **headers: str) -> str:
        """A new upload; its path."""
        named = {"upload_length": str(size)} | headers
        made = self.request("POST", "/files", **named)
        assert made.status == 201, made
        return made.headers["location"]

    def patch(self, path: str, offset: int, data: bytes, **headers: str) -> Response:
        """Send bytes from an offset on."""
        named = {"content_type": BODY_TYPE, "upload_offset": str(offset)} | headers
        return self.request("PATCH", path, data, **named)

    def offset(self, path: str) -> int:
        """Where the upload is."""
        return self.request("HEAD", path).offset

    def cut_off(self, path: str, offset: int, data: bytes, *, sent: int) -> None:
        """Begin to send bytes from an offset on, and break the connection after so many."""
        headers = self._headers({"content_type": BODY_TYPE, "upload_offset": str(offset)})
        lines = [f"PATCH {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        with socket.create_connection((HOST, self.port), timeout=WAIT_SECONDS_MAX) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            # The server may have refused it, and closed before all was sent.
            with suppress(ConnectionError):
                connection.sendall(data[:sent])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    @contextmanager
    def sending(
        self, path: str, offset: int, data: bytes, *, sent: int, **headers: str
    ) -> Iterator[Callable[[], Response]]:
        """Begin to send bytes, stand still after so many, and yield a call for the answer."""
        named = {"content_type": BODY_TYPE, "upload_offset": str(offset)} | headers
        connection = http.client.HTTPConnection(HOST, self.port, timeout=WAIT_SECONDS_MAX)
        connection.putrequest("PATCH", path)
        for name, value in self._headers(named | {"content_length": str(len(data))}).items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(data[:sent])

        def answer() -> Response:
            got = connection.getresponse()
            found = {name.lower(): value for name, value in got.getheaders()}
            return Response(got.status, found, got.read())

        try:
            yield answer
        finally:
            connection.close()

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in given.items()}
        return {"tus-resumable": "1.0.0", "x-user": self.user} | named


def metadata(**values: str) -> str:
    """The header Upload-Metadata."""
    return ",".join(
        f"{name} {base64.b64encode(value.encode()).decode()}" for name, value in values.items()
    )

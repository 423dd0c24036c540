"""HTTP/1.1 requests to one endpoint, over a connection to exactly the address that was checked.

    resolve the name, once ─▶ check every address ─▶ connect to one of them ─▶ TLS with the name

The name is not resolved again between the check and the connection, so a DNS entry that changes in
between has no effect.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence

import h11
import msgspec

from ledgerstone.messaging.brokers.webhooks.addresses import AddressScope, reach_of

CONNECT_SECONDS_MAX = 5.0
IDLE_SECONDS_MAX = 30.0
AGE_SECONDS_MAX = 300.0
HEAD_BYTES_MAX = 16_384
BODY_BYTES_MAX = 1024
BODY_SECONDS_MAX = 1.0
INTERIM_MAX = 10

Headers = Sequence[tuple[bytes, bytes]]


class Unreachable(Exception):
    """No connection could be made: nothing was sent."""


class ConnectionBroken(Exception):
    """The connection ended, or the response is malformed; `heard` if any byte was received."""

    def __init__(self, message: str, *, heard: bool) -> None:
        super().__init__(message)
        self.heard = heard


class Unsendable(Exception):
    """The request violates the rules of HTTP: nothing was sent."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The host and port to connect to, and the addresses that are allowed."""

    host: str
    port: int
    allowed: frozenset[AddressScope]
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response: its status, its headers in lowercase, and the first bytes of its body."""

    status: int
    headers: dict[str, str]
    text: str


class Connection:
    """One connection, which sends one request after the other.

    - `fresh`: it can take another request: open, not idle for long, and not old, so that the name
      is resolved again from time to time.
    - `used`: it has received a response before, so the server may have closed it meanwhile.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._opened = self._answered = time.monotonic()
        self._heard = False
        self.used = False

    @property
    def fresh(self) -> bool:
        now = time.monotonic()
        return (
            self._http.our_state is h11.IDLE
            and not self._reader.at_eof()
            and not self._writer.is_closing()
            and now - self._answered < IDLE_SECONDS_MAX
            and now - self._opened < AGE_SECONDS_MAX
        )

    def write(self, target: bytes, headers: Headers, body: bytes) -> None:
        """Writes a request. Raises Unsendable if it is invalid; nothing is written then."""
        try:
            request = h11.Request(method=b"POST", target=target, headers=list(headers))
            events = (request, h11.Data(data=body), h11.EndOfMessage())
            parts = [self._http.send(event) or b"" for event in events]
        except h11.LocalProtocolError as error:
            raise Unsendable(str(error)) from error
        self._heard = False
        self._writer.write(b"".join(parts))

    async def response(self) -> Response:
        """Reads the response of the request. Raises ConnectionBroken if there is none."""
        head = await self._head()
        text = b""
        # The body is only shown to operators, so its length and errors do not matter.
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                text = await self._body()
        except (TimeoutError, ConnectionBroken):
            pass
        if self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._http.start_next_cycle()
            self.used = True
            self._answered = time.monotonic()
        return Response(
            status=head.status_code,
            headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
            text=text.decode("utf-8", "replace"),
        )

    async def _head(self) -> h11.Response:
        for _ in range(INTERIM_MAX):
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionBroken("the response is not HTTP", heard=True)
        raise ConnectionBroken(f"{INTERIM_MAX} interim responses and no final one", heard=True)

    async def _body(self) -> bytes:
        found = bytearray()
        while len(found) < BODY_BYTES_MAX:
            event = await self._event()
            if not isinstance(event, h11.Data):
                break
            found += event.data
        return bytes(found[:BODY_BYTES_MAX])

    async def _event(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._read())
        except h11.RemoteProtocolError as error:
            # A connection that ends too early violates the protocol too.
            why = (
                f"the response is not HTTP: {error}" if self._heard else "it closed the connection"
            )
            raise ConnectionBroken(why, heard=self._heard) from error
        except OSError as error:
            raise ConnectionBroken(
                f"the connection broke: {_words(error)}", heard=self._heard
            ) from error
        return event

    async def _read(self) -> bytes:
        data = await self._reader.read(BODY_BYTES_MAX)
        self._heard = self._heard or bool(data)
        return data

    def close(self) -> None:
        """Closes the connection at once."""
        self._writer.transport.abort()


async def opened(place: Endpoint) -> Connection:
    """Connects to one of the addresses of the endpoint, the first that accepts."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            sock = await _connected(place, await _addresses(place))
            return await _connection(place, sock)
    except TimeoutError:
        why = f"{place} accepted no connection within {CONNECT_SECONDS_MAX:g} s"
        raise Unreachable(why) from None


async def _addresses(place: Endpoint) -> list[tuple[int, tuple[object, ...]]]:
    """All addresses of the name. Raises Unreachable if one of them is not allowed."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{place.host} cannot be resolved: {_words(error)}") from error
    for _, _, _, _, where in found:
        reach = reach_of(str(where[0]))
        if reach not in place.allowed:
            raise Unreachable(_not_allowed(place, str(where[0]), reach))
    return [(family, where) for family, _, _, _, where in found]


def _not_allowed(place: Endpoint, address: str, reach: AddressScope) -> str:
    if reach is AddressScope.PUBLIC:
        return f"{place.host} has the public address {address}: use https"
    if reach is AddressScope.PRIVATE:
        return f"{place.host} has the private address {address}: private_addresses is not set"
    return f"{place.host} has the address {address}, which is never allowed"


async def _connected(
    place: Endpoint, addresses: list[tuple[int, tuple[object, ...]]]
) -> socket.socket:
    trouble = "it has no address"
    for family, where in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A numeric address: nothing is resolved here.
            await asyncio.get_running_loop().sock_connect(sock, where)
        except OSError as error:
            sock.close()
            trouble = _words(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise Unreachable(f"{place} accepts no connection: {trouble}")


async def _connection(place: Endpoint, sock: socket.socket) -> Connection:
    try:
        reader, writer = await asyncio.open_connection(
            sock=sock,
            limit=HEAD_BYTES_MAX,
            ssl=place.tls,
            server_hostname=place.host if place.tls else None,
        )
    except ssl.SSLError as error:
        raise Unreachable(f"{place} cannot be trusted: {_words(error)}") from error
    except OSError as error:
        raise Unreachable(f"{place} closed the connection: {_words(error)}") from error
    return Connection(reader, writer)


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return str(error.reason)
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)

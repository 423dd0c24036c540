"""Posting to one place by HTTP/1.1, over a connection to exactly the address that was checked.

    resolve the name, once ─▶ check every address ─▶ connect to one of those ─▶ TLS with the name

There is no second look-up between the check and the connection, so a name that resolves to
something else a moment later changes nothing.
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
    """No connection came about: nothing was sent."""


class ConnectionBroken(Exception):
    """The connection ended, or what came over it cannot be read; `heard` if anything came."""

    def __init__(self, message: str, *, heard: bool) -> None:
        super().__init__(message)
        self.heard = heard


class Unsendable(Exception):
    """The request breaks the rules of HTTP: nothing was sent."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, and which addresses it may have."""

    host: str
    port: int
    allowed: frozenset[AddressScope]
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: its status, its headers by small letters, and how its body begins."""

    status: int
    headers: dict[str, str]
    text: str


class Connection:
    """One connection, on which one request is posted after the other.

    - `fresh` says that it can take another one: open, not idle for long, and not old, so that the
      name is resolved again now and then.
    - `used` says that it was answered before: then it may have been closed meanwhile.
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
        """Begin a request; it is under way when this returns. Unsendable: nothing is."""
        try:
            request = h11.Request(method=b"POST", target=target, headers=list(headers))
            events = (request, h11.Data(data=body), h11.EndOfMessage())
            parts = [self._http.send(event) or b"" for event in events]
        except h11.LocalProtocolError as error:
            raise Unsendable(str(error)) from error
        self._heard = False
        self._writer.write(b"".join(parts))

    async def response(self) -> Response:
        """The answer to what was written. Broken: there is none."""
        head = await self._head()
        text = b""
        # What it says beyond its status is for people: neither its length nor its pace matter.
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
                raise ConnectionBroken("it answered with something else", heard=True)
        raise ConnectionBroken(f"{INTERIM_MAX} interim answers and no other", heard=True)

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
            # A connection that ends too early is a breach of the protocol too.
            why = f"it answered what is no HTTP: {error}" if self._heard else "it hung up"
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
        """End it at once, whatever is under way."""
        self._writer.transport.abort()


async def opened(place: Endpoint) -> Connection:
    """A connection to one of the place's addresses, the first that takes it."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            sock = await _connected(place, await _addresses(place))
            return await _connection(place, sock)
    except TimeoutError:
        why = f"{place} took no connection within {CONNECT_SECONDS_MAX:g} s"
        raise Unreachable(why) from None


async def _addresses(place: Endpoint) -> list[tuple[int, tuple[object, ...]]]:
    """Every address that the name has; Unreachable if one of them is not allowed."""
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
        return f"{place.host} has the public address {address}: over a public network use https"
    if reach is AddressScope.PRIVATE:
        return f"{place.host} has the private address {address}: private_addresses is not set"
    return f"{place.host} has the address {address}, which no receiver may have"


async def _connected(
    place: Endpoint, addresses: list[tuple[int, tuple[object, ...]]]
) -> socket.socket:
    trouble = "it has no address"
    for family, where in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # An address made of numbers: nothing is resolved here.
            await asyncio.get_running_loop().sock_connect(sock, where)
        except OSError as error:
            sock.close()
            trouble = _words(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise Unreachable(f"{place} takes no connection: {trouble}")


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
        raise Unreachable(f"{place} ended the connection: {_words(error)}") from error
    return Connection(reader, writer)


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return str(error.reason)
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)

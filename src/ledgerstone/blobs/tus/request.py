"""A request of the tus protocol: its headers, read and checked, and its body, bounded."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

VERSION = "1.0.0"
CONTENT_TYPE = "application/offset+octet-stream"
ALGORITHMS = ("sha256", "sha1", "sha512", "md5")
METADATA_CHARS_MAX = 4096
CONCAT_CHARS_MAX = 60_000
PARTS_MAX = 500
HEADERS_MAX = 100
PARTIAL, FINAL = "partial", "final;"
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_UPLOAD = re.compile(r"(.*)/(upload-[0-9a-f]{57})\Z", re.DOTALL)


class Refused(Exception):
    """The request ends with this status and these words."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        self.headers = dict(headers or {})


class Disconnected(Exception):
    """The client is gone."""


class Silent(Disconnected):
    """The client is there, and sends nothing any more."""


class Stopping(Disconnected):
    """The server ends: the client goes on with another one."""


class Checksum(msgspec.Struct, frozen=True):
    """What the client says that the body of a request is."""

    algorithm: str
    digest: bytes


class UploadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as `authorize` sees it.

    - `method` is the one that is meant, also where another one carried it.
    - `headers` have small letters; `upload_id` is None for a request that creates an upload.
    - `client` is the address that the server saw.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    client: str | None
    upload_id: str | None

    @property
    def base(self) -> str:
        """The path under which uploads are created."""
        found = _UPLOAD.match(self.path)
        # It becomes a header: the path is decoded, and may hold anything.
        return quote((found[1] if found else self.path).rstrip("/"))

    def number(self, name: str) -> int:
        """A header that is a number; 400 without it."""
        given = self.headers.get(name, "")
        if not _NUMBER.match(given):
            raise Refused(400, f"{name} is missing or no number")
        return int(given)

    def number_if_given(self, name: str) -> int | None:
        """A header that is a number; None without it."""
        return self.number(name) if name in self.headers else None

    @property
    def body_size(self) -> int | None:
        """How long the body is, where the client says so."""
        return self.number_if_given("content-length")

    @property
    def upload_size(self) -> int | None:
        """The size of an upload that is created; None: the client tells it later."""
        deferred = self.headers.get("upload-defer-length")
        if deferred is None:
            return self.number("upload-length")
        if deferred != "1" or "upload-length" in self.headers:
            raise Refused(400, "upload-defer-length is 1, and excludes upload-length")
        return None

    @property
    def has_content(self) -> bool:
        """Whether the body is a piece of the upload."""
        named = self.headers.get("content-type", "").partition(";")[0]
        return named.strip().lower() == CONTENT_TYPE

    @property
    def checksum(self) -> Checksum | None:
        """What the body has to be; 400 for an algorithm that is not known."""
        given = self.headers.get("upload-checksum")
        if given is None:
            return None
        algorithm, _, encoded = given.partition(" ")
        digest = _decoded(encoded)
        if algorithm not in ALGORITHMS or not digest:
            raise Refused(400, f"upload-checksum is not one of {', '.join(ALGORITHMS)} in base64")
        return Checksum(algorithm, digest)

    @property
    def concat(self) -> str | None:
        """`partial`, or the final upload and its parts."""
        given = self.headers.get("upload-concat")
        if given is None or given == PARTIAL:
            return given
        known = given.startswith(FINAL) and given.isascii()
        if not known or len(given) > CONCAT_CHARS_MAX:
            raise Refused(400, "upload-concat is neither partial nor final, or too long")
        return given

    @property
    def metadata(self) -> str | None:
        """What the client says of the upload, checked and as it said it."""
        given = self.headers.get("upload-metadata")
        if given:
            metadata_of(given)
        return given or None


def request_of(scope: Scope) -> UploadRequest:
    """The request of an ASGI scope; 400 for headers that cannot be read."""
    if len(scope["headers"]) > HEADERS_MAX:
        raise Refused(431, "too many headers")
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        known, words = name.decode("latin-1").lower(), value.decode("latin-1")
        if known in headers:
            if known.startswith(("upload-", "content-length", "tus-")):
                raise Refused(400, f"{known} is given twice")
            # As HTTP joins them: of two tokens, `authorize` is not shown the one that suits.
            words = f"{headers[known]}, {words}"
        headers[known] = words
    root, path = scope.get("root_path", ""), scope["path"]
    whole = path if path.startswith(root) else root + path
    found = _UPLOAD.match(whole)
    override = headers.get("x-http-method-override")
    return UploadRequest(
        method=(override or scope["method"]).upper(),
        path=whole,
        headers=headers,
        client=scope["client"][0] if scope.get("client") else None,
        upload_id=found[2] if found else None,
    )


def metadata_of(given: str) -> dict[str, bytes]:
    """What the client says of an upload, by name; 400 for what cannot be read."""
    if len(given) > METADATA_CHARS_MAX:
        raise Refused(400, f"upload-metadata has more than {METADATA_CHARS_MAX} characters")
    found: dict[str, bytes] = {}
    for pair in given.split(","):
        name, _, encoded = pair.strip(" ").partition(" ")
        value = _decoded(encoded)
        if not name or not name.isascii() or not name.isprintable() or name in found:
            raise Refused(400, "upload-metadata has a name that is empty, no ASCII or there twice")
        if value is None:
            raise Refused(400, "upload-metadata has a value that is no base64")
        found[name] = value
    return found


def parts_of(concat: str) -> list[str]:
    """The uploads that a final one is made of; 400 for what is none."""
    words = concat.removeprefix(FINAL).split()
    found = [match[2] for word in words if (match := _UPLOAD.match(word))]
    if not words or len(found) < len(words) or len(words) > PARTS_MAX:
        raise Refused(400, f"upload-concat names no uploads, or more than {PARTS_MAX}")
    return found


class Bodies:
    """The bodies that are read now, each of which may stand still for so long."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._limits: set[asyncio.Timeout] = set()
        self._stopping = False

    def stop(self) -> None:
        """End them where they are."""
        self._stopping = True
        for limit in self._limits:
            # One whose time is over at this moment ends anyway.
            with suppress(RuntimeError):
                limit.reschedule(0)

    async def read(self, receive: Receive) -> AsyncIterator[bytes]:
        """A body as it comes; Disconnected if it ends early, Silent or Stopping why it does."""
        more = True
        while more:
            if self._stopping:
                raise Stopping
            limit = asyncio.timeout(self._seconds_max)
            try:
                async with limit:
                    self._limits.add(limit)
                    message = await receive()
            except TimeoutError as error:
                raise self._end() from error
            finally:
                self._limits.discard(limit)
            if message["type"] == "http.disconnect":
                raise Disconnected
            yield message.get("body", b"")
            more = message.get("more_body", False)

    def _end(self) -> Disconnected:
        return Stopping() if self._stopping else Silent()


def digest_of(checksum: Checksum) -> Any:
    """What computes a hash of this kind; it guards against accidents, not against attackers."""
    return hashlib.new(checksum.algorithm, usedforsecurity=False)


def _decoded(encoded: str) -> bytes | None:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None

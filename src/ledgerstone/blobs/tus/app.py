"""The tus protocol 1.0 as an ASGI application: create, append, terminate, join.

    POST ──▶ upload ──PATCH at the offset, as often as the connection breaks──▶ file ──▶ `finished`

What arrives is stored in pieces of a megabyte, each a transaction that compares the offset. So two
requests for one upload cannot mix: the later one is told 409, and asks where to go on.
"""

from __future__ import annotations

import asyncio
import hmac
import tempfile
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from inspect import isawaitable
from typing import IO, Any, TypeVar

from ledgerstone.blobs.store import BlobStore
from ledgerstone.blobs.tus.request import (
    ALGORITHMS,
    CONTENT_TYPE,
    PARTIAL,
    VERSION,
    Checksum,
    Disconnected,
    Receive,
    Refused,
    Scope,
    Send,
    UploadRequest,
    body_of,
    digest_of,
    parts_of,
    request_of,
)
from ledgerstone.blobs.tus.uploads import Finished, FinishedUpload, Upload, Uploads
from ledgerstone.errors import (
    LedgerstoneError,
    NotAllowedNow,
    NotFound,
    StoreBusy,
    StoreError,
    TooLarge,
)

T = TypeVar("T")

BUFFER_BYTES = 1_048_576
"""What is gathered of a body before it is stored."""
IDLE_SECONDS_MAX = 60.0
"""How long a body may stand still before its connection is given up."""
EXTENSIONS = "creation,creation-with-upload,checksum,expiration,termination,concatenation"
CHECKSUM_MISMATCH = 460
RETRY_SECONDS = "1"

Authorize = Callable[[UploadRequest], str | Awaitable[str | None] | None]
"""Answers who asks, by a name such as `user:7`; None refuses the request."""
Headers = dict[str, str]
_STATUS: tuple[tuple[type[LedgerstoneError], int], ...] = (
    (NotFound, 404),
    (NotAllowedNow, 409),
    (TooLarge, 413),
    (StoreBusy, 423),
    (StoreError, 503),
)


def _ignored(_: object, __: FinishedUpload) -> None:
    """Nobody wants to know."""


class UploadApp:
    """Takes uploads into a ledger; an ASGI application.

    - `authorize` is asked for every request but OPTIONS: an upload belongs to the name that it
      answered when the upload was created, is not there for any other, and its file has that owner.
    - `finished(tx, upload)` is called in the transaction that completes a file: rows that it writes
      commit with it. If it raises, the upload stays unfinished; the client's next request tries
      again.
    - It keeps no state in memory: requests of one upload may go to different processes.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        authorize: Authorize,
        finished: Finished = _ignored,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
    ) -> None:
        self._store = store
        self._uploads = Uploads(store, finished)
        self._authorize = authorize
        self._idle_seconds_max = idle_seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(scope["type"])
        try:
            status, headers = await self._answer(request_of(scope), receive)
            await _send(send, status, headers, b"")
        except Refused as refused:
            await _send(send, refused.status, refused.headers, refused.words.encode())
        except Disconnected:
            return
        except LedgerstoneError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
            headers = {"Retry-After": RETRY_SECONDS} if status in {423, 503} else {}
            # What a database says is not for strangers.
            words = error.code if isinstance(error, StoreError) else error.message
            await _send(send, status, headers, words.encode())

    async def _answer(self, request: UploadRequest, receive: Receive) -> tuple[int, Headers]:
        if request.method == "OPTIONS":
            return 204, self._abilities()
        if request.headers.get("tus-resumable") != VERSION:
            raise Refused(412, f"this is tus {VERSION}", {"Tus-Version": VERSION})
        owner = self._authorize(request)
        if isawaitable(owner):
            owner = await owner
        if owner is None:
            raise Refused(403, "not allowed")
        if request.upload_id is None:
            if request.method == "POST":
                return await self._create(request, owner, receive)
            raise Refused(405 if request.method != "HEAD" else 404, "no upload")
        upload = await _aside(self._uploads.get, request.upload_id, owner)
        if request.method == "HEAD":
            return await self._tell(upload)
        if request.method == "PATCH":
            return await self._patch(request, upload, receive)
        if request.method == "DELETE":
            await _aside(self._uploads.terminate, upload)
            return 204, {}
        raise Refused(405, "not allowed", {"Allow": "HEAD, PATCH, DELETE, OPTIONS"})

    def _abilities(self) -> Headers:
        return {
            "Tus-Version": VERSION,
            "Tus-Extension": EXTENSIONS,
            "Tus-Max-Size": str(self._store.state.settings.blob_bytes_max),
            "Tus-Checksum-Algorithm": ",".join(ALGORITHMS),
        }

    async def _create(
        self, request: UploadRequest, owner: str, receive: Receive
    ) -> tuple[int, Headers]:
        concat, metadata = request.concat, request.metadata
        if concat is not None and concat != PARTIAL:
            upload = await _aside(
                lambda: self._uploads.join(
                    parts_of(concat), owner=owner, metadata=metadata, concat=concat
                )
            )
            return 201, self._place(request, upload)
        size = request.number("upload-length")
        if request.body_size and not request.has_content:
            raise Refused(415, f"a body has the type {CONTENT_TYPE}")
        _check_fits(request, 0, size)
        upload = await _aside(
            lambda: self._uploads.create(
                owner=owner, total_size=size, metadata=metadata, concat=concat
            )
        )
        if request.has_content:
            upload = await self._store_body(request, upload, receive)
        upload = await _aside(self._uploads.finish, upload)
        return 201, self._place(request, upload) | {"Upload-Offset": str(upload.offset)}

    async def _tell(self, upload: Upload) -> tuple[int, Headers]:
        # The request that stored the last byte may have been killed before it completed the file.
        upload = await _aside(self._uploads.finish, upload)
        told = {
            "Upload-Offset": str(upload.offset),
            "Upload-Length": str(upload.total_size),
            "Cache-Control": "no-store",
        }
        said = {"Upload-Metadata": upload.metadata, "Upload-Concat": upload.concat}
        return 200, told | {name: words for name, words in said.items() if words} | _ends(upload)

    async def _patch(
        self, request: UploadRequest, upload: Upload, receive: Receive
    ) -> tuple[int, Headers]:
        if not request.has_content:
            raise Refused(415, f"a body has the type {CONTENT_TYPE}")
        if upload.joined:
            raise Refused(403, "an upload that was made of others takes no bytes")
        if request.number("upload-offset") != upload.offset:
            raise Refused(409, f"the upload is at {upload.offset}")
        upload = await self._store_body(request, upload, receive)
        upload = await _aside(self._uploads.finish, upload)
        return 204, {"Upload-Offset": str(upload.offset)} | _ends(upload)

    async def _store_body(self, request: UploadRequest, upload: Upload, receive: Receive) -> Upload:
        """Store the body behind the offset; what came before a disconnection is stored, too."""
        _check_fits(request, upload.offset, upload.total_size)
        checksum = request.checksum
        if checksum is not None:
            return await self._store_checked(checksum, upload, receive)
        buffer = bytearray()
        try:
            async for piece in body_of(receive, seconds_max=self._idle_seconds_max):
                buffer += piece
                if len(buffer) >= BUFFER_BYTES:
                    upload = await self._append(upload, buffer)
        except Disconnected:
            await self._append(upload, buffer)
            raise
        return await self._append(upload, buffer)

    async def _store_checked(self, checksum: Checksum, upload: Upload, receive: Receive) -> Upload:
        """Store a body that is what its checksum says, or nothing of it: 460."""
        digest, left = digest_of(checksum), upload.total_size - upload.offset
        with tempfile.SpooledTemporaryFile(BUFFER_BYTES) as spool:
            async for piece in body_of(receive, seconds_max=self._idle_seconds_max):
                left -= len(piece)
                if left < 0:
                    raise Refused(413, f"the upload has {upload.total_size} bytes")
                digest.update(piece)
                await _aside(spool.write, piece)
            if not hmac.compare_digest(digest.digest(), checksum.digest):
                raise Refused(CHECKSUM_MISMATCH, "the body is not what its checksum says")
            spool.seek(0)
            return await self._append_all(upload, spool)

    async def _append_all(self, upload: Upload, spool: IO[bytes]) -> Upload:
        while piece := await _aside(spool.read, BUFFER_BYTES):
            upload = await self._append(upload, bytearray(piece))
        return upload

    async def _append(self, upload: Upload, buffer: bytearray) -> Upload:
        """Store what was gathered, and empty the buffer."""
        if not buffer:
            return upload
        most = self._store.state.settings.slice_bytes
        pieces = [bytes(buffer[at : at + most]) for at in range(0, len(buffer), most)]
        buffer.clear()
        offset = await _aside(self._uploads.append, upload, upload.offset, pieces)
        return upload._replace(offset=offset)

    def _place(self, request: UploadRequest, upload: Upload) -> Headers:
        return {"Location": f"{request.base}/{upload.upload_id}"} | _ends(upload)


def _check_fits(request: UploadRequest, offset: int, total_size: int) -> None:
    """413 for a body that is longer than what is left of the upload."""
    if offset + (request.body_size or 0) > total_size:
        raise Refused(413, f"the upload has {total_size} bytes")


async def _aside(work: Callable[..., T], *arguments: Any) -> T:
    """The answer of a call that waits for a disk or a database, while the event loop goes on."""
    return await asyncio.to_thread(work, *arguments)


def _ends(upload: Upload) -> Headers:
    """When it expires, and which file it has become."""
    expires = {"Upload-Expires": formatdate(upload.expires_at_ms / 1000, usegmt=True)}
    return expires if upload.file_id is None else expires | {"Ledgerstone-File": upload.file_id}


async def _live(receive: Receive, send: Send) -> None:
    """Begin and end with the server: there is nothing to open or close."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    told = {"Tus-Resumable": VERSION, "Content-Type": "text/plain; charset=utf-8"} | headers
    if status != 204:  # noqa: PLR2004 - the status that has no body
        told["Content-Length"] = str(len(body))
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})

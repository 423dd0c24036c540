"""The tus protocol 1.0 as an ASGI application: create, append, terminate, join.

    POST ──▶ upload ──PATCH at the offset, as often as the connection breaks──▶ file ──▶ `finished`

What arrives is stored in pieces of a megabyte, each a transaction that compares the offset. So two
requests for one upload cannot mix: the later one is told 409, and asks where to go on.

Calls of the database run in a few threads of the application's own. The calls for one upload take
turns before they get a thread: a row that stays locked holds one thread, and no other upload.
"""

from __future__ import annotations

import asyncio
import hmac
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from email.utils import formatdate
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import IO, Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from ledgerstone.blobs.paths import told
from ledgerstone.blobs.store import BlobStore
from ledgerstone.blobs.tus.request import (
    ALGORITHMS,
    CONTENT_TYPE,
    PARTIAL,
    VERSION,
    Bodies,
    Checksum,
    Disconnected,
    Receive,
    Refused,
    Scope,
    Send,
    Silent,
    Stopping,
    UploadRequest,
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
    StoreFull,
    StoreLocked,
    TooLarge,
)

T = TypeVar("T")
Given = ParamSpec("Given")

BUFFER_BYTES = 1_048_576
"""What is gathered of a body before it is stored."""
IDLE_SECONDS_MAX = 60.0
"""How long a body may stand still before its connection is given up."""
THREADS_MAX = 4
"""Calls of the database at once: a few, so that connections are left for the application."""
FINISHING_MAX = 2
"""Files that are hashed, joined or told of at once: it takes long, and keeps no upload waiting."""
TURN_SECONDS_MAX = 5.0
"""How long a call waits for another one of the same upload."""
EXTENSIONS = (
    "creation,creation-defer-length,creation-with-upload,checksum,expiration,termination,"
    "concatenation"
)
UPLOAD_METHODS, PLACE_METHODS = "HEAD, PATCH, DELETE, OPTIONS", "POST, OPTIONS"
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
    (StoreLocked, 423),
    (StoreFull, 507),
    (StoreError, 503),
)
AGAIN = {423, 503, 507}
"""What ends by itself: the client is told to try again."""


def _ignored(_: object, __: FinishedUpload) -> None:
    """Nobody wants to know."""


class UploadApp:
    """Takes uploads into a ledger; an ASGI application.

    - `authorize` is asked for every request but OPTIONS: an upload belongs to the name that it
      answered when the upload was created, is not there for any other, and its file has that owner.
    - `finished(tx, upload)` is called in the transaction that completes a file: rows that it writes
      commit with it. If it raises, the upload stays unfinished; the client's next request tries
      again.
    - What counts is kept in the database: requests of one upload may go to different processes.
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
        self._bodies = Bodies(idle_seconds_max)
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="uploads")
        self._finishing = ThreadPoolExecutor(FINISHING_MAX, thread_name_prefix="uploads-finish")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def stop(self) -> None:
        """Take no more bytes, and store those that came: the clients are told 503.

        The event loop of the application calls it.
        """
        self._bodies.stop()

    def close(self) -> None:
        """Wait for the calls of the database that run."""
        for threads in (self._threads, self._finishing):
            threads.shutdown(cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(scope["type"])
        status, headers, words = await self._answered(scope, receive)
        if status is not None:
            # The answer to HEAD has no body, also where a server would send one.
            await _send(send, status, headers, b"" if scope["method"] == "HEAD" else words.encode())

    async def _answered(self, scope: Scope, receive: Receive) -> tuple[int | None, Headers, str]:
        """The status, headers and words of the answer; no status where nobody is there for it."""
        try:
            return *await self._answer(request_of(scope), receive), ""
        except Refused as refused:
            return refused.status, refused.headers, refused.words
        except Silent:
            return 408, {"Connection": "close"}, "nothing came any more"
        except Stopping:
            return 503, {"Connection": "close", "Retry-After": RETRY_SECONDS}, "the server stops"
        except Disconnected:
            return None, {}, ""
        except LedgerstoneError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
            headers = {"Retry-After": RETRY_SECONDS} if status in AGAIN else {}
            # What a database says is not for strangers.
            return status, headers, error.code if isinstance(error, StoreError) else error.message

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
            raise _not_allowed(request) if request.method != "HEAD" else Refused(404, "no upload")
        upload = await self._aside(self._uploads.get, request.upload_id, owner)
        if request.method == "HEAD":
            return await self._tell(upload)
        if request.method == "PATCH":
            return await self._patch(request, upload, receive)
        if request.method == "DELETE":
            await self._in_turn(self._threads, self._uploads.terminate, upload)
            return 204, {}
        raise _not_allowed(request)

    def _abilities(self) -> Headers:
        return {
            "Tus-Version": VERSION,
            "Tus-Extension": EXTENSIONS,
            "Tus-Max-Size": str(self._most(None)),
            "Tus-Checksum-Algorithm": ",".join(ALGORITHMS),
        }

    async def _create(
        self, request: UploadRequest, owner: str, receive: Receive
    ) -> tuple[int, Headers]:
        concat, metadata = request.concat, request.metadata
        if concat is not None and concat != PARTIAL:
            if request.body_size:
                raise Refused(400, "an upload that is made of others takes no bytes")
            join = partial(self._uploads.join, owner=owner, metadata=metadata, concat=concat)
            upload = await _in_thread(self._finishing, join, parts_of(concat))
            return 201, self._place(request, upload)
        size = request.upload_size
        if request.body_size and not request.has_content:
            raise Refused(415, f"a body has the type {CONTENT_TYPE}")
        self._check_fits(request, 0, size)
        # Before the upload is made, which would stay behind.
        checksum = request.checksum
        upload = await self._aside(
            lambda: self._uploads.create(
                owner=owner, total_size=size, metadata=metadata, concat=concat
            )
        )
        if request.has_content:
            upload = await self._store_body(upload, checksum, receive)
        upload = await self._finish(upload)
        return 201, self._place(request, upload) | {"Upload-Offset": str(upload.offset)}

    async def _tell(self, upload: Upload) -> tuple[int, Headers]:
        if upload.to_finish:
            # The request that stored the last byte may have been killed before it made the file.
            upload = await self._finish(upload)
        told = {
            "Upload-Offset": None if upload.joined and not upload.whole else str(upload.offset),
            "Upload-Length": None if upload.size is None else str(upload.size),
            "Upload-Defer-Length": "1" if upload.size is None else None,
            "Upload-Metadata": upload.metadata,
            "Upload-Concat": upload.concat,
        }
        return 200, {name: words for name, words in told.items() if words} | _ends(upload)

    async def _patch(
        self, request: UploadRequest, upload: Upload, receive: Receive
    ) -> tuple[int, Headers]:
        if upload.joined:
            raise Refused(403, "an upload that was made of others takes no bytes")
        if not request.has_content:
            raise Refused(415, f"a body has the type {CONTENT_TYPE}")
        if request.number("upload-offset") != upload.offset:
            raise Refused(409, f"the upload is at {upload.offset}")
        upload = upload._replace(told_size=request.number_if_given("upload-length"))
        self._check_fits(request, upload.offset, upload.size)
        upload = await self._store_body(upload, request.checksum, receive)
        upload = await self._finish(upload)
        return 204, {"Upload-Offset": str(upload.offset)} | _ends(upload)

    async def _store_body(
        self, upload: Upload, checksum: Checksum | None, receive: Receive
    ) -> Upload:
        """Store the body behind the offset; what came before a disconnection is stored, too."""
        if checksum is not None:
            return await self._store_checked(checksum, upload, receive)
        buffer = bytearray()
        try:
            async for piece in self._bodies.read(receive):
                buffer += piece
                if len(buffer) >= BUFFER_BYTES:
                    upload = await self._append(upload, buffer)
        except Disconnected:
            await self._append(upload, buffer)
            raise
        return await self._append(upload, buffer)

    async def _store_checked(self, checksum: Checksum, upload: Upload, receive: Receive) -> Upload:
        """Store a body that is what its checksum says, or nothing of it: 460."""
        digest = digest_of(checksum)
        left = self._most(upload.size) - upload.offset
        spools = Path(tempfile.gettempdir())
        with tempfile.SpooledTemporaryFile(BUFFER_BYTES) as spool, told(spools):
            async for piece in self._bodies.read(receive):
                left -= len(piece)
                if left < 0:
                    raise Refused(413, "the body is longer than what is left of the upload")
                digest.update(piece)
                await self._aside(spool.write, piece)
            if not hmac.compare_digest(digest.digest(), checksum.digest):
                raise Refused(CHECKSUM_MISMATCH, "the body is not what its checksum says")
            spool.seek(0)
            return await self._append_all(upload, spool)

    async def _append_all(self, upload: Upload, spool: IO[bytes]) -> Upload:
        while piece := await self._aside(spool.read, BUFFER_BYTES):
            upload = await self._append(upload, bytearray(piece))
        return await self._append(upload, bytearray())

    async def _append(self, upload: Upload, buffer: bytearray) -> Upload:
        """Store what was gathered, and the size if it came with that; empty the buffer."""
        if not buffer and upload.told_size is None:
            return upload
        most = self._store.state.settings.slice_bytes
        pieces = [bytes(buffer[at : at + most]) for at in range(0, len(buffer), most)]
        buffer.clear()
        return await self._in_turn(self._threads, self._uploads.append, upload, pieces)

    async def _finish(self, upload: Upload) -> Upload:
        """The upload as it is now, and a file if every byte is there."""
        if upload.to_finish:
            return await self._in_turn(self._finishing, self._uploads.finish, upload)
        return await self._aside(self._uploads.get, upload.upload_id, upload.owner or "")

    async def _in_turn(
        self,
        threads: Executor,
        work: Callable[Concatenate[Upload, Given], T],
        upload: Upload,
        *arguments: Given.args,
        **named: Given.kwargs,
    ) -> T:
        """The answer of a call that may wait for another one of this upload: 423 after a while."""
        turn = self._turns.setdefault(upload.upload_id, asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_SECONDS_MAX):
                await turn.acquire()
        except TimeoutError as error:
            headers = {"Retry-After": RETRY_SECONDS}
            raise Refused(423, "another request is busy with this upload", headers) from error
        try:
            return await _in_thread(threads, work, upload, *arguments, **named)
        finally:
            turn.release()

    async def _aside(
        self, work: Callable[Given, T], *arguments: Given.args, **named: Given.kwargs
    ) -> T:
        return await _in_thread(self._threads, work, *arguments, **named)

    def _most(self, size: int | None) -> int:
        """What an upload may have: its size, where that is known, and never more than a file."""
        most = self._store.state.settings.blob_bytes_max
        return most if size is None else min(size, most)

    def _check_fits(self, request: UploadRequest, offset: int, size: int | None) -> None:
        """413 for a body that is longer than what is left of the upload."""
        most = self._most(size)
        if offset + (request.body_size or 0) > most:
            raise Refused(413, f"the upload has at most {most} bytes")

    def _place(self, request: UploadRequest, upload: Upload) -> Headers:
        return {"Location": f"{request.base}/{upload.upload_id}"} | _ends(upload)


async def _in_thread(
    threads: Executor, work: Callable[Given, T], *arguments: Given.args, **named: Given.kwargs
) -> T:
    """The answer of a call that waits for a disk or a database, while the loop goes on."""
    loop, context = asyncio.get_running_loop(), copy_context()
    call = partial(context.run, work, *arguments, **named)
    return await loop.run_in_executor(threads, call)


def _not_allowed(request: UploadRequest) -> Refused:
    allowed = PLACE_METHODS if request.upload_id is None else UPLOAD_METHODS
    return Refused(405, "not allowed", {"Allow": allowed})


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
    told = {"Tus-Resumable": VERSION, "Cache-Control": "no-store"} | headers
    if body:
        told["Content-Type"] = "text/plain; charset=utf-8"
    if status != 204:  # noqa: PLR2004 - the status that has no body
        told["Content-Length"] = str(len(body))
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})

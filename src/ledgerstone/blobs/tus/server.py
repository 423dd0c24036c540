"""The endpoint of uploads on a server of this process, as `ledgerstone up` runs it.

It runs on uvicorn, in a thread with an event loop of its own. Everyone who has the token of the
settings may upload.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from ledgerstone.blobs.store import BlobStore
from ledgerstone.blobs.tus.app import Authorize, UploadApp
from ledgerstone.blobs.tus.request import Refused, UploadRequest
from ledgerstone.errors import BadInput, Unsupported
from ledgerstone.settings.blobs import BlobSettings

if TYPE_CHECKING:
    import uvicorn

PATH = "/files"
OWNER = "uploads"
"""Owns what is uploaded here."""
CONNECTIONS_MAX = 64
"""More are told 503: each takes up to four megabytes."""


class UploadServer:
    """Takes uploads at the address of the settings; a context manager.

    - It listens when its block begins; what cannot be is BadInput, or Unsupported without uvicorn.
    - `ask_to_stop` ends the bodies that come in: what came of them is stored.
    - Its block ends when the calls of the database are done that it began, or after the grace.
    """

    def __init__(self, store: BlobStore, token: str, *, grace_seconds: float) -> None:
        self._settings = store.state.settings
        self._app = UploadApp(store, authorize=_bearer(token))
        self._grace_seconds = grace_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="uploads-server")
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None
        self._address = (self._settings.upload_host, self._settings.upload_port)

    @property
    def url(self) -> str:
        """Where uploads are created."""
        host, port = self._address
        return f"http://[{host}]:{port}{PATH}" if ":" in host else f"http://{host}:{port}{PATH}"

    def __enter__(self) -> Self:
        self._server = _server(self._app, math.ceil(self._grace_seconds))
        self._socket = _listening(self._settings)
        self._address = self._socket.getsockname()[:2]
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.ask_to_stop()
        self._thread.join()
        self._app.close()

    def ask_to_stop(self) -> None:
        """Take no more; again, nothing happens."""
        assert self._server is not None
        if not self._server.should_exit:
            self._server.should_exit = True
            # A server that has failed has closed its loop.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._app.stop)

    def _run(self) -> None:
        assert self._server is not None
        assert self._socket is not None
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))


def upload_server(store: BlobStore, *, grace_seconds: float) -> UploadServer | None:
    """The server of the settings; None where they have no token."""
    token = store.state.settings.upload_token
    return None if token is None else UploadServer(store, token, grace_seconds=grace_seconds)


def _server(app: UploadApp, grace_seconds: int) -> uvicorn.Server:
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        message = "blobs.upload_token is set, and uvicorn, which takes uploads, is not installed"
        raise Unsupported(message, hint="install ledgerstone[http]") from error
    return uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=grace_seconds,
        )
    )


def _listening(settings: BlobSettings) -> socket.socket:
    host, port = settings.upload_host, settings.upload_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        message = f"uploads cannot be taken at {host}:{port}: {error.strerror or error}"
        raise BadInput(message, hint="set blobs.upload_host and blobs.upload_port") from error


def _bearer(token: str) -> Authorize:
    wanted = f"Bearer {token}".encode()

    def authorize(request: UploadRequest) -> str:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, wanted):
            words = "the bearer token is missing or wrong"
            raise Refused(401, words, {"WWW-Authenticate": "Bearer"})
        if request.base != PATH:
            raise Refused(404, f"uploads are taken at {PATH}")
        return OWNER

    return authorize

"""A program of the tests: the endpoint of uploads on a real server, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import uvicorn

from ledgerstone import Ledger
from ledgerstone.blobs.tus import FinishedUpload, UploadApp, UploadRequest
from ledgerstone.settings import Settings


def who(request: UploadRequest) -> str | None:
    """The user is named by a header; one of them is not let in."""
    name = request.headers.get("x-user", "ann")
    return None if name == "mallory" else name


def arrived(tx: Any, upload: FinishedUpload) -> None:
    """Publish that a file is there; fail once if the client asks for it."""
    tx.outbox.publish("file.arrived", {"file": upload.file_id, "size": upload.size})
    once = upload.metadata.get("fail_once", b"").decode()
    if once and not Path(once).exists():
        Path(once).touch()
        raise RuntimeError(once)


def main() -> None:
    """Serve on a free port, which is told on stdout, until it is killed."""
    ledger = Ledger(settings=Settings.load())
    app = UploadApp(ledger.blobs, authorize=who, finished=arrived)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on")
    socket = config.bind_socket()
    socket.listen()
    sys.stdout.write(json.dumps({"ready": socket.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[socket])

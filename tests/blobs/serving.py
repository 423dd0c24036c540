"""The endpoint of uploads on a real server, and a client of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ledgerstone import Ledger
from ledgerstone.blobs.tus import UploadApp
from tests.blobs.tus_client import Client
from tests.harness.processes import WorkerProcess

SERVER = "tests.blobs.upload_server"


class Served(msgspec.Struct, frozen=True):
    """A server in a process of its own, and a client of it."""

    process: WorkerProcess
    client: Client

    @property
    def memory(self) -> int:
        """The most memory that the server ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@contextmanager
def serving(url: str, failpoint: str | None = None, /, **settings: object) -> Iterator[Served]:
    """A server that is gone at the end."""
    with WorkerProcess(url, SERVER, settings=settings, failpoint=failpoint) as process:
        yield Served(process, Client(int(process.ready())))


def read(url: str, file_id: str) -> bytes:
    """The bytes of a file."""
    with Ledger(url) as ledger:
        return b"".join(ledger.blobs.read(file_id))


def told(url: str) -> list[str]:
    """What was published of files that have arrived."""
    with Ledger(url) as ledger, ledger.reading() as tx:
        return [str(message.body) for message in tx.outbox.find().rows]


class Answer(NamedTuple):
    """What an application answers; no status where it says nothing."""

    status: int | None
    headers: dict[str, str]
    body: bytes


def asked_of(
    app: UploadApp, method: str, path: str, body: bytes = b"", silent: bool = False, /, **said: str
) -> Answer:
    """One request without a server; `silent`: the body never ends."""
    return asyncio.run(asked(app, method, path, body, silent, **said))


async def asked(
    app: UploadApp,
    method: str,
    path: str,
    body: bytes = b"",
    silent: bool | asyncio.Event = False,
    /,
    **said: str,
) -> Answer:
    """One request of an event loop; an event says that the body is read so far."""
    named = {"tus_resumable": "1.0.0"} | said
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": headers}
    given = [{"type": "http.request", "body": body, "more_body": silent is not False}]
    answers: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if not given:
            if isinstance(silent, asyncio.Event):
                silent.set()
            await asyncio.Event().wait()
        return given.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    await app(scope, receive, send)
    if not answers:
        return Answer(None, {}, b"")
    found = {name.decode(): value.decode() for name, value in answers[0]["headers"]}
    return Answer(answers[0]["status"], found, answers[1]["body"])

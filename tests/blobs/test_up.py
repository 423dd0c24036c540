"""`ledgerstone up` takes uploads by HTTP, beside its worker."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tusclient.client import TusClient

from ledgerstone import Ledger
from ledgerstone.blobs.tus import UploadApp
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.blobs.serving import Answer, asked, read
from tests.blobs.tus_client import BODY_TYPE, Client
from tests.cli.program import Program, Running
from tests.contract.blobs.contents import content, hash_of

TOKEN = "a-token-of-the-tests"
BEARER = f"Bearer {TOKEN}"
MEBIBYTE = 1_048_576
SETTINGS = {"LEDGERSTONE_BLOBS_UPLOAD_TOKEN": TOKEN, "LEDGERSTONE_BLOBS_UPLOAD_PORT": "0"}

pytestmark = pytest.mark.slow


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The command, in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Program(folder)


@contextmanager
def up(program: Program, url: str, **more: str) -> Iterator[tuple[Running, int]]:
    """The command, and the port at which it takes uploads."""
    with program.start("--url", url, "up", **(SETTINGS | more)) as running:
        running.says("takes uploads at")
        found = re.search(r"takes uploads at http://127.0.0.1:(\d+)/files", running.said)
        assert found is not None
        yield running, int(found[1])


def test_an_upload_of_the_clients_of_others(program: Program, migrated_home: Home) -> None:
    """The client of the tus project stores a file, which `blobs get` writes as it was."""
    data = content(3 * MEBIBYTE)

    with up(program, migrated_home.url) as (running, port):
        client = TusClient(f"http://127.0.0.1:{port}/files", headers={"Authorization": BEARER})
        client.uploader(file_stream=io.BytesIO(data), chunk_size=MEBIBYTE).upload()
        got = program.run("--url", migrated_home.url, "blobs", "get", hash_of(data), "-o", "a.bin")
        running.terminate()
        code = running.ended()

    assert (code, got.code) == (0, 0)
    assert (program.folder / "a.bin").read_bytes() == data


def test_it_ends_in_the_middle_of_an_upload(program: Program, migrated_home: Home) -> None:
    """After SIGTERM what has come is stored; the next process takes the rest from there."""
    data = content(6 * MEBIBYTE)
    with up(program, migrated_home.url) as (running, port):
        client = Client(port)
        path = client.create(len(data), authorization=BEARER)
        with client.sending(path, 0, data, sent=5 * MEBIBYTE // 2, authorization=BEARER) as answer:
            until(lambda: _offset(client, path) >= 2 * MEBIBYTE, what="two mebibytes")
            running.terminate()
            told = answer()
        code = running.ended()

    with up(program, migrated_home.url) as (running, port):
        client = Client(port)
        kept = _offset(client, path)
        client.patch(path, kept, data[kept:], authorization=BEARER)
        running.terminate()
        running.ended()

    assert (code, told.status) == (0, 503)
    assert 2 * MEBIBYTE <= kept <= 5 * MEBIBYTE // 2
    assert "Traceback" not in running.said
    assert read(migrated_home.url, hash_of(data)) == data


def test_a_body_that_the_end_of_the_server_meets(file_home: Home) -> None:
    """It is stored as far as it was read, and its client is told to try again; so is a later."""
    said = {"content_type": BODY_TYPE, "upload_offset": "0"}

    async def stopped(app: UploadApp) -> tuple[Answer, Answer, Answer]:
        made = await asked(app, "POST", "/files", upload_length="9")
        path, read_so_far = made.headers["location"], asyncio.Event()
        sending = asyncio.create_task(asked(app, "PATCH", path, b"abc", read_so_far, **said))
        await read_so_far.wait()
        app.stop()
        told = await sending
        later = await asked(app, "PATCH", path, b"def", **(said | {"upload_offset": "3"}))
        return told, later, await asked(app, "HEAD", path)

    with Ledger(file_home.url) as ledger:
        app = UploadApp(ledger.blobs, authorize=lambda _: "ann")
        told, later, there = asyncio.run(stopped(app))
        app.close()

    assert [told.status, later.status] == [503, 503]
    assert told.headers["retry-after"]
    assert there.headers["upload-offset"] == "3"


def test_who_may_upload(program: Program, file_home: Home) -> None:
    """Only a client that has the token, only under /files, and no more than a file may have."""
    small = {"LEDGERSTONE_BLOBS_BLOB_BYTES_MAX": "1000"}
    with up(program, file_home.url, **small) as (_, port):
        client = Client(port)
        nobody = client.request("POST", "/files", upload_length="5")
        wrong = client.request("POST", "/files", upload_length="5", authorization="Bearer x")
        named = {"upload_length": "5", "authorization": BEARER}
        elsewhere = client.request("POST", "/other", **named)
        large = client.request("POST", "/files", **(named | {"upload_length": "1001"}))
        body = {"content_type": BODY_TYPE} | named
        longer = client.request("POST", "/files", b"x" * 6, **body)
        made = client.request("POST", "/files", b"hello", **body)

    assert [nobody.status, wrong.status, elsewhere.status] == [401, 401, 404]
    assert nobody.headers["www-authenticate"] == "Bearer"
    assert [large.status, longer.status, made.status] == [413, 413, 201]


def test_no_uploads(program: Program, file_home: Home) -> None:
    """Without a token none are taken; what cannot be served is refused by name."""
    with program.start("--url", file_home.url, "up") as running:
        running.says("SIGTERM stops it")
        running.terminate()
        silent = running.ended()
    with up(program, file_home.url) as (_, port):
        taken = program.run(
            "--url",
            file_home.url,
            "up",
            **(SETTINGS | {"LEDGERSTONE_BLOBS_UPLOAD_PORT": str(port)}),
        )
    short = program.run("up", LEDGERSTONE_BLOBS_UPLOAD_TOKEN="short")
    program.hide("uvicorn")
    missing = program.run("--url", file_home.url, "up", **SETTINGS)

    assert (silent, "takes uploads" in running.said) == (0, False)
    assert (taken.code, short.code, missing.code) == (1, 1, 1)
    assert f"uploads cannot be taken at 127.0.0.1:{port}: Address already in use" in taken.err
    assert "BLOBS_UPLOAD_TOKEN: what was given is not allowed" in short.err
    assert "install ledgerstone[http]" in missing.err


def _offset(client: Client, path: str) -> int:
    return client.request("HEAD", path, authorization=BEARER).offset

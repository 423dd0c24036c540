"""Uploads by HTTP: the endpoint on a real server, and clients over real sockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from tusclient.client import TusClient

from ledgerstone import Ledger
from ledgerstone.blobs.tus import UploadApp
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.blobs.serving import asked_of, read, serving, told
from tests.blobs.tus_client import BODY_TYPE, Client, metadata
from tests.contract.blobs.contents import content, hash_of
from tests.contract.blobs.slices import rows
from tests.harness.limits import small_files
from tests.harness.sizes import sized

MEBIBYTE = 1_048_576
LARGE = sized(24, full=200) * MEBIBYTE
CUTS = 10
MEMORY_GROWTH_MAX = 16 * MEBIBYTE
DATA = content(300_000)
ID = hash_of(DATA)
HOUR = 3600

pytestmark = pytest.mark.slow


def send_the_rest(client: Client, path: str, data: bytes, *, step: int) -> None:
    """Go on from where the upload is, as often as it takes."""

    def send_some() -> bool:
        at = client.offset(path)
        # What was on its way when the connection broke may still be stored: then it is a 409.
        answer = client.patch(path, at, data[at : at + step])
        return answer.status == 204 and answer.offset == len(data)

    until(send_some, what="the end of the upload")


@pytest.mark.torture
def test_cut_off_ten_times(migrated_home: Home) -> None:
    """A large file whose connection breaks ten times arrives whole; memory stays flat."""
    data = b"".join(content(MEBIBYTE, seed) for seed in range(LARGE // MEBIBYTE))
    # SQLite's pages are not what is measured here.
    with serving(migrated_home.url, store_cache_kib=1024) as served:
        client = served.client
        client.patch(client.create(3 * MEBIBYTE), 0, data[: 3 * MEBIBYTE])
        before = served.memory
        path = client.create(len(data))

        for number in range(1, CUTS + 1):
            at = client.offset(path)
            goal = len(data) * number // (CUTS + 1)
            client.cut_off(path, at, data[at:], sent=max(0, goal - at))
        send_the_rest(client, path, data, step=len(data))
        end = client.request("HEAD", path)
        grown = served.memory - before

    assert end.headers["ledgerstone-file"] == hash_of(data)
    assert hash_of(read(migrated_home.url, hash_of(data))) == hash_of(data)
    assert len(told(migrated_home.url)) == 2
    assert grown < MEMORY_GROWTH_MAX


def test_two_requests_at_once(migrated_home: Home) -> None:
    """Of two requests at one offset one is stored and the other is told 409, on each database."""
    first, second = content(5 * MEBIBYTE, 1), content(5 * MEBIBYTE, 2)
    with serving(migrated_home.url) as served, ThreadPoolExecutor(2) as pool:
        client = served.client
        path = client.create(len(first))

        answers = [pool.submit(client.patch, path, 0, data) for data in (first, second)]
        statuses = [answer.result().status for answer in answers]
        end = client.request("HEAD", path)

    winner = first if statuses[0] == 204 else second
    assert sorted(statuses) == [204, 409]
    assert end.headers["ledgerstone-file"] == hash_of(winner)
    assert read(migrated_home.url, hash_of(winner)) == winner


@pytest.mark.parametrize(
    ("failpoint", "disk"),
    [
        ("transaction.before_commit=kill@4", False),
        ("transaction.before_commit=kill@6", False),
        ("transaction.after_commit=kill@6", False),
        ("blobs.assembled=kill", True),
        ("blobs.intended=kill", True),
        ("blobs.renamed=kill", True),
        ("transaction.after_commit=kill@7", True),
    ],
)
def test_the_server_is_killed(
    migrated_home: Home, tmp_path: Path, failpoint: str, disk: bool
) -> None:
    """A server that dies at any step loses nothing that it confirmed, and tells of a file once."""
    data = content(4 * MEBIBYTE)
    terms = {"blobs_folder": str(tmp_path / "files")} | (
        {"blobs_disk_bytes_min": 1} if disk else {}
    )
    confirmed = 0
    with serving(migrated_home.url, failpoint, **terms) as served:
        path = served.client.create(len(data))
        with pytest.raises((OSError, HTTPException)):
            for at in range(0, len(data), MEBIBYTE):
                confirmed = served.client.patch(path, at, data[at : at + MEBIBYTE]).offset

    with serving(migrated_home.url, **terms) as served:
        found = served.client.offset(path)
        if found < len(data):
            send_the_rest(served.client, path, data, step=MEBIBYTE)
        end = served.client.request("HEAD", path)

    assert found >= confirmed
    assert end.headers["ledgerstone-file"] == hash_of(data)
    assert len(told(migrated_home.url)) == 1
    kept = [each.name for each in (tmp_path / "files").rglob("*") if each.is_file()]
    assert [name for name in kept if name != "lock"] == [hash_of(data)] * disk
    assert rows(migrated_home, "blob_slices") == (0 if disk else 16)
    assert rows(migrated_home, "blobs") == 1


def test_a_path_that_is_no_header(client: Client) -> None:
    """What a client puts into the path cannot become a header of the answer."""
    made = client.request("POST", "/files%0d%0aX-Evil:%20yes/%c3%a4", upload_length="5")

    assert made.status == 201
    assert "x-evil" not in made.headers
    assert client.offset(made.headers["location"]) == 0


def test_a_client_of_others(client: Client, file_home: Home) -> None:
    """A client that others wrote uploads a file in pieces, with checksums and metadata."""
    there = TusClient(f"http://127.0.0.1:{client.port}/files", headers={"X-User": "ann"})
    uploader = there.uploader(
        file_stream=io.BytesIO(DATA),
        chunk_size=70_000,
        metadata={"filename": "a.bin", "filetype": "image/png"},
        upload_checksum=True,
    )

    uploader.upload()

    assert read(file_home.url, ID) == DATA
    with Ledger(file_home.url) as ledger:
        found = ledger.blobs.get(ID)
        owners = ledger.run(lambda tx: tx.blobs.owners(ID))
    assert found is not None
    assert (found.mime, owners) == ("image/png", ["ann"])


def test_a_client_of_others_goes_on(client: Client, file_home: Home) -> None:
    """Another client of others goes on where the first one stopped."""
    there = TusClient(f"http://127.0.0.1:{client.port}/files", headers={"X-User": "ann"})
    first = there.uploader(file_stream=io.BytesIO(DATA), chunk_size=70_000)
    first.upload(stop_at=140_000)

    second = there.uploader(file_stream=io.BytesIO(DATA), chunk_size=70_000, url=first.url)
    begun_at = second.offset
    second.upload()

    assert begun_at == 140_000
    assert read(file_home.url, ID) == DATA


def test_what_it_can(client: Client) -> None:
    """OPTIONS tells the version, the extensions and the limits; another version is refused."""
    able = client.request("OPTIONS", "/files")
    other = client.request("POST", "/files", upload_length="1", tus_resumable="0.2.2")

    assert able.status == 204
    assert able.headers["tus-version"] == "1.0.0"
    assert able.headers["tus-max-size"] == "10737418240"
    assert able.headers["tus-extension"].split(",") == [
        "creation",
        "creation-defer-length",
        "creation-with-upload",
        "checksum",
        "expiration",
        "termination",
        "concatenation",
    ]
    assert "sha1" in able.headers["tus-checksum-algorithm"].split(",")
    assert (other.status, other.headers["tus-version"]) == (412, "1.0.0")


def test_create_and_ask(client: Client) -> None:
    """An upload tells its offset, length and metadata; a repeated HEAD changes nothing."""
    said = metadata(filename="ä.txt")
    path = client.create(len(DATA), upload_metadata=said)
    client.patch(path, 0, DATA[:1000])

    for _ in range(2):
        found = client.request("HEAD", path)
        assert (found.status, found.offset, found.body) == (200, 1000, b"")
        assert found.headers["upload-length"] == str(len(DATA))
        assert found.headers["upload-metadata"] == said
        assert found.headers["cache-control"] == "no-store"
        assert found.headers["upload-expires"].endswith("GMT")


def test_created_with_its_bytes(client: Client, file_home: Home) -> None:
    """A POST with a body stores it; an empty file is finished when it is created."""
    said = {"upload_length": str(len(DATA)), "content_type": BODY_TYPE}
    whole = client.request("POST", "/files", DATA, **said)
    empty = client.request("POST", "/files", upload_length="0")

    assert (whole.status, whole.offset) == (201, len(DATA))
    assert (empty.status, empty.offset) == (201, 0)
    assert read(file_home.url, ID) == DATA
    assert read(file_home.url, hash_of(b"")) == b""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"upload_length": "-1"}, 400),
        ({"upload_length": "1e3"}, 400),
        ({"upload_length": "9" * 30}, 400),
        ({"upload_length": str(10_737_418_241)}, 413),
        ({"upload_length": "1", "upload_metadata": "name ???"}, 400),
        ({"upload_length": "1", "upload_metadata": "a,a"}, 400),
        ({"upload_length": "1", "upload_metadata": "a " + "A" * 5000}, 400),
        ({"upload_concat": "final;/files/none"}, 400),
        ({"upload_concat": "whole"}, 400),
        ({"upload_concat": "final;/files/\xe4"}, 400),
        ({"upload_length": "9", "content_type": "text/plain", "body": "x"}, 415),
        ({"upload_length": "0", "content_type": BODY_TYPE, "body": "x"}, 413),
        ({"upload_length": "1", "x_user": "mallory"}, 403),
    ],
)
def test_no_such_upload(
    client: Client, file_home: Home, headers: dict[str, str], status: int
) -> None:
    """A request that could create nothing is refused, and leaves nothing."""
    body = headers.get("body", "").encode()
    said = {name: value for name, value in headers.items() if name != "body"}

    assert client.request("POST", "/files", body, **said).status == status
    assert (rows(file_home, "blobs"), rows(file_home, "blob_uploads")) == (0, 0)


def test_patches_that_are_refused(client: Client) -> None:
    """A wrong offset, type or length is told, and nothing is stored."""
    path = client.create(1000)

    statuses = [
        client.patch(path, 5, b"x").status,
        client.patch(path, 0, b"x", content_type="text/plain").status,
        client.patch(path, 0, b"x" * 1001).status,
        client.request("PATCH", path, b"x", content_type=BODY_TYPE).status,
        client.request("PUT", path, b"x").status,
        client.patch("/files/upload-" + "0" * 57, 0, b"x").status,
        client.request("HEAD", "/files").status,
    ]

    assert statuses == [409, 415, 413, 400, 405, 404, 404]
    assert client.offset(path) == 0


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "md5"])
def test_checksums(client: Client, algorithm: str) -> None:
    """A piece that is not what its checksum says is told 460, and nothing of it is stored."""
    path = client.create(len(DATA))
    right = base64.b64encode(hashlib.new(algorithm, DATA).digest()).decode()

    wrong = client.patch(path, 0, DATA[:-1] + b"?", upload_checksum=f"{algorithm} {right}")
    at = client.offset(path)
    unknown = client.patch(path, 0, DATA, upload_checksum=f"crc32 {right}")
    good = client.patch(path, 0, DATA, upload_checksum=f"{algorithm} {right}")

    assert (wrong.status, at, unknown.status) == (460, 0, 400)
    assert (good.status, good.headers["ledgerstone-file"]) == (204, ID)


def test_terminated(client: Client, file_home: Home) -> None:
    """A terminated upload is gone with its bytes; the file of a finished one stays."""
    begun, finished = client.create(len(DATA)), client.create(len(DATA))
    client.patch(begun, 0, DATA[:5000])
    client.patch(finished, 0, DATA)

    statuses = [client.request("DELETE", path).status for path in (begun, finished, begun)]

    assert statuses == [204, 204, 404]
    assert client.request("HEAD", begun).status == 404
    assert rows(file_home, "blob_uploads") == 0
    assert read(file_home.url, ID) == DATA


def test_joined(client: Client, file_home: Home) -> None:
    """Parts that were uploaded side by side are joined; one that is not whole is not."""
    half = len(DATA) // 2
    paths = [client.create(half, upload_concat="partial") for _ in range(2)]
    joined = f"final;{paths[0]} http://127.0.0.1:{client.port}{paths[1]}"
    client.patch(paths[0], 0, DATA[:half])
    early = client.request("POST", "/files", upload_concat=joined)
    client.patch(paths[1], 0, DATA[half:])

    made = client.request("POST", "/files", upload_concat=joined)
    found = client.request("HEAD", made.headers["location"])
    more = client.patch(made.headers["location"], len(DATA), b"")

    assert (early.status, made.status, more.status) == (409, 201, 403)
    assert found.headers["upload-concat"] == joined
    assert found.headers["upload-length"] == str(len(DATA))
    assert read(file_home.url, ID) == DATA
    assert len(told(file_home.url)) == 1


def test_uploads_of_others(client: Client) -> None:
    """An upload is not there for anybody but its owner."""
    path, other = client.create(1000), Client(client.port, user="bob")

    statuses = [
        other.request("HEAD", path).status,
        other.patch(path, 0, b"x").status,
        other.request("DELETE", path).status,
        other.request("POST", "/files", upload_concat=f"final;{path}").status,
    ]

    assert statuses == [404] * 4
    assert client.offset(path) == 0


def test_a_proxy_that_knows_few_methods(client: Client) -> None:
    """The method may stand in a header."""
    path = client.create(5)
    said = {"content_type": BODY_TYPE, "upload_offset": "0", "x_http_method_override": "PATCH"}

    answer = client.request("POST", path, b"abcde", **said)

    assert (answer.status, answer.offset) == (204, 5)


def test_telling_of_a_file_fails(client: Client, file_home: Home, tmp_path: Path) -> None:
    """If the application's own rows fail, the next request finishes the upload."""
    path = client.create(len(DATA), upload_metadata=metadata(fail_once=str(tmp_path / "failed")))

    failed = client.patch(path, 0, DATA)
    before = told(file_home.url)
    asked = client.request("HEAD", path)

    assert (failed.status, before) == (500, [])
    assert asked.headers["ledgerstone-file"] == ID
    assert len(told(file_home.url)) == 1


def test_expired(file_home: Home, clock: ManualClock) -> None:
    """An upload that nobody continues is told no more, and is removed with its bytes."""
    with Ledger(file_home.url, clock=clock) as ledger:
        app = UploadApp(ledger.blobs, authorize=lambda _: "ann")
        path = asked_of(app, "POST", "/files", upload_length="10")[1]["location"]
        said = {"content_type": BODY_TYPE, "upload_offset": "0"}
        stored = asked_of(app, "PATCH", path, b"abc", **said)[0]
        clock.advance(25 * HOUR)
        gone = asked_of(app, "HEAD", path)[0]
        ledger.blobs.collect()

    assert (stored, gone) == (204, 404)
    names = ("blobs", "blob_slices", "blob_uploads")
    assert [rows(file_home, name) for name in names] == [0, 0, 0]


def test_a_silent_client(file_home: Home) -> None:
    """A client that sends nothing more is given up, and what it sent is stored."""
    with Ledger(file_home.url) as ledger:
        app = UploadApp(ledger.blobs, authorize=lambda _: "ann", idle_seconds_max=0.01)
        path = asked_of(app, "POST", "/files", upload_length="10")[1]["location"]
        said = {"content_type": BODY_TYPE, "upload_offset": "0"}
        answer = asked_of(app, "PATCH", path, b"abc", True, **said)
        offset = asked_of(app, "HEAD", path)[1]["upload-offset"]

    assert (answer[0], answer[1]["connection"], offset) == (408, "close", "3")


class BreaksOff(ThreadPoolExecutor):
    """The server cancels the request when so many calls have begun, which go on."""

    def __init__(self, at: int) -> None:
        super().__init__(1)
        self.left = at

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self.left -= 1
        if self.left == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return super().submit(work, *given, **named)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_request_that_is_broken_off(file_home: Home, at: int) -> None:
    """A server that cancels a request leaves the upload to the next one, at the offset it tells."""
    data = b"abcdefghij"
    with Ledger(file_home.url) as ledger:
        app = UploadApp(ledger.blobs, authorize=lambda _: "ann")
        path = asked_of(app, "POST", "/files", upload_length=str(len(data))).headers["location"]
        said = {"content_type": BODY_TYPE}
        broken = UploadApp(ledger.blobs, authorize=lambda _: "ann")
        broken._threads = broken._finishing = threads = BreaksOff(at)

        with pytest.raises(asyncio.CancelledError):
            asked_of(broken, "PATCH", path, data, **said, upload_offset="0")
        threads.shutdown()
        found = asked_of(app, "HEAD", path).headers["upload-offset"]
        asked_of(app, "PATCH", path, data[int(found) :], **said, upload_offset=found)
        end = asked_of(app, "HEAD", path)

    # A call that no thread had begun yet is not made.
    assert found in {"0", "10"}
    assert end.headers["ledgerstone-file"] == hash_of(data)


def test_no_room_for_a_body_with_a_checksum(file_home: Home) -> None:
    """A body that cannot be kept until it is checked is told 507, and nothing of it is stored."""
    data = content(3 * MEBIBYTE)
    right = base64.b64encode(hashlib.sha256(data).digest()).decode()
    said = {"content_type": BODY_TYPE, "upload_offset": "0", "upload_checksum": f"sha256 {right}"}
    with Ledger(file_home.url) as ledger:
        app = UploadApp(ledger.blobs, authorize=lambda _: "ann")
        path = asked_of(app, "POST", "/files", upload_length=str(len(data))).headers["location"]

        with small_files(MEBIBYTE):
            full = asked_of(app, "PATCH", path, data, **said)
        at = asked_of(app, "HEAD", path).headers["upload-offset"]
        again = asked_of(app, "PATCH", path, data, **said)

    assert (full.status, full.headers["retry-after"], at, again.status) == (507, "1", "0", 204)

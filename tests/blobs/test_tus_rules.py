"""The rules of the tus protocol 1.0, one after the other, by requests over sockets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import pytest

from ledgerstone.testing.fixtures import Home
from tests.blobs.serving import read, serving, told
from tests.blobs.tus_client import BODY_TYPE, Client, Response, metadata
from tests.contract.blobs.contents import content, hash_of
from tests.contract.blobs.slices import rows

DATA = content(5000)
ID = hash_of(DATA)
SPOKEN = "Tus-Resumable: 1.0.0"
TYPED = f"Content-Type: {BODY_TYPE}"

pytestmark = pytest.mark.slow


def sha1(data: bytes) -> str:
    """The header Upload-Checksum of a body."""
    return "sha1 " + base64.b64encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode()


def head(client: Client, path: str) -> Response:
    return client.request("HEAD", path)


def test_a_length_that_is_told_later(migrated_home: Home) -> None:
    """An upload whose size is told with its last bytes, and not before, becomes a file."""
    with serving(migrated_home.url) as served:
        client = served.client
        made = client.request("POST", "/files", upload_defer_length="1")
        path = made.headers["location"]
        first = client.patch(path, 0, DATA[:2000])
        before = head(client, path)
        last = client.patch(path, 2000, DATA[2000:], upload_length=str(len(DATA)))
        after = head(client, path)

    assert (made.status, first.status, last.status) == (201, 204, 204)
    assert (before.headers["upload-defer-length"], before.offset) == ("1", 2000)
    assert "upload-length" not in before.headers
    assert (after.headers["upload-length"], after.offset) == (str(len(DATA)), len(DATA))
    assert "upload-defer-length" not in after.headers
    assert read(migrated_home.url, ID) == DATA
    assert len(told(migrated_home.url)) == 1


def test_a_length_that_is_told_alone(client: Client, file_home: Home) -> None:
    """The size may come without bytes, also when all of them are there: that ends the upload."""
    said = {"upload_defer_length": "1", "content_type": BODY_TYPE}
    made = client.request("POST", "/files", DATA, **said)
    path = made.headers["location"]

    ended = client.patch(path, len(DATA), b"", upload_length=str(len(DATA)))

    assert (made.offset, ended.status, ended.offset) == (len(DATA), 204, len(DATA))
    assert read(file_home.url, ID) == DATA


def test_a_length_is_told_once(client: Client) -> None:
    """Another size than was told is refused, and so is one that is too small or too large."""
    path = client.request("POST", "/files", upload_defer_length="1").headers["location"]
    client.patch(path, 0, DATA[:2000])

    small = client.patch(path, 2000, b"", upload_length="1999")
    large = client.patch(path, 2000, b"", upload_length=str(10_737_418_241))
    short = client.patch(path, 2000, b"abc", upload_length="2002")
    unknown = head(client, path)
    right = client.patch(path, 2000, b"abc", upload_length="4000")
    again = client.patch(path, 2003, b"d", upload_length="4000")
    other = client.patch(path, 2004, b"", upload_length="5000")

    assert [each.status for each in (small, large, short)] == [413, 413, 413]
    assert (unknown.headers["upload-defer-length"], unknown.offset) == ("1", 2000)
    assert [each.status for each in (right, again, other)] == [204, 204, 400]
    assert head(client, path).headers["upload-length"] == "4000"


@pytest.mark.parametrize(
    "headers",
    [
        {"upload_defer_length": "0"},
        {"upload_defer_length": "2"},
        {"upload_defer_length": ""},
        {"upload_defer_length": "1", "upload_length": "5"},
    ],
)
def test_a_length_that_is_put_off_wrongly(client: Client, headers: dict[str, str]) -> None:
    """The header that puts the size off has one value, and excludes the size."""
    assert client.request("POST", "/files", **headers).status == 400


def test_a_length_with_a_wrong_body(client: Client) -> None:
    """A body that is not what its checksum says tells no size either."""
    path = client.request("POST", "/files", upload_defer_length="1").headers["location"]
    said = {"upload_length": "5000", "upload_checksum": sha1(DATA)}

    wrong = client.patch(path, 0, DATA[:-1] + b"?", **said)
    before = head(client, path)
    right = client.patch(path, 0, DATA, **said)

    assert (wrong.status, before.headers["upload-defer-length"], before.offset) == (460, "1", 0)
    assert (right.status, right.headers["ledgerstone-file"]) == (204, ID)


def test_no_part_without_its_length(client: Client) -> None:
    """A part whose size nobody knows is not whole, and joins nothing."""
    said = {"upload_defer_length": "1", "upload_concat": "partial"}
    path = client.request("POST", "/files", **said).headers["location"]

    assert client.request("POST", "/files", upload_concat=f"final;{path}").status == 409


@pytest.mark.parametrize("version", [None, "0.2.2", "2.0.0", "1.0.0, 1.0.0", ""])
@pytest.mark.parametrize("method", ["POST", "HEAD", "PATCH", "DELETE", "GET"])
def test_another_version(client: Client, version: str | None, method: str) -> None:
    """Without our version a request is told which one it is, and is not processed."""
    path = client.create(len(DATA))
    said = [] if version is None else [f"Tus-Resumable: {version}"]
    to = "/files" if method == "POST" else path
    lines = [f"{method} {to} HTTP/1.1", TYPED, "Upload-Offset: 0", "Content-Length: 1", *said]

    answer = client.raw(lines, b"x")

    assert (answer.status, answer.headers["tus-version"]) == (412, "1.0.0")
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert head(client, path).offset == 0


def test_options_ask_nothing(client: Client) -> None:
    """OPTIONS needs no version, no upload and no name."""
    answers = [
        client.raw(["OPTIONS /files HTTP/1.1"]),
        client.raw(["OPTIONS /files HTTP/1.1", "Tus-Resumable: 0.1"]),
        client.request("OPTIONS", "/files", x_user="mallory"),
        client.request("OPTIONS", "/files/upload-" + "0" * 57),
    ]

    for answer in answers:
        assert (answer.status, answer.headers["tus-version"]) == (204, "1.0.0")


def refusals(client: Client, path: str) -> dict[str, Response]:
    """Requests that are refused, by what is wrong."""
    gone = "/files/upload-" + "0" * 57
    return {
        "gone": head(client, gone),
        "no upload": head(client, "/files"),
        "not hers": Client(client.port, user="bob").request("HEAD", path),
        "not allowed": Client(client.port, user="mallory").request("HEAD", path),
        "offset": client.patch(path, 7, b"x"),
        "version": client.request("HEAD", path, tus_resumable="0.9"),
        "method": client.request("GET", path),
    }


def test_what_every_answer_says(client: Client) -> None:
    """An answer names the version and is cached by nobody; a refused HEAD tells no offset."""
    path = client.create(len(DATA))

    found = refusals(client, path)

    assert {words: each.status for words, each in found.items()} == {
        "gone": 404,
        "no upload": 404,
        "not hers": 404,
        "not allowed": 403,
        "offset": 409,
        "version": 412,
        "method": 405,
    }
    for answer in (*found.values(), head(client, path)):
        assert answer.headers["tus-resumable"] == "1.0.0"
        assert answer.headers["cache-control"] == "no-store"
    assert not [words for words, each in found.items() if "upload-offset" in each.headers]


def test_the_methods_that_are_allowed(client: Client) -> None:
    """A method that is not allowed is told which ones are, for an upload and for their place."""
    path = client.create(5)

    upload, place = client.request("GET", path), client.request("DELETE", "/files")
    post = client.request("POST", path, upload_length="5")

    assert upload.headers["allow"] == post.headers["allow"] == "HEAD, PATCH, DELETE, OPTIONS"
    assert (place.status, place.headers["allow"]) == (405, "POST, OPTIONS")


@pytest.mark.parametrize(
    ("actual", "meant", "status"),
    [("POST", "PATCH", 204), ("DELETE", "HEAD", 200), ("GET", "DELETE", 204), ("PATCH", "X", 405)],
)
def test_the_method_that_counts(client: Client, actual: str, meant: str, status: int) -> None:
    """The method of the header counts, and the other one is ignored."""
    path = client.create(5)
    said = {"content_type": BODY_TYPE, "upload_offset": "0", "x_http_method_override": meant}

    assert client.request(actual, path, b"abc", **said).status == status
    left = head(client, path)
    assert left.status == (404 if meant == "DELETE" else 200)
    if left.status == 200:
        assert left.offset == (3 if meant == "PATCH" else 0)


@pytest.mark.parametrize("named", [BODY_TYPE, BODY_TYPE.title(), f"{BODY_TYPE}; a=b"])
def test_the_type_of_a_body(client: Client, named: str) -> None:
    """The type of a body is a media type: in any letters, with or without parameters."""
    path = client.create(5)

    assert client.patch(path, 0, b"abcde", content_type=named).status == 204


@pytest.mark.parametrize("offset", ["-1", "1", "a", "", "0x0", "1e0", "9" * 19, "\u0660"])
def test_offsets_that_are_none(client: Client, offset: str) -> None:
    """An offset that is no number, or another one, changes nothing."""
    path = client.create(5)
    lines = [f"PATCH {path} HTTP/1.1", SPOKEN, TYPED, "Content-Length: 1"]

    answer = client.raw([*lines, f"Upload-Offset: {offset}".encode().decode("latin-1")], b"x")

    assert answer.status == (409 if offset == "1" else 400)
    assert head(client, path).offset == 0


def test_headers_that_are_there_twice(client: Client, file_home: Home) -> None:
    """Of two sizes none counts, and of two names neither is let in."""
    sizes = ["POST /files HTTP/1.1", SPOKEN, "Upload-Length: 1", "Upload-Length: 2"]
    names = ["POST /files HTTP/1.1", SPOKEN, "Upload-Length: 1", "X-User: mallory", "X-User: ann"]

    answers = [client.raw(sizes), client.raw(names)]

    assert [answer.status for answer in answers] == [400, 201]
    assert head(client, answers[1].headers["location"]).status == 404
    assert rows(file_home, "blobs") == 1


@pytest.mark.parametrize(
    "said",
    [
        "filename d29ybGQ=,is_confidential",
        "empty ,a YQ==",
        "a YQ==, b YQ==",
        "! YQ==",
        metadata(**{f"key{number}": "x" * 20 for number in range(80)}),
    ],
)
def test_metadata(client: Client, said: str) -> None:
    """What a client says of an upload is told as it was said."""
    path = client.create(5, upload_metadata=said)

    assert head(client, path).headers["upload-metadata"] == said


@pytest.mark.parametrize(
    "said",
    [",", "a YQ==,", "a YQ== YQ==", "a YQ==,a YQ==", "\xe4 YQ==", "a\tb YQ==", "a Y"],
)
def test_metadata_that_is_refused(client: Client, said: str) -> None:
    """Keys that are empty, doubled or no ASCII, and values that are no base64, are refused."""
    lines = ["POST /files HTTP/1.1", SPOKEN, "Upload-Length: 5", f"Upload-Metadata: {said}"]

    assert client.raw(lines).status == 400


def test_it_says_when_it_expires(client: Client) -> None:
    """Each answer about an upload that is there says until when, as HTTP writes a moment."""
    made = client.request("POST", "/files", upload_length="5")
    path = made.headers["location"]

    for answer in (made, client.patch(path, 0, b"abc"), head(client, path)):
        moment = answer.headers["upload-expires"]
        assert moment.endswith("GMT")
        assert parsedate_to_datetime(moment).tzinfo is not None


@pytest.mark.parametrize(
    "said", ["crc32 AAAA", "sha1", "sha1 ???", "SHA1 AAAA", "sha1  AAAA", "", "shake_128 AAAA"]
)
def test_checksums_that_are_none(client: Client, file_home: Home, said: str) -> None:
    """A checksum that cannot be compared is refused, for bytes of an upload and of a new one."""
    path = client.create(5)
    new = {"upload_length": "5", "content_type": BODY_TYPE, "upload_checksum": said}

    assert client.patch(path, 0, b"abcde", upload_checksum=said).status == 400
    assert head(client, path).offset == 0
    assert client.request("POST", "/files", b"abcde", **new).status == 400
    assert rows(file_home, "blobs") == 1


def chunks(*pieces: bytes) -> bytes:
    """A body whose length is not told before."""
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (*pieces, b""))


@pytest.mark.parametrize("checked", [False, True])
def test_a_body_of_unknown_length(client: Client, checked: bool) -> None:
    """A body may come in chunks; one that is longer than the upload is refused at its end."""
    path = client.create(5)
    lines = [f"PATCH {path} HTTP/1.1", SPOKEN, TYPED, "Upload-Offset: 0"]
    lines += ["Transfer-Encoding: chunked"]
    long = [*lines, f"Upload-Checksum: {sha1(b'abcdefgh')}"] if checked else lines

    refused = client.raw(long, chunks(b"abcd", b"efgh"))
    stored = client.raw(lines, chunks(b"abc", b"de"))

    assert (refused.status, stored.status, stored.offset) == (413, 204, 5)


def test_parts_and_what_they_make(client: Client, file_home: Home) -> None:
    """Parts say that they are some, may be used twice, give no metadata, and stay."""
    parts = [client.create(5, upload_concat="partial", upload_metadata="a YQ==") for _ in "12"]
    for path, data in zip(parts, (b"hello", b"world"), strict=True):
        client.patch(path, 0, data)
    joined = f"final;{parts[1]} {parts[0]} {parts[1]}"

    made = client.request("POST", "/files", upload_concat=joined)
    final = head(client, made.headers["location"])
    part = head(client, parts[0])

    assert (made.status, made.headers["upload-expires"][-3:]) == (201, "GMT")
    assert final.headers["upload-length"] == final.headers["upload-offset"] == "15"
    assert final.headers["upload-concat"] == joined
    assert "upload-metadata" not in final.headers
    assert (part.headers["upload-concat"], part.offset) == ("partial", 5)
    assert read(file_home.url, final.headers["ledgerstone-file"]) == b"worldhelloworld"
    assert len(told(file_home.url)) == 1


def test_nothing_is_added_to_what_was_joined(client: Client) -> None:
    """A joined upload takes no bytes, of no type, neither later nor when it is made."""
    part = client.create(5, upload_concat="partial")
    client.patch(part, 0, b"hello")
    said = {"upload_concat": f"final;{part}", "content_type": BODY_TYPE}
    path = client.request("POST", "/files", upload_concat=f"final;{part}").headers["location"]

    answers = [
        client.patch(path, 5, b""),
        client.patch(path, 5, b"x", content_type="text/plain"),
        client.request("POST", "/files", b"x", **said),
    ]

    assert [answer.status for answer in answers] == [403, 403, 400]
    assert head(client, part).offset == 5


def test_a_join_that_fails_leaves_nothing(client: Client, file_home: Home) -> None:
    """Parts that are larger together than a file may be are not joined, and nothing is left."""
    part = client.create(5, upload_concat="partial")
    client.patch(part, 0, b"hello")
    small = {"blobs_blob_bytes_max": 8}
    with serving(file_home.url, **small) as served:
        large = served.client.request("POST", "/files", upload_concat=f"final;{part} {part}")

    assert large.status == 413
    assert rows(file_home, "blob_uploads") == 1


@pytest.mark.parametrize("act", [lambda c, p: c.patch(p, 3, b"x"), head], ids=["PATCH", "HEAD"])
def test_what_was_terminated(client: Client, act: Callable[[Client, str], Response]) -> None:
    """An upload that was terminated is not there for any request."""
    path = client.create(5)
    client.patch(path, 0, b"abc")
    ended = client.request("DELETE", path)

    assert (ended.status, ended.body) == (204, b"")
    assert act(client, path).status == 404

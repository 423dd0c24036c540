"""Uploads and their requests without a server: how long they live, and how much a header holds."""

from __future__ import annotations

import base64

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.blobs.tables import MIME_CHARS_MAX
from ledgerstone.blobs.tus.request import (
    FINAL,
    HEADERS_MAX,
    METADATA_CHARS_MAX,
    PARTS_MAX,
    Refused,
    metadata_of,
    parts_of,
    request_of,
)
from ledgerstone.blobs.tus.uploads import Uploads, _mime_of
from ledgerstone.testing.clock import ManualClock
from tests.contract.blobs.slices import HOUR

PART = "/files/upload-" + "0" * 57


def uploads_of(ledger: Ledger) -> Uploads:
    """The uploads of a ledger, of whose end nobody is told."""
    return Uploads(ledger.blobs, lambda _tx, _done: None)


def test_an_upload_that_grows_lives_on(ledger: Ledger, clock: ManualClock) -> None:
    """It expires when nobody has added to it for so long, and not so long after its beginning."""
    uploads = uploads_of(ledger)
    made = uploads.create(owner="ann", total_size=6, metadata=None, concat=None)
    found = [made]
    for _ in range(2):
        clock.advance(23 * HOUR)
        found.append(uploads.append(found[-1], [b"abc"]))
    clock.advance(23 * HOUR)

    alive = uploads.get(made.upload_id, "ann")
    clock.advance(2 * HOUR)

    assert ([each.offset for each in found], alive.whole) == ([0, 3, 6], True)
    with pytest.raises(errors.NotFound):
        uploads.get(made.upload_id, "ann")


def test_parts_that_are_joined(ledger: Ledger) -> None:
    """What is joined are parts, and each of them is whole."""
    uploads = uploads_of(ledger)
    part, other = (
        uploads.create(owner="ann", total_size=3, metadata=None, concat=concat)
        for concat in ("partial", None)
    )
    uploads.append(other, [b"abc"])

    for name in (part.upload_id, other.upload_id):
        with pytest.raises(errors.NotAllowedNow, match="is no part, or not whole"):
            uploads.join([name], owner="ann", metadata=None, concat=FINAL)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("image/png", True),
        ("x" * MIME_CHARS_MAX, True),
        ("x" * (MIME_CHARS_MAX + 1), False),
        ("a\nb", False),
        ("", False),
    ],
)
def test_the_type_of_a_file(kind: str, kept: bool) -> None:
    """The type that a client names is kept if it is one, of a bounded length."""
    encoded = base64.b64encode(kind.encode()).decode()

    assert _mime_of(f"filetype {encoded}") == (kind if kept else None)


def test_so_many_headers() -> None:
    """A request has a bounded number of headers."""
    headers = [(b"x-%d" % number, b"") for number in range(HEADERS_MAX + 1)]
    scope = {"headers": headers[:-1], "path": "/files", "method": "POST"}

    assert request_of(scope).method == "POST"
    with pytest.raises(Refused, match="too many headers"):
        request_of(scope | {"headers": headers})


def test_so_many_parts() -> None:
    """A final upload names a bounded number of parts, and its metadata a bounded text."""
    assert len(parts_of(FINAL + " ".join([PART] * PARTS_MAX))) == PARTS_MAX
    with pytest.raises(Refused, match="names no uploads, or more than"):
        parts_of(FINAL + " ".join([PART] * (PARTS_MAX + 1)))

    assert metadata_of("n " + "A" * (METADATA_CHARS_MAX - 4) + "==")
    with pytest.raises(Refused, match="has more than"):
        metadata_of("n " + "A" * METADATA_CHARS_MAX)

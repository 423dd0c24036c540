"""Cursors of the store's pages: keys, in hex for people."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgerstone.signing.cli.documents import bytes_of

CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", metavar="CURSOR", help="Go on where the page before ended."),
]


def cursor_of(given: str | None) -> bytes | None:
    """The key behind which to go on; BadInput if the cursor is no hex."""
    return None if given is None else bytes_of(given, "a cursor", None)


def encoded(after: bytes | None) -> str | None:
    """A key as a cursor."""
    return None if after is None else after.hex()

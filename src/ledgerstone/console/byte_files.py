"""Files of bytes that a command reads and writes; `-` is stdin or stdout."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ledgerstone.errors import BadInput

STDIO = "-"


@contextmanager
def read_from(file: str) -> Iterator[BinaryIO]:
    """The file to read; BadInput if it is missing, is a folder or cannot be read."""
    if file == STDIO:
        yield sys.stdin.buffer
        return
    if not Path(file).exists():
        raise BadInput(f"there is no file {file}")
    with _told(file, "read"), Path(file).open("rb") as source:
        yield source


@contextmanager
def written_to(file: str) -> Iterator[BinaryIO]:
    """The file to write; BadInput if it cannot be. It has its name when the block has ended.

    A pipe or a device is written as it stands.
    """
    if file == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(os.path.realpath(file))
    with _told(file, "written"):
        if path.exists() and not path.is_file():
            with path.open("wb") as target:
                yield target
            return
        part = path.parent / f".ledgerstone-{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as target:
                yield target
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def forget_the_rest() -> None:
    """Drop the rest of stdout: Python would try to write it again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def _told(file: str, act: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"{file} cannot be {act}: {error.strerror or error}") from error

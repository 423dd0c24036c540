"""The private key of a member: from a file, stdin or the environment, and never shown.

A command line is seen by everybody on the machine and kept by shells, so no option takes a key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import typer

from ledgerstone.errors import BadInput
from ledgerstone.signing.cli.documents import STDIN, read_bytes

KEY_VARIABLE = "KASPA_SIGNING_KEY"
KEY_BYTES = 32
FILE_BYTES_MAX = 4096
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO

KeyFileOption = Annotated[
    str | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help=f"The private key in hex; - reads stdin. Otherwise ${KEY_VARIABLE}.",
    ),
]


def private_key(file: str | None) -> bytes:
    """The key; BadInput, which never quotes it, says what is wrong."""
    if file is None:
        text = os.environ.get(KEY_VARIABLE)
        if text is None:
            hint = f"name its file with --key-file, or set {KEY_VARIABLE}"
            raise BadInput("there is no private key to sign with", hint=hint)
        return _parsed(text, KEY_VARIABLE)
    if file != STDIN:
        _check_mode(Path(file))
    data = read_bytes(file, "the private key", FILE_BYTES_MAX)
    where = "stdin" if file == STDIN else file
    try:
        return _parsed(data.decode("ascii"), where)
    except UnicodeDecodeError:
        raise _wrong(where) from None


def _check_mode(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        # Reading it tells what is wrong.
        return
    if stat.S_ISREG(mode) and mode & OPEN_TO_OTHERS:
        raise BadInput(f"other users can read the private key in {path}", hint=f"chmod 600 {path}")


def _parsed(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        raise _wrong(where) from None
    if len(key) != KEY_BYTES:
        raise _wrong(where)
    return key


def _wrong(where: str) -> BadInput:
    hint = f"`openssl rand -hex {KEY_BYTES}` makes one"
    return BadInput(f"{where} holds no private key: {2 * KEY_BYTES} hex digits", hint=hint)

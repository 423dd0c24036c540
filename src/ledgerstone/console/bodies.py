"""Bodies that people give: JSON on the command line, or `-` for what stands in stdin."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, TooLarge

STDIN = "-"


def given(what: str, text: str, *, bytes_max: int, setting: str, example: str) -> Any:
    """The parsed JSON; BadInput that names it by `what` and shows an example."""
    read = _stdin(bytes_max, setting) if text == STDIN else text
    try:
        return msgspec.json.decode(read)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadInput(f"{what} is not JSON: {error}", hint=f"as in {example}") from error
    except RecursionError as error:
        raise BadInput(f"{what} is nested too deep", hint="make it flatter") from error


def _stdin(bytes_max: int, setting: str) -> bytes:
    read = sys.stdin.buffer.read(bytes_max + 1)
    if len(read) > bytes_max:
        hint = f"make it smaller, or raise {setting}"
        raise TooLarge(f"stdin has more than {bytes_max:,} bytes", hint=hint)
    return read

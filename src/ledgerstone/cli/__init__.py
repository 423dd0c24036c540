"""The command line."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from contextlib import suppress

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """The command `ledgerstone`."""
    # Nothing of what is imported becomes garbage: to look for it would take a seventh of the time.
    gc.disable()
    # Here and not above: a worker of the demonstration imports its handler from this package, and
    # has no use for a command line.
    from ledgerstone.cli.program import app

    gc.freeze()
    gc.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal cannot show are written as escapes.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name="ledgerstone")
        except SystemExit as ended:
            end_without_handlers(ended.code)
            raise
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in {*_FULL, errno.EPIPE}:
            raise
        from ledgerstone.console.byte_files import forget_the_rest

        forget_the_rest()
        # The reader closed the pipe: it has read enough.
        full = error.errno in _FULL
        said = f"error: what there is to say cannot be written: {error.strerror}"
        sys.exit(said if full else 1)


def end_without_handlers(code: object) -> None:
    """If handlers still run that were given up, end the process now: nobody can wait for them.

    Such a handler may wait for a thread of its own, which Python would join at exit.
    """
    engine = sys.modules.get("ledgerstone.engine.attempt")
    if engine is not None and engine.abandoned_handlers():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))

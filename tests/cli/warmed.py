"""Imported once by the process that commands are forked from: what each would have to do first.

A command that is called for the first time loads dialects, compiles statements and builds its
options. A copy of a process that has called a few finds all of that, and takes a third of the time.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from ledgerstone.cli.program import app
from ledgerstone.console import logs

CALLS = (["--help"], ["migrate"], ["status"], ["jobs", "list"], ["outbox", "list", "--json"])


def warm_up() -> None:
    """Call the command on a file of its own; afterwards only memory is different."""
    logger = logging.getLogger(logs.ROOT)
    before = (list(logger.handlers), logger.propagate, logger.level)
    words, environment, warned = sys.argv, dict(os.environ), warnings.formatwarning
    with ExitStack() as stack:
        stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        nothing = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(redirect_stdout(nothing))
        stack.enter_context(redirect_stderr(nothing))
        try:
            for call in CALLS:
                sys.argv = ["ledgerstone", *call]
                # What goes wrong here goes wrong again where a test looks.
                with suppress(Exception, SystemExit):
                    app(prog_name="ledgerstone")
        finally:
            logger.handlers[:], logger.propagate, level = before
            logger.setLevel(level)
            sys.argv, warnings.formatwarning = words, warned
            os.environ.clear()
            os.environ.update(environment)


warm_up()

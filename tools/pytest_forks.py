"""Runs of pytest that begin at once: forked from a process that has imported what others wrote.

    python tools/pytest_forks.py [MODULE…]

Half of what a short run does is to import pytest, SQLAlchemy and the drivers. This process imports
them once, and nothing of the tree: each run imports that by itself, from the tree that it is given.
It reads one request a line from stdin and forks. It answers with a line that has the request's
number and the process, and, when the run has ended, with one that has the exit code, negative for a
signal. The run's output goes to a file. When stdin ends, all runs end.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

READ_BYTES = 65_536
DESCRIPTORS_MAX = 1024
BROKEN = 3
"""The exit code of pytest for an error of its own."""


def main() -> None:
    """Serve until stdin ends."""
    for module in sys.argv[1:]:
        # A driver that is not installed is missed where it is used.
        with suppress(ImportError):
            import_module(module)
    gc.freeze()
    running: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    unread = b""
    while True:
        for key, _ in selector.select():
            heard = os.read(key.fd, READ_BYTES)
            if key.fd == woken:
                _tell_ended(running)
                continue
            if not heard:
                for pid in running:
                    _end(pid)
                return
            *lines, unread = (unread + heard).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = _begun(request)
                running[pid] = request["number"]
                _say({"number": request["number"], "process": pid})


def _tell_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _say({"number": running.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def _say(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _begun(request: dict[str, Any]) -> int:
    if pid := os.fork():
        return pid
    code = BROKEN
    try:
        code = _run(request)
    except BaseException:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
    finally:
        # Nothing of the process that it was forked from is ended by it.
        os._exit(code)


def _run(request: dict[str, Any]) -> int:
    """In the new process: one run of pytest in a tree, in a session of its own."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _streams(request["output"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tree = Path(request["tree"])
    os.chdir(tree)
    # Before the project that is installed, which is the working tree.
    sys.path[:0] = [str(tree), str(tree / "src")]
    sys.argv = ["pytest", *request["arguments"]]
    try:
        # As `python -m pytest`: the processes that tests start look at what the main module is.
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _streams(output: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for ours, standard in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(ours, standard)
    # With the pipes of the process that it was forked from.
    os.closerange(3, DESCRIPTORS_MAX)


if __name__ == "__main__":
    main()

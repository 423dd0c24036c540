"""Handlers with `process=True`: one child process for each thread that runs such a handler.

A child that dies ends only its own attempt, and the engine kills it when its claim is lost. It does
not outlive its worker: another worker runs the claim when the lease expires, and two must not run
it at once. On Linux the kernel kills the child together with the thread that started it; this also
ends a handler that never releases the GIL. On other systems, and if the handler has reset that
signal, a thread in the child waits for the end of the worker.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import msgspec

from ledgerstone.engine.outcomes import REPLACED_TYPES, failure_of, type_names
from ledgerstone.engine.source import Failure
from ledgerstone.errors import BadInput, HandlerCrashed, Hopeless

STOP_SECONDS_MAX = 2.0
PR_SET_PDEATHSIG = 1
ORPHANED = 1
"""The exit code of a child whose worker is gone."""

at_start: Callable[[], None] | None = None
"""Called in each child at its start: a program sets it to configure logging in children."""


class ErrorInChild(Exception):
    """The traceback of an error in a child process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ChildFailure(msgspec.Struct, frozen=True):
    """The error of a handler in a child: as text, and the error itself if it can be pickled."""

    failure: Failure
    hopeless: bool
    error: BaseException | None
    types: tuple[str, ...] = ()
    """The names of its type and of all its base types."""

    def again(self) -> BaseException:
        """The error, or one with the same name and message."""
        if self.error is not None:
            return self.error
        base = Hopeless if self.hopeless else Exception
        replaced = {REPLACED_TYPES: self.types}
        again: BaseException = type(self.failure.code, (base,), replaced)(self.failure.message)
        return again


class Child:
    """One child process, started at its first call and again after it died."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._killed = False
        self._at_exit: Finalize | None = None

    def call(self, function: Callable[..., Any], argument: Any) -> Any:
        """`function(argument)` in the child; a partial passes its own arguments, too."""
        arguments: tuple[Any, ...] = (argument,)
        if isinstance(function, partial):
            arguments = (*function.args, argument)
            function = function.func
        name = f"{function.__module__}:{function.__qualname__}"
        if "<" in name:
            message = f"{name} cannot be imported in another process"
            raise BadInput(message, hint="define it at the top of a module")
        pipe = self._started()
        question = pickle.dumps((name, arguments))
        try:
            pipe.send_bytes(question)
            answered = pipe.recv_bytes()
        except (EOFError, OSError) as error:
            code = self._buried()
            message = f"the process that ran it died ({_words(code)})"
            raise HandlerCrashed(message) from error
        answer = pickle.loads(answered)  # noqa: S301 - our own child's bytes
        if not isinstance(answer, ChildFailure):
            return answer
        raise answer.again() from ErrorInChild(answer.failure.traceback or "")

    def kill(self) -> None:
        """Kill the child; the next call starts another one."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End the child."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.join(STOP_SECONDS_MAX)
            self._process.kill()
        self._process = self._pipe = None
        self._forget()

    def _forget(self) -> None:
        """The child has ended: do not kill it at the end of this process."""
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None

    def _started(self) -> Connection[Any, Any]:
        if self._killed:
            # It may have answered before it was killed, and still look alive.
            self._killed = False
            self.stop()
        if self._process is None or self._pipe is None or not self._process.is_alive():
            # Not fork: a copy of a process with threads may hold a lock that no thread releases.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, at_start), daemon=True)
            self._process.start()
            # At exit multiprocessing sends SIGTERM, which the children ignore, and waits for them.
            self._at_exit = Finalize(None, self._process.kill, exitpriority=0)
            theirs.close()
        return self._pipe

    def _buried(self) -> int | None:
        process, self._process, self._pipe = self._process, None, None
        self._killed = False
        self._forget()
        if process is None:
            return None
        process.join(STOP_SECONDS_MAX)
        return process.exitcode


def _words(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _serve(pipe: Connection[Any, Any], start: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_with_parent()
    if start is not None:
        start()
    while True:
        try:
            name, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our parent's bytes
        except (EOFError, OSError):
            return
        answer = _answer(name, arguments)
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def die_with_parent() -> None:
    """On Linux the system kills this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def _end_with_parent() -> None:
    """Make this process end when the one that started it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent()
    if os.getppid() != parent.pid:
        # The parent had ended before.
        os._exit(ORPHANED)
    threading.Thread(
        target=_end_after, args=(parent.sentinel,), name="ledgerstone-parent", daemon=True
    ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(ORPHANED)


def _answer(name: str, arguments: tuple[Any, ...]) -> bytes:
    """The pickled return value of the function, or its error as ChildFailure."""
    try:
        module, _, path = name.partition(":")
        function = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        value = function(*arguments)  # type: ignore[operator]
        try:
            return pickle.dumps(value)
        except Exception as error:
            message = f"what it returned cannot leave its process: {error}"
            raise BadInput(message, hint="return strings, numbers, lists, dicts, dates") from error
    except BaseException as error:  # noqa: BLE001 - it is raised again on the other side
        failure, hopeless = failure_of(error), isinstance(error, Hopeless)
        try:
            packed = pickle.dumps(ChildFailure(failure, hopeless, error))
            # Some errors can be pickled and not unpickled.
            pickle.loads(packed)  # noqa: S301 - our own bytes
        except Exception:  # noqa: BLE001 - sent as text instead
            return pickle.dumps(ChildFailure(failure, hopeless, None, type_names(type(error))))
        return packed

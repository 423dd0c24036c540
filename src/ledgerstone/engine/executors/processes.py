"""Handlers that want a process of their own: a child for each thread that runs such a handler.

A child that dies takes only its own claim with it, and can be killed when that claim is lost. It
does not outlive its worker: when the lease has run out another runs the claim, and there must not
be two. On Linux the system kills it together with the thread that started it, which lives until it
has let the child go; that also ends a handler that never lets go of the interpreter. Elsewhere, and
if the handler has taken that back, a thread in the child waits for the end of the worker.
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
"""The exit code of a child whose worker is gone; nobody is left to read it."""

at_start: Callable[[], None] | None = None
"""Called in each child when it begins: a program sets it to have children log as it does."""


class ErrorInChild(Exception):
    """Where a handler raised: the traceback of the child process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ChildFailure(msgspec.Struct, frozen=True):
    """What a handler raised in a child: in words, and the error itself if it can travel."""

    failure: Failure
    hopeless: bool
    error: BaseException | None
    types: tuple[str, ...] = ()
    """The names of its type and of all its base types."""

    def again(self) -> BaseException:
        """The error, or one of the same name with the same words."""
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
        """`function(argument)` in the child; of a partial, what it holds goes along."""
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
        """Stop whatever it does, at once; the next call has another one."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """Let it go."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.join(STOP_SECONDS_MAX)
            self._process.kill()
        self._process = self._pipe = None
        self._forget()

    def _forget(self) -> None:
        """It needs not be killed at the end of this process."""
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None

    def _started(self) -> Connection[Any, Any]:
        if self._killed:
            # It may have answered before it died, and look alive until it has.
            self._killed = False
            self.stop()
        if self._process is None or self._pipe is None or not self._process.is_alive():
            # Not fork: a copy of a process with threads may hold a lock that nobody gives back.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, at_start), daemon=True)
            self._process.start()
            # At its end multiprocessing asks its children to end, which these ignore, and waits.
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
    """From now on this process does not outlive the one that started it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent()
    if os.getppid() != parent.pid:
        # It was gone before it could be asked for.
        os._exit(ORPHANED)
    threading.Thread(
        target=_end_after, args=(parent.sentinel,), name="ledgerstone-parent", daemon=True
    ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(ORPHANED)


def _answer(name: str, arguments: tuple[Any, ...]) -> bytes:
    """What the function answers or raises, so that it can travel."""
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
            # Some can be written and not read.
            pickle.loads(packed)  # noqa: S301 - our own bytes
        except Exception:  # noqa: BLE001 - then its words must do
            return pickle.dumps(ChildFailure(failure, hopeless, None, type_names(type(error))))
        return packed

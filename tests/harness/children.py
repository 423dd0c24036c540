"""Handlers for tests that run in a process of their own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from ledgerstone.engine.executors.processes import PR_SET_PDEATHSIG
from ledgerstone.engine.source import Cancel, Claim
from ledgerstone.errors import Hopeless
from ledgerstone.testing.waiting import until

ORPHAN_SECONDS_MAX = 600.0
"""How long one that lost its worker goes on, if nothing ends it."""


def pid_or_fail(claim: Claim) -> int:
    """The process it ran in; odd numbers are refused."""
    if int(claim.body) % 2:
        message = "odd numbers are refused"
        raise ValueError(message)
    return os.getpid()


def unkeepable(claim: Claim) -> object:
    """A result that no JSON can hold, for the number 0."""
    return object() if int(claim.body) == 0 else None


def die_on_zero(claim: Claim) -> None:
    """Dies of the number 0."""
    if int(claim.body) == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def pid_of_call(_: object) -> int:
    """The process that it runs in."""
    return os.getpid()


def ends_with(code: int) -> None:
    """Ends its process with this exit code, or by this signal if it is below zero."""
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def survives(number: int) -> int:
    """Sends its process a signal; the process that goes on after it."""
    os.kill(os.getpid(), number)
    return os.getpid()


def begun_and_gated(claim: Claim) -> None:
    """Says that it has begun, and ends when the file that its body names is there."""
    gate = Path(msgspec.json.decode(claim.body))
    _beginning_of(gate).touch()
    until(gate.exists)


def begun(gate: Path) -> bool:
    """Whether the handler that waits for this file has begun."""
    return _beginning_of(gate).exists()


def _beginning_of(gate: Path) -> Path:
    return gate.with_suffix(".begun")


class Wordless(Exception):
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError


class Unsent(LookupError):
    """An error that cannot be received in another process."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def refuses() -> None:
    """A job that ends with an error that cannot be sent."""
    raise Unsent("not", "here")


def refuses_too() -> None:
    """The same, as another job."""
    refuses()


class Closed(Hopeless):
    """An error that can be sent to another process, and not received there."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def odd_ending(claim: Claim) -> object:
    """A different odd ending for each number from 0 to 4; nothing odd for the others."""
    match int(claim.body):
        case 0:
            raise Wordless
        case 1:
            return Cancel(5)  # type: ignore[arg-type]
        case 2:
            return Cancel(None)  # type: ignore[arg-type]
        case 3:
            raise Closed("for", "good")
        case 4:
            return lambda: None
        case _:
            return {"fine": True}


def refused_inside() -> None:
    """Raises an error that stays in its process."""
    _refuse("not", "today")


def _refuse(first: str, second: str) -> None:
    raise Unsendable(first, second)


class Unsendable(Exception):
    """An error that can be sent to another process, and not received there."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def ended_inside() -> None:
    """Wants to end its process."""
    sys.exit("enough")


def failed_inside() -> None:
    """Raises an error that can leave its process."""
    raise ValueError("inside")


def orphaned(path: str, how: str) -> None:
    """Kills its worker with -9 and goes on; as long as it lives it holds a lock on the file."""
    with Path(path).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(how)
        file.flush()
        libc = ctypes.PyDLL(None)
        if how == "unsignaled" and sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(0))
        os.kill(os.getppid(), signal.SIGKILL)
        if how == "unyielding":
            # Called this way it keeps every other thread of its process from running.
            libc.sleep(int(ORPHAN_SECONDS_MAX))
        threading.Event().wait(ORPHAN_SECONDS_MAX)


def held_and_let_go(path: Path) -> bool:
    """Whether somebody held a lock on this file, and holds it no more."""
    if not path.exists() or not path.read_text(encoding="utf-8"):
        return False
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True

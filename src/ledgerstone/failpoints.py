"""Failpoints: named places where a test makes this process die, stop or fail.

`LEDGERSTONE_FAILPOINTS="pump.claimed=kill@3"` kills the process with -9 when it comes to
`pump.claimed` for the third time. Several are separated by commas. Actions: `kill` (SIGKILL),
`stop` (SIGSTOP), `fail` (raises). Without the variable a failpoint costs one look into a dict.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping

VARIABLE = "LEDGERSTONE_FAILPOINTS"
_names = {
    "transaction.before_commit",
    "transaction.after_commit",
    "pump.claimed",
    "pump.ran",
    "pump.settling",
    "pump.settled",
    "rescue.rescued",
    "duty.leased",
    "sequencer.appended",
    "sequencer.saved",
    "migrate.step",
    "demo.step",
}


class FailpointHit(Exception):
    """The action `fail`."""


_armed: dict[str, list[tuple[str, int]]] = {}
_hits: dict[str, int] = {}
_undeclared: list[str] = []
"""What the environment asks for and nobody has declared yet: a room may."""


def names() -> frozenset[str]:
    """Every failpoint that was declared, by the kernel and by the rooms of this process."""
    return frozenset(_names)


def declare(names: Iterable[str]) -> frozenset[str]:
    """Failpoints of a room; what the environment asked of them is armed."""
    declared = frozenset(names)
    _names.update(declared)
    waiting, _undeclared[:] = list(_undeclared), []
    for part in waiting:
        _arm(part, later=True)
    return declared


def arm(text: str) -> None:
    """Arm the failpoints that the text names; an empty text disarms all."""
    _armed.clear()
    _hits.clear()
    _undeclared.clear()
    for part in _parts(text):
        _arm(part)


def arm_from(environ: Mapping[str, str]) -> None:
    """Arm what the environment asks for; names that a room declares later are armed then."""
    for part in _parts(environ.get(VARIABLE, "")):
        _arm(part, later=True)


def check() -> None:
    """ValueError if the environment asks for a failpoint that nobody has declared."""
    if _undeclared:
        message = f"no such failpoint: {_undeclared[0]!r}"
        raise ValueError(message)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _arm(part: str, *, later: bool = False) -> None:
    name, _, action = part.partition("=")
    verb, _, count = action.partition("@")
    known = name in _names
    if verb not in {"kill", "stop", "fail"} or not (known or later):
        message = f"no such failpoint: {part!r}"
        raise ValueError(message)
    if known:
        _armed.setdefault(name, []).append((verb, int(count or 1)))
    else:
        _undeclared.append(part)


def hit(name: str) -> None:
    """The process has come to this place."""
    if not _armed:
        return
    _hits[name] = _hits.get(name, 0) + 1
    for verb, count in _armed.get(name, ()):
        if _hits[name] != count:
            continue
        if verb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif verb == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            raise FailpointHit(name)


arm_from(os.environ)

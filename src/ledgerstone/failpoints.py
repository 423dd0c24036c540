"""Failpoints: named places where a test can kill, stop or fail this process.

`LEDGERSTONE_FAILPOINTS="pump.claimed=kill@3"` kills the process with SIGKILL when it reaches
`pump.claimed` for the third time. Separate several with commas. Actions: `kill` (SIGKILL), `stop`
(SIGSTOP), `fail` (raises). Without the variable a failpoint costs one look-up in a dict.
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
"""Failpoints in the environment that are not declared yet; a room may declare them later."""


def names() -> frozenset[str]:
    """Every declared failpoint of the kernel and of the imported rooms."""
    return frozenset(_names)


def declare(names: Iterable[str]) -> frozenset[str]:
    """Declare failpoints of a room; those in the environment are armed."""
    declared = frozenset(names)
    _names.update(declared)
    waiting, _undeclared[:] = list(_undeclared), []
    for part in waiting:
        _arm(part, later=True)
    return declared


def arm(text: str) -> None:
    """Arm the failpoints in `text`; an empty text disarms all."""
    _armed.clear()
    _hits.clear()
    _undeclared.clear()
    for part in _parts(text):
        _arm(part)


def arm_from(environ: Mapping[str, str]) -> None:
    """Arm the failpoints in the environment; those that a room declares later are armed then."""
    for part in _parts(environ.get(VARIABLE, "")):
        _arm(part, later=True)


def check() -> None:
    """ValueError if the environment names an undeclared failpoint."""
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
    """The process reaches this failpoint."""
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

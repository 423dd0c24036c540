"""Failpoints: named places where a test makes this process die, stop or fail.

`LEDGERSTONE_FAILPOINTS="pump.claimed=kill@3"` kills the process with -9 when it comes to
`pump.claimed` for the third time. Several are separated by commas. Actions: `kill` (SIGKILL),
`stop` (SIGSTOP), `fail` (raises). Without the variable a failpoint costs one look into a dict.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

VARIABLE = "LEDGERSTONE_FAILPOINTS"
NAMES = frozenset(
    {
        "transaction.before_commit",
        "transaction.after_commit",
        "pump.claimed",
        "pump.ran",
        "pump.settling",
        "pump.settled",
        "rescue.rescued",
        "migrate.step",
        "relay.sending",
        "relay.sent",
        "relay.marked",
        "inbox.receipt",
        "inbox.handled",
        "inbox.committed",
        "signing.committing",
        "signing.committed",
        "signing.migrating",
        "signing.restoring",
        "signing.deleting",
        "signing.published",
        "demo.step",
    }
)


class FailpointHit(Exception):
    """The action `fail`."""


_armed: dict[str, list[tuple[str, int]]] = {}
_hits: dict[str, int] = {}


def arm(text: str) -> None:
    """Arm the failpoints that the text names; an empty text disarms all."""
    _armed.clear()
    _hits.clear()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = part.partition("=")
        verb, _, count = action.partition("@")
        if name not in NAMES or verb not in {"kill", "stop", "fail"}:
            message = f"no such failpoint: {part!r}"
            raise ValueError(message)
        _armed.setdefault(name, []).append((verb, int(count or 1)))


def arm_from(environ: Mapping[str, str]) -> None:
    """Arm what the environment asks for."""
    if VARIABLE in environ:
        arm(environ[VARIABLE])


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

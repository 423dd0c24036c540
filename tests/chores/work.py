"""A worker process for crash tests, the demonstration and benchmarks.

    LEDGERSTONE_URL=URL python -m tests.chores.work --handler package.module:function

It does chores until it is told to stop, says `ready` when it has begun, and says its report as JSON
when it ends. Settings come from the environment like everywhere.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.executors.processes import die_with_parent
from ledgerstone.engine.source import Claim, ExecutorKind, Handler
from ledgerstone.ledger import Ledger
from tests.chores import ChoreSource


def nothing(_: Claim) -> None:
    """The handler that does nothing."""


def brief(_: Claim) -> None:
    """The handler that takes a millisecond."""
    time.sleep(0.001)


def gated(claim: Claim) -> None:
    """The handler that waits for the file that its body names, if it names one."""
    gate = msgspec.json.decode(claim.body)
    while gate and not Path(gate).exists():
        time.sleep(0.01)


def endless(_: Claim) -> None:
    """The handler that ends only when it is interrupted."""
    while True:
        time.sleep(0.01)


def endless_but_one(claim: Claim) -> None:
    """The same for all but the number 0, so that it is known how long handlers take."""
    if claim.body != "0":
        endless(claim)


def deadly_for_one(claim: Claim) -> None:
    """The handler that does nothing, and kills its process at the number 150."""
    if claim.body == "150":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Work until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--handler", default="tests.chores.work:nothing")
    parser.add_argument(
        "--where", choices=[where.value for where in ExecutorKind], default="thread"
    )
    parser.add_argument("--atomic", action="store_true")
    parser.add_argument("--backoff-seconds", type=float, default=0.05)
    arguments = parser.parse_args()
    handler = Handler(
        _named(arguments.handler), where=ExecutorKind(arguments.where), atomic=arguments.atomic
    )
    source = ChoreSource(handler, backoff=Backoff(seconds=arguments.backoff_seconds))
    # A run of tests that is killed leaves no worker behind.
    die_with_parent()
    with Ledger() as ledger:
        worker = ledger.worker(source)
        worker.run(started=lambda: _say({"ready": worker.id}))
        _say({"report": msgspec.to_builtins(worker.report())})


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

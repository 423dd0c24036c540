"""A program of the tests: stores or removes a file, in a process that may be killed meanwhile."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from ledgerstone import Ledger
from ledgerstone.settings import Settings


def main() -> None:
    """`put PATH`, `pipe PATH` or `remove ID`, and the worker's turn that follows."""
    act, given = sys.argv[1:]
    with Ledger(settings=Settings.load()) as ledger:
        if act == "put":
            ledger.blobs.put(Path(given), owner="a")
        elif act == "pipe":
            ledger.blobs.put(io.BytesIO(Path(given).read_bytes()), owner="a")
        else:
            ledger.run(lambda tx: tx.blobs.remove_owner("a"))
            ledger.blobs.collect()
    sys.stdout.write('{"ready": 1}\n')

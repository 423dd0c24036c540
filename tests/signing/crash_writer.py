"""Writes events, requests and volume until it is killed, and says what was acknowledged.

python -m tests.signing.crash_writer FOLDER ROUND
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Store

DAY = b"vol:" + bytes(8)
THREADS = 4
WRITES_MAX = 100_000


def main() -> None:
    """Begin the threads; each line of output is one acknowledged transaction."""
    store = Store(Path(sys.argv[1]))
    threads = [
        threading.Thread(target=write, args=(store, f"{sys.argv[2]}-{number}"))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write(store: Store, name: str) -> None:
    """One transaction after the other."""
    for number in range(WRITES_MAX):
        key = f"{name}-{number:06d}".encode()
        with store.transaction() as tx:
            tx.insert(Family.EVENT, b"evt:" + key, (number + 1).to_bytes(8, "big"))
            tx.put(Family.REQUEST, b"req:" + key, b"finalized")
            tx.add_volume(DAY, number + 1)
        os.write(1, key + b"\n")


if __name__ == "__main__":
    main()

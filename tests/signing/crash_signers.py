"""Leads requests through their lives until it is killed, and says what was acknowledged.

python -m tests.signing.crash_signers FOLDER ROUND
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import product
from pathlib import Path

from tests.signing.people import group, payment, peer
from tests.signing.world import World

THREADS = 4
LIVES_MAX = 10_000


def main() -> None:
    """Begin the threads; each line of output is one acknowledged call."""
    world = World(Path(sys.argv[1]), group(2, 3))
    threads = [
        threading.Thread(target=live, args=(world, int(sys.argv[2]), number))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def live(world: World, round_: int, thread: int) -> None:
    """One life after the other: most are finalized, some aborted, some left approved."""
    for number in range(LIVES_MAX):
        name = f"{round_}-{thread}-{number}"
        event = payment(0, event_id=name, amount_sompi=1 + number)
        request = world.propose(name, event)
        say("proposed", name)
        for voter in (1, 2):
            world.vote(request, voter)
            say("voted", name, peer(voter))
        if number % 4 == 3:
            continue
        if number % 4 == 2:
            world.abort(request)
            say("aborted", name)
            continue
        for signer, index in product((1, 2), (0, 1)):
            world.sign(request, signer, index)
            say("signed", name, peer(signer), str(index))
        world.finalize(request)
        say("finalized", name)


def say(*words: str) -> None:
    """One line by one write: a kill leaves it whole or away."""
    os.write(1, f"{' '.join(words)}\n".encode())


if __name__ == "__main__":
    main()

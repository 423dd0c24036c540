"""Leads requests through their lives until it is killed, and says what was acknowledged.

python -m tests.signing.crash_signers FOLDER ROUND
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import product
from pathlib import Path

from ledgerstone.signing.keys import RequestKey
from ledgerstone.signing.life import finishing
from ledgerstone.signing.values import RequestId
from tests.signing.people import NOW, group, payment, peer
from tests.signing.world import MINUTE, World

THREADS = 4
LIVES_MAX = 10_000
ENDS = ("finalized", "rejected", "aborted", "approved", "expired", "archived")


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
    """One life after the other, with each of the ends; some requests are left approved."""
    for number in range(LIVES_MAX):
        name = f"{round_}-{thread}-{number}"
        event = payment(0, event_id=name, amount_sompi=1 + number)
        request = world.propose(name, event)
        say("proposed", name)
        end = ENDS[(round_ + thread + number) % len(ENDS)]
        for voter in (1, 2):
            world.vote(request, voter, accept=end != "rejected")
            say("voted", name, peer(voter))
        if end == "aborted":
            world.abort(request)
        elif end == "expired":
            expire(world, request)
        elif end in {"finalized", "archived"}:
            finalize(world, request)
        if end == "archived":
            say("finalized", name)
            archive_all(world, name)
        if end != "approved":
            say(end, name)


def expire(world: World, request: RequestId) -> None:
    """Expire a request at a moment behind its time, whatever the others' clock says."""
    late = NOW + 2 * MINUTE
    assert world.store.run(lambda tx: finishing.expire_request(tx, request, now_nanos=late))


def finalize(world: World, request: RequestId) -> None:
    """Two members sign each input, and the transaction is named."""
    for signer, index in product((1, 2), (0, 1)):
        world.sign(request, signer, index)
        say("signed", request, peer(signer), str(index))
    world.finalize(request)


def archive_all(world: World, name: str) -> None:
    """Archive what has ended; another thread may be faster with this one."""
    after = RequestKey(request_id=RequestId(name)).encode()[:-1]
    found = world.signing.archive_old_requests(NOW + 1, after=after)
    assert not found.errors


def say(*words: str) -> None:
    """One line by one write: a kill leaves it whole or away."""
    os.write(1, f"{' '.join(words)}\n".encode())


if __name__ == "__main__":
    main()

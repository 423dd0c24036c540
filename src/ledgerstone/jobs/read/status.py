"""Jobs at a glance, for `status` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ledgerstone.jobs.read import queues, unserved
from ledgerstone.jobs.read.queues import COUNTED_MAX
from ledgerstone.jobs.read.unserved import Unserved
from ledgerstone.jobs.states import Status

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class JobFacts(msgspec.Struct, frozen=True):
    """Jobs at a glance; a number that is `counted_max` says that there are at least so many."""

    queued: int
    running: int
    dead_letters: int
    counted_max: int
    unserved: list[Unserved]
    """Types that are queued and that no worker which is alive runs."""


def jobs_of(tx: Transaction) -> JobFacts:
    """Jobs at a glance, each number counted up to a most."""
    counts = queues.totals(tx, counted_max=COUNTED_MAX)
    return JobFacts(
        queued=counts[Status.QUEUED],
        running=counts[Status.RUNNING],
        dead_letters=counts[Status.DEAD_LETTER],
        counted_max=COUNTED_MAX,
        unserved=unserved.look(tx),
    )

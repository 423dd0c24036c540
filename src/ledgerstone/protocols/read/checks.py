"""Whether protocols are as they should be, for `doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from ledgerstone.protocols.read.status import facts_of
from ledgerstone.protocols.registry import Registry
from ledgerstone.room import Check, CheckStatus, Opened, counted
from ledgerstone.store.schema import revisions


def protocols(opened: Opened[Registry]) -> Iterator[Check]:
    """Parked items, jobs that fail and retention that fails, of each protocol."""
    database = opened.database
    with database.reading() as tx:
        if not revisions.look(tx.connection, database.namespace, database.rooms).up_to_date:
            return
        found = facts_of(tx, opened.state)
    for facts in found:
        name = f"protocol {facts.protocol}"
        waiting = f"{counted(facts.blocked, facts.counted_max)} events wait for keys"
        if facts.parked:
            parked = f"{counted(facts.parked, facts.counted_max)} items are parked"
            todo = (
                f"`ledgerstone protocols parked {facts.protocol}` (or with --outgoing) says why;"
                " then `protocols retry` or `protocols drop`"
            )
            yield Check(name, CheckStatus.WARNING, parked, todo)
        elif facts.failing_jobs:
            todo = f"`ledgerstone protocols tick {facts.protocol}` runs them and says why"
            yield Check(
                name, CheckStatus.WARNING, f"jobs fail: {', '.join(facts.failing_jobs)}", todo
            )
        elif facts.retention_error is not None:
            todo = f"`ledgerstone protocols snapshot {facts.protocol}` tries again and says why"
            yield Check(name, CheckStatus.WARNING, f"retention: {facts.retention_error}", todo)
        else:
            yield Check(name, CheckStatus.OK, waiting)

"""The last report of a worker that is not there, for clauses about rescue."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerstone.engine.worker_rows import WorkerReport, sign_in
from ledgerstone.ledger import Ledger


def reported(
    ledger: Ledger,
    worker: str,
    *,
    begun: Sequence[str] = (),
    crashes_max: int | None = None,
    types: dict[str, list[str]] | None = None,
    locked: Sequence[str] = (),
) -> None:
    """The last word of a worker of this id, which serves the sources that it knows types of."""
    known = types or {}
    report = WorkerReport(
        sources={source: {} for source in known},
        running=0,
        waiting=0,
        prompt=True,
        duties={},
        types=known,
        crashes_max=crashes_max,
        begun=begun,
        locked=locked,
    )
    ledger.run(lambda tx: sign_in(tx, worker, report))

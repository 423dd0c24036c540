"""The figures of the job ledger and what is promised of each."""

from __future__ import annotations

from bench.report import AtMost, Figure, Observed, Unit

AT_LEAST = {
    "jobs.postgres.drain_1w.vs_pgqueuer": 1.5,
    "jobs.postgres.drain_2w.vs_pgqueuer": 1.2,
    "jobs.postgres.drain_1w.vs_procrastinate": 20.0,
    "jobs.postgres.bulk_enqueue.vs_pgqueuer": 0.7,
    "jobs.postgres.enqueue_one.vs_driver": 0.8,
    "jobs.sqlite.enqueue_one.vs_driver": 0.6,
    "jobs.sqlite.drain_1w.vs_huey": 4.0,
    "jobs.sqlite.drain_1w.vs_huey_with_threads": 4.0,
}
AT_MOST = {"jobs.postgres.latency_p50.vs_pgqueuer": 1.0}
FIGURES = (
    "jobs.postgres.drain_1w.vs_pgqueuer",
    "jobs.postgres.drain_2w.vs_pgqueuer",
    "jobs.postgres.drain_1w.vs_procrastinate",
    "jobs.postgres.bulk_enqueue.vs_pgqueuer",
    "jobs.postgres.latency_p50.vs_pgqueuer",
    "jobs.postgres.enqueue_one.vs_driver",
    "jobs.postgres.drain_1w.vs_driver",
    "jobs.postgres.drain_million.vs_empty",
    "jobs.postgres.drain_held_xmin.vs_empty",
    "jobs.sqlite.enqueue_one.vs_driver",
    "jobs.sqlite.drain_1w.vs_huey",
    "jobs.sqlite.drain_1w.vs_huey_with_threads",
    "jobs.sqlite.drain_1w.vs_driver",
    "jobs.mysql.enqueue_one.vs_driver",
    "jobs.mysql.drain_1w.vs_driver",
)
"""Every figure, in the order in which they are printed."""


def figure(name: str, value: float) -> Figure:
    """The figure of this name."""
    if name in AT_LEAST:
        return Figure(unit=Unit.RATIO, name=name, value=value, bound=AT_LEAST[name])
    if name in AT_MOST:
        return AtMost(unit=Unit.RATIO, name=name, value=value, bound=AT_MOST[name])
    return Observed(unit=Unit.RATIO, name=name, value=value)

"""What a table has been through: a million finished jobs, or a transaction that nobody ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.places import HOLDER

FINISHED_LOT = 100_000
"""Finished jobs that are written in one transaction."""
# Ids like those of jobs that were made a millisecond apart, a day ago.
_ID = "(lpad(to_hex({ms}), 12, '0') || '7{kind}008000' || lpad(to_hex(n), 12, '0'))::uuid"
_JOB_MS = "(extract(epoch from now()) * 1000)::bigint - 86400000 + n"
_MOMENT = f"to_timestamp(({_JOB_MS}) / 1000.0)"
_JOBS = f"""\
INSERT INTO job (id, org_id, type, status, attempt, created_at, updated_at, started_at,
    finished_at, payload, run_at_ms, token, worker)
SELECT {_ID.format(ms=_JOB_MS, kind=0)}, '00000000-0000-0000-0000-000000000000', 'noop',
    'succeeded', 1, {_MOMENT}, {_MOMENT}, {_MOMENT}, {_MOMENT}, '{{}}', {_JOB_MS}, 1, 'long gone'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"""  # noqa: S608 - our own words
_EVENTS = f"""\
INSERT INTO job_event (id, job_id, ts, prev_status, next_status, detail_json)
SELECT {_ID.format(ms=_JOB_MS, kind="{kind}")}, {_ID.format(ms=_JOB_MS, kind=0)}, {_MOMENT},
    %(prev)s, %(next)s, '{{{{"attempt": 1, "worker": "long gone"}}}}'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"""  # noqa: S608 - our own words
_MOVES: tuple[tuple[str | None, str], ...] = (
    (None, "queued"),
    ("queued", "running"),
    ("running", "succeeded"),
)


def add_finished(url: str, count: int) -> None:
    """So many finished jobs with their events, not old enough to be removed."""
    psycopg: Any = import_module("psycopg")
    with psycopg.connect(url) as connection:
        for first in range(1, count + 1, FINISHED_LOT):
            span = {"first": first, "last": min(first + FINISHED_LOT - 1, count)}
            # Each event would look its job up; all of them are known to be there.
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(_JOBS, span)
            for kind, (prev, after) in enumerate(_MOVES):
                statement = _EVENTS.format(kind=kind)
                connection.execute(statement, {"prev": prev, "next": after, **span})
            connection.commit()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE job, job_event")


@contextmanager
def held_open(url: str) -> Iterator[None]:
    """Somebody else's transaction, with a snapshot from before: nothing can be cleaned up."""
    psycopg: Any = import_module("psycopg")
    with psycopg.connect(url, application_name=HOLDER) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT COUNT(*) FROM job")
        yield
        connection.rollback()

"""The sections of the settings that belong to the ground floor, the engine, jobs and the log."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the database is used."""

    schema: Annotated[
        Annotated[str, Meta(pattern=r"^(?!pg_)[A-Za-z_][A-Za-z0-9_$-]{0,47}\Z")] | None,
        Meta(
            description="Where Ledgerstone's own tables lie: a schema on PostgreSQL, a database on"
            " MySQL; none means `ledgerstone` on PostgreSQL, and the database of the URL on MySQL."
        ),
    ] = None
    sqlite_synchronous: Annotated[
        Literal["NORMAL", "FULL"],
        Meta(description="FULL keeps all commits through a power cut; NORMAL may lose the last."),
    ] = "NORMAL"
    busy_timeout_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="How long SQLite waits for another writer.")
    ] = 30.0
    cache_kib: Annotated[
        int, Meta(ge=64, le=16_777_216, description="SQLite's page cache, for each connection.")
    ] = 20_000
    connect_timeout_seconds: Annotated[
        int, Meta(ge=1, le=300, description="How long opening a connection to a server may take.")
    ] = 10
    lock_timeout_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="How long a statement waits for a lock on a server.")
    ] = 30
    call_seconds_max: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="How long a call to a server may take before its connection is given up;"
            " a worker's own calls: a third of a lease, and at least 5 s.",
        ),
    ] = 300.0
    transaction_idle_seconds_max: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="A transaction that stands still for longer is ended (PostgreSQL, MariaDB; "
            "a worker's own: after a lease).",
        ),
    ] = 86_400
    pool_size_max: Annotated[
        int, Meta(ge=1, le=1000, description="Connections that one process may hold open.")
    ] = 10
    slow_statement_ms: Annotated[
        float,
        Meta(ge=0, le=600_000, description="A statement that takes longer is logged as slow."),
    ] = 50.0
    prepared_statements: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="Whether the server prepares statements; off suits poolers that cannot."),
    ] = "auto"
    notify: Annotated[
        Literal["auto", "off"],
        Meta(description="Whether PostgreSQL's LISTEN/NOTIFY wakes workers between polls."),
    ] = "auto"
    auto_migrate: Annotated[
        Literal["embedded", "always", "never"],
        Meta(description="When opening also migrates; embedded means on SQLite only."),
    ] = "embedded"
    body_bytes_max: Annotated[
        int,
        Meta(ge=1024, le=268_435_456, description="The largest body of an item that is accepted."),
    ] = 1_048_576
    transaction_tries_max: Annotated[
        int,
        Meta(ge=1, le=100, description="Tries of a transaction that meets deadlocks or conflicts."),
    ] = 5


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How work is claimed, run and settled."""

    concurrency: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Handlers of one source that a process runs at once."),
    ] = 10
    batch_max: Annotated[
        int, Meta(ge=1, le=1000, description="Items claimed or settled in one transaction.")
    ] = 500
    claim_ahead_ms: Annotated[
        float, Meta(ge=0, le=10_000, description="How far claiming runs ahead of the handlers.")
    ] = 50.0
    flush_ms: Annotated[
        float,
        Meta(ge=0, le=1000, description="How long an outcome waits for others to settle with."),
    ] = 2.0
    lease_seconds: Annotated[
        float, Meta(ge=1, le=86_400, description="How long a claim holds without a heartbeat.")
    ] = 30.0
    heartbeat_seconds: Annotated[
        Annotated[float, Meta(ge=0.1, le=28_800)] | None,
        Meta(description="How often leases are extended; none means a third of the lease."),
    ] = None
    poll_seconds_min: Annotated[
        float,
        Meta(ge=0.001, le=60, description="The pause between looks for work, while there is some."),
    ] = 0.01
    poll_seconds_max: Annotated[
        float,
        Meta(
            ge=0.001, le=3600, description="The pause between looks for work, after long idleness."
        ),
    ] = 1.0
    grace_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="How long handlers may finish when the process stops."),
    ] = 20.0
    rescue_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="How often claims of dead workers are looked for.")
    ] = 10.0
    crashes_max: Annotated[
        int, Meta(ge=1, le=100, description="Deaths of its worker after which an item is given up.")
    ] = 3
    breaker_failures: Annotated[
        int,
        Meta(ge=1, le=1000, description="Failures in a row after which a target counts as down."),
    ] = 5
    breaker_cooldown_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="How long a target that is down is left alone.")
    ] = 10.0
    unsettled_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Outcomes waiting to be settled at which claiming pauses.",
        ),
    ] = 2000

    notice_seconds: Annotated[
        float,
        Meta(
            ge=0.01,
            le=60,
            description="How long a handler that is told to stop may take; then it is abandoned.",
        ),
    ] = 2.0
    abandoned_max: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        Meta(
            description="Abandoned handlers that still run, at which claiming pauses; none means"
            " as many as `concurrency`."
        ),
    ] = None

    @property
    def abandoned_handlers_max(self) -> int:
        """At how many claiming pauses, also where `abandoned_max` was left open."""
        return self.concurrency if self.abandoned_max is None else self.abandoned_max

    @property
    def heartbeat_every_seconds(self) -> float:
        """The pause between two heartbeats, also where `heartbeat_seconds` was left open."""
        if self.heartbeat_seconds is None:
            return self.lease_seconds / 3
        return self.heartbeat_seconds


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs are kept."""

    keep_days: Annotated[
        float,
        Meta(ge=0, le=36_500, description="How long a job that is over is kept with its history."),
    ] = 30.0
    keep_dead_letters_days: Annotated[
        float,
        Meta(ge=0, le=36_500, description="How long a dead letter is kept, to be looked at."),
    ] = 90.0
    keep_keys_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36_500,
            description="How long the key of a job is remembered, also when the job is gone.",
        ),
    ] = 365.0


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The level of the log."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        Meta(description="The least severe message that is written."),
    ] = "INFO"
    json: Annotated[
        bool, Meta(description="Whether each message is written as one JSON object per line.")
    ] = False

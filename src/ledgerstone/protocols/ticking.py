"""The tick: the jobs of a protocol that are due, one after the other, by one process at a time.

    lease ──▶ each job that is due: BEGIN; fence; run; when it comes again; COMMIT
      │                     └─ failed: on record, and the next job follows
      └─ held by another: nothing happens

Each transaction of a job compares the token of the lease: a process that was paused, and whose
lease another took, commits nothing more. A job may be longer than the lease: one in a transaction
of ours keeps the row of the lease locked, and for one that manages its transactions a thread renews
the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, and_, bindparam, null, select, update

from ledgerstone.engine.outcomes import failure_of
from ledgerstone.errors import Interrupted, LeaseLost, LedgerstoneError
from ledgerstone.failpoints import hit
from ledgerstone.ids import new_id
from ledgerstone.protocols.commands import Commands
from ledgerstone.protocols.incoming import ERROR_CHARS_MAX
from ledgerstone.protocols.protocol import Command, Protocol
from ledgerstone.protocols.results import Result
from ledgerstone.protocols.tables import protocol_job as job
from ledgerstone.store import leases
from ledgerstone.store.database import Database
from ledgerstone.store.leases import Lease
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

LEASE = "protocols.tick:{}"
AGAIN_SECONDS_MAX = 366 * 86_400.0
JOB_SECONDS_MAX = 86_400.0
"""A job that manages its transactions keeps the lease for so long at most."""
RENEWALS = 3
"""So often in the time of a lease it is renewed."""

_ms = bindparam("wait_ms", type_=BigInteger())
_error = bindparam("error_", type_=job.c.last_error.type)
_here = and_(job.c.protocol == bindparam("protocol_"), job.c.name == bindparam("name_"))
_declare = InsertRows(
    "protocols.declare_job", job, columns=("protocol", "name"), values={"next_at_ms": now_ms()}
)
_due = Statement(
    "protocols.due_jobs",
    select(job.c.name)
    .where(job.c.protocol == bindparam("protocol_"), job.c.next_at_ms <= now_ms())
    .order_by(job.c.next_at_ms, job.c.name),
)
_begin = Statement("protocols.begin_job", update(job).where(_here).values(begun_at_ms=now_ms()))
_succeed = Statement(
    "protocols.job_succeeded",
    update(job)
    .where(_here)
    .values(
        next_at_ms=now_ms() + _ms, succeeded_at_ms=now_ms(), runs=job.c.runs + 1, last_error=null()
    ),
)
_fail = Statement(
    "protocols.job_failed",
    update(job)
    .where(_here)
    .values(
        next_at_ms=now_ms() + _ms,
        failed_at_ms=now_ms(),
        runs=job.c.runs + 1,
        failures=job.c.failures + 1,
        last_error=_error,
    ),
)


class Ran(NamedTuple):
    """A job that was due, and why it failed if it did."""

    name: str
    error: str | None = None


class Ticked(msgspec.Struct, frozen=True):
    """What a tick did; `held` says that another process ticks."""

    ran: list[Ran] = []
    held: bool = False


class Ticker:
    """Ticks one protocol."""

    def __init__(
        self,
        database: Database[Any],
        protocol: Protocol,
        commands: Commands,
        *,
        lease_seconds: float,
    ) -> None:
        self._database = database
        self._protocol = protocol
        self._commands = commands
        self._lease_seconds = lease_seconds
        self._owner = new_id()
        self._declared = False

    def tick(self) -> Ticked:
        """Run each job that is due, once."""
        if not self._protocol.jobs:
            return Ticked()
        name = LEASE.format(self._protocol.name)
        owner = f"{self._owner}:{new_id()}"
        lease = self._database.run(
            lambda tx: leases.acquire(tx, name, owner, seconds=self._lease_seconds, wait=False)
        )
        if lease is None:
            return Ticked(held=True)
        ran: list[Ran] = []
        try:
            for command in self._due():
                ran.append(self._run(command, lease))
                hit("protocols.job_ran")
                lease = self._held(lease)
        except LeaseLost:
            return Ticked(ran, held=True)
        except Interrupted:
            # Outside of the context that is canceled: another process ticks at once.
            Context().run(self._release, lease)
            raise
        self._release(lease)
        return Ticked(ran)

    def _held(self, lease: Lease) -> Lease:
        """The lease, renewed, or taken again if it ran out in a long job; LeaseLost otherwise."""
        held = self._database.run(
            lambda tx: leases.acquire(
                tx, lease.name, lease.owner, seconds=self._lease_seconds, wait=False
            )
        )
        if held is None:
            raise LeaseLost(f"another process ticks {self._protocol.name}")
        return held

    def _release(self, lease: Lease) -> None:
        self._database.run(lambda tx: leases.release(tx, lease))

    def _due(self) -> list[Command]:
        protocol = self._protocol
        if not self._declared:
            rows = [{"protocol_": protocol.name, "name_": each.name} for each in protocol.jobs]
            self._database.run(lambda tx: [_declare.run(tx, [row]) for row in rows])
            self._declared = True
        with self._database.reading() as tx:
            names = [row[0] for row in _due.rows(tx, protocol_=protocol.name)]
        known = {each.name: each for each in protocol.jobs}
        return [known[name] for name in names if name in known]

    def _run(self, command: Command, lease: Lease) -> Ran:
        named = {"protocol_": self._protocol.name, "name_": command.name}

        def fence(tx: Transaction) -> None:
            leases.fence(tx, lease)

        def begin(tx: Transaction) -> None:
            fence(tx)
            _begin.run(tx, **named)

        def fail(tx: Transaction, words: str) -> None:
            fence(tx)
            _fail.run(tx, wait_ms=round(self._pause(command, None) * 1000), error_=words, **named)

        def end(tx: Transaction, result: Result) -> None:
            pause = self._pause(command, result.again_seconds)
            _succeed.run(tx, wait_ms=round(pause * 1000), **named)

        self._database.run(begin)
        try:
            with self._renewed(lease) if command.manages else nullcontext():
                self._commands.run(command.name, fence=fence, settle=end)
        except (LeaseLost, Interrupted):
            raise
        except Exception as error:  # noqa: BLE001 - a job may raise anything; the next one follows
            failure = failure_of(error)
            words = f"{failure.code}: {failure.message}"[:ERROR_CHARS_MAX]
            lease = self._held(lease)
            self._database.run(lambda tx: fail(tx, words))
            return Ran(command.name, words)
        return Ran(command.name)

    @contextmanager
    def _renewed(self, lease: Lease) -> Iterator[None]:
        """Renew the lease while a job begins its own transactions, for JOB_SECONDS_MAX at most."""
        done = threading.Event()
        every = self._lease_seconds / RENEWALS

        def renew() -> None:
            for _ in range(round(JOB_SECONDS_MAX / every)):
                if done.wait(every):
                    return
                try:
                    self._database.run(
                        lambda tx: leases.renew(tx, lease, seconds=self._lease_seconds)
                    )
                except LedgerstoneError as error:
                    if not error.retryable:
                        return

        thread = threading.Thread(target=renew, name="ledgerstone-tick-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @staticmethod
    def _pause(command: Command, again: float | None) -> float:
        assert command.every_seconds is not None
        wanted = command.every_seconds if again is None else again
        return min(max(wanted, 0.001), AGAIN_SECONDS_MAX)

"""A job from inside its handler: its fields, progress, steps, and the transaction that ends it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsFloat, TypeVar

import msgspec
from sqlalchemy import BigInteger, Double, bindparam, func, insert, select, update

from ledgerstone import cancellation
from ledgerstone.engine.source import (
    Cancel,
    Outcome,
    OutcomeKind,
    Settled,
    Snooze,
)
from ledgerstone.errors import BadInput, Duplicate, LeaseLost, NotAllowedNow
from ledgerstone.jobs import history, settling
from ledgerstone.jobs.states import Status
from ledgerstone.jobs.tables import STAGE_CHARS_MAX, STEP_CHARS_MAX, job, job_step, still
from ledgerstone.store.sql.expressions import now_after, now_ms
from ledgerstone.store.sql.json_body import decode, encode
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.jobs.settling import JobClaim, Rules
    from ledgerstone.ledger import Transaction as LedgerTransaction
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")
LOOK_SECONDS = 0.5
"""How often `canceled` asks the database."""

_log = logging.getLogger("ledgerstone.jobs")

_id = bindparam("id_", type_=job.c.id.type)
_mine = (
    job.c.id == _id,
    job.c.token == bindparam("token_", type_=BigInteger()),
    still(Status.RUNNING),
)
_report = Statement(
    "jobs.progress",
    update(job)
    .where(*_mine)
    .values(
        progress=bindparam("progress_", type_=Double()),
        stage=func.coalesce(bindparam("stage_", type_=job.c.stage.type), job.c.stage),
        updated_at=now_after(job.c.updated_at),
    ),
)
_hold = Statement("jobs.hold", select(job.c.id).where(*_mine).with_for_update())
_wanted = Statement("jobs.wanted", select(job.c.cancel_requested).where(*_mine))
_step = Statement(
    "jobs.step",
    select(job_step.c.result).where(
        job_step.c.job_id == _id, job_step.c.name == bindparam("name_", type_=job_step.c.name.type)
    ),
)
_remember = Statement(
    "jobs.remember",
    insert(job_step).values(
        job_id=_id,
        name=bindparam("name_", type_=job_step.c.name.type),
        attempt=bindparam("attempt_", type_=job_step.c.attempt.type),
        finished_at_ms=now_ms(),
        result=bindparam("result_", type_=job_step.c.result.type),
    ),
)


class Remembered(msgspec.Struct, frozen=True):
    """The answer of a finished step."""

    answer: Any


class Job:
    """The job that a handler runs; an async handler is given an `AsyncJob`.

    - `id`, `type`, `org_id`, `attempt` (from 1), `max_attempts`, `payload`, `requested_by`,
      `correlation_id` and `trace_context` are those of the job.
    - Every write compares the fencing token of the claim, and raises LeaseLost once another worker
      may have the job.
    - A handler that has to stop gets HandlerTimeout, LeaseLost or Interrupted from its next call
      here or from its next statement. Let these errors through. Call `check` in a handler that
      computes for long.
    - `progress` commits at once; `step` keeps the answer of a finished step across attempts.
    - `transaction` commits the handler's writes and the success of the job together.
    """

    def __init__(self, claim: JobClaim, database: Database[Any], rules: Rules) -> None:
        self.id = claim.key
        self.type = claim.type
        self.org_id = claim.org_id
        self.attempt = claim.attempt
        self.max_attempts = claim.max_attempts
        self.payload = decode(claim.body)
        self.requested_by = claim.requested_by
        self.correlation_id = claim.correlation_id
        self.trace_context = claim.trace_context
        self._claim = claim
        self._database = database
        self._rules = rules
        self._cancellation = cancellation.current()
        self._settled = False
        self._kept: str | None = None
        """The result that the job was ended with, as JSON."""
        self._ending = False
        self._unproved = False
        self._looked_at = float("-inf")
        self._unwanted = False

    def check(self) -> None:
        """Raise if the handler has to stop: it timed out, its lease is lost, or its worker stops.

        This needs no round trip to the database: call it as often as you like.
        """
        self._cancellation.check()

    @property
    def canceled(self) -> bool:
        """Whether a cancel was requested: then clean up and return `Cancel()`.

        Asks the database at most every LOOK_SECONDS.
        """
        self.check()
        moment = self._database.clock.monotonic()
        if not self._unwanted and moment - self._looked_at >= LOOK_SECONDS:
            self._looked_at = moment
            with self._database.reading() as tx:
                row = _wanted.one(tx, **self._held)
            if row is None:
                raise self._lost()
            self._unwanted = bool(row[0])
        return self._unwanted

    def progress(self, fraction: float, stage: str | None = None) -> None:
        """Commit the progress of the job, visible to others at once.

        - `fraction`: how much is done, from 0 to 1.
        - `stage`: a word for the current stage; None leaves it as it is.
        - Raises NotAllowedNow inside the transaction that ends the job.
        """
        self.check()
        self._check_open()
        if self._ending:
            message = "progress inside the transaction that ends the job would wait for it"
            raise NotAllowedNow(message, hint="tell it before job.transaction()")
        done = _fraction(fraction)
        if stage is not None:
            check_name(stage, "a stage", chars_max=STAGE_CHARS_MAX)

        def tell(tx: Transaction) -> None:
            if not _report.run(tx, **self._held, progress_=done, stage_=stage):
                raise self._lost()
            told = history.detail(progress=done, stage=stage, attempt=self.attempt)
            history.record(tx, [(self.id, told)], Status.RUNNING, Status.RUNNING)

        self._database.run(tell)

    def step(self, name: str, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function once over all attempts of the job; its answer, or the kept one.

        - `name`: names the step within its job.
        - `call`, `arguments`, `named`: the function, called unless the step has an answer already.
        - The answer is kept as JSON. If the process dies after the call and before the answer is
          committed, the next attempt calls the function again.
        """
        if inspect.iscoroutinefunction(call):
            raise _awaits(name)
        known = self.recalled(name)
        if known is not None:
            return known.answer  # type: ignore[no-any-return]
        self.check_may_remember()
        answer = call(*arguments, **named)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise _awaits(name)
        return self.remember(name, answer)  # type: ignore[no-any-return]

    def recalled(self, name: str) -> Remembered | None:
        """The kept answer of the step with this name; None if no such step has finished."""
        self.check()
        check_name(name, "a step", chars_max=STEP_CHARS_MAX)
        with self._database.reading() as tx:
            row = _step.one(tx, id_=self.id, name_=name)
        return Remembered(decode(row[0])) if row is not None else None

    def check_may_remember(self) -> None:
        """Raise NotAllowedNow once the job has ended: keeping a step would wait for that commit."""
        self._check_open()

    def remember(self, name: str, answer: Any) -> Any:
        """Keep the answer of a step; answers what another attempt would read.

        If another thread has finished the same step meanwhile, the answer of that thread counts.
        """
        if isinstance(answer, Snooze | Cancel | Settled):
            message = f"the step {name!r} answers {answer!r}, which is for the handler to return"
            raise BadInput(message, hint="let the step answer a value, and decide in the handler")
        self.check_may_remember()
        text = self._encoded(answer)

        def keep(tx: Transaction) -> None:
            self._fence(tx)
            _remember.run(tx, id_=self.id, name_=name, attempt_=self.attempt, result_=text)

        try:
            self._database.run(keep)
        except Duplicate:
            known = self.recalled(name)
            if known is None:
                raise
            return known.answer
        return decode(text)

    @contextmanager
    def transaction(self, result: object = None) -> Iterator[LedgerTransaction]:
        """A transaction that ends the job: its writes and the success of the job are one commit.

        - `result`: the result of the job, storable as JSON.
        - A job has one such transaction. A second one, inside or after the first, raises
          NotAllowedNow.
        - The return value of the handler comes after the commit: give the result here. To return
          Snooze or Cancel, open no transaction that ends the job.
        """
        self.check()
        self._check_open()
        if self._ending:
            message = "a transaction that ends this job is open already"
            raise NotAllowedNow(message, hint="use that one")
        self._ending = True
        try:
            with self._database.transaction() as tx:
                yield tx
                self._complete_in(tx, result)
        except BaseException:
            self._cancellation.open_gate()
            raise
        finally:
            self._ending = False
        self._settled = True

    def complete(self, tx: Transaction, result: object = None) -> None:
        """End the job in your own transaction: if that commits, the job has succeeded.

        - `tx`: a transaction of the ledger, for example `ledger.join(session)`.
        - `result`: the result of the job, storable as JSON.
        - Commit before the handler returns None or the same result. A handler that returns without
          the commit has failed.
        - After a rollback or a failed commit the handler may run its transaction again, with
          `complete` in it.
        """
        if self._unproved and _wanted.one(tx, **self._held) is not None:
            self._settled = self._unproved = False
            self._cancellation.open_gate()
        self._complete_in(tx, result)
        self._settled = self._unproved = True

    @property
    def unproved(self) -> bool:
        """Whether the job was ended by `complete`, whose commit is not known yet."""
        return self._unproved

    def ended(self, value: Any) -> Any:
        """The return value of the handler, or Settled if the handler has ended the job.

        Raises NotAllowedNow if the job was ended and this value says something else: the job stays
        succeeded, and the error is recorded like any failure after the end.
        """
        if not self._settled:
            return value
        if self._unproved:
            with self._database.reading() as tx:
                still_running = _wanted.one(tx, **self._held) is not None
            if still_running:
                message = "the transaction in which the job was completed did not commit"
                raise NotAllowedNow(message, hint="commit it before the handler returns")
        if value is not None:
            self._check_said_before(value)
        return Settled()

    def _check_said_before(self, value: Any) -> None:
        """Log and raise NotAllowedNow, unless the job was ended with this result."""
        hint = "give the result to job.transaction(result=…)"
        if isinstance(value, Snooze | Cancel):
            hint = "return it before job.transaction(), or write in a ledger.transaction() instead"
        elif self._encoded(value) == self._kept:
            return
        message = f"returned {value!r:.100} after it had ended the job: that is lost"
        _log.warning("%s %s: %s (%s)", self.type, self.id, message, hint)
        raise NotAllowedNow(message, hint=hint)

    def _complete_in(self, tx: Transaction, result: Any) -> None:
        self._check_open()
        self._kept = None if result is None else self._encoded(result)
        outcome = Outcome(self._claim, OutcomeKind.DONE, result=self._kept)
        # From here on the fencing token decides; a reason to stop would come too late.
        self._cancellation.close_gate()
        try:
            left = settling.settle(tx, [outcome], worker=None, rules=self._rules, waits=True)
        except BaseException:
            self._cancellation.open_gate()
            raise
        if left.lost:
            self._cancellation.open_gate()
            raise self._lost()

    def _encoded(self, value: Any) -> str:
        return encode(value, bytes_max=self._database.settings.body_bytes_max)

    def _check_open(self) -> None:
        if self._settled:
            message = "the job has ended already"
            raise NotAllowedNow(message, hint="do the rest in the transaction that ends it")

    def _fence(self, tx: Transaction) -> None:
        if _hold.one(tx, **self._held) is None:
            raise self._lost()

    @property
    def _held(self) -> dict[str, Any]:
        return {"id_": self.id, "token_": self._claim.token}

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"attempt {self.attempt} of job {self.id} is not its holder any more")


def _fraction(value: object) -> float:
    """The progress as a float, so that the row and the history have the same number."""
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        try:
            done = float(value)
        except (TypeError, ValueError, ArithmeticError):
            done = -1.0
        if 0 <= done <= 1:
            return done
    message = f"progress is a number from 0 to 1, not {value!r:.100}"
    raise BadInput(message)


def _awaits(step: str) -> BadInput:
    message = f"the step {step!r} is async, and the handler is not"
    hint = "make the handler an async function: it is given an AsyncJob, and awaits its steps"
    return BadInput(message, hint=hint)

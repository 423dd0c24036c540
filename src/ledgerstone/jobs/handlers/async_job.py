"""A job from inside an async handler: the calls of `Job`, awaited, without blocking the loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

from ledgerstone.engine.async_bridge import AsyncBridge
from ledgerstone.errors import BadInput, NotAllowedNow

if TYPE_CHECKING:
    from ledgerstone.async_transaction import AsyncTransaction
    from ledgerstone.jobs.handlers.running_job import Job
    from ledgerstone.ledger import Transaction

P = ParamSpec("P")
T = TypeVar("T")
THREAD = "ledgerstone-async-job"
"""The name of a job's thread."""
UNAWAITED_MAX = 10_000
"""Calls of one job that wait to be awaited."""


class AsyncJob:
    """The job that an async handler runs; its fields are those of `Job`.

    - Await each call. Its statements run in a thread of this job, one call after the other.
    - A handler that has to stop (timeout, lost lease, stopping worker) is canceled by asyncio:
      CancelledError at an await. A call that waits for the database is not interrupted: the
      cancellation arrives when it has returned.
    - A call that was never awaited fails the attempt.
    """

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.type = job.type
        self.org_id = job.org_id
        self.attempt = job.attempt
        self.max_attempts = job.max_attempts
        self.payload = job.payload
        self.requested_by = job.requested_by
        self.correlation_id = job.correlation_id
        self.trace_context = job.trace_context
        self._job = job
        self._bridge = AsyncBridge(THREAD)
        self._block: _EndingTransaction | None = None
        self._unawaited: dict[object, tuple[str, Coroutine[Any, Any, Any]]] = {}

    def check(self) -> None:
        """Raise if the handler has to stop; for code that computes for long between two awaits."""
        self._job.check()

    @property
    def canceled(self) -> Awaitable[bool]:
        """Whether a cancel was requested: `if await job.canceled`, then return `Cancel()`."""
        return _AwaitableFlag(lambda: self._bridge.run(lambda: self._job.canceled))

    def progress(self, fraction: float, stage: str | None = None) -> Coroutine[Any, Any, None]:
        """Commit the progress, from 0 to 1, and the current stage (None leaves it as it is)."""
        tell = partial(self._job.progress, fraction, stage)
        return self._asked("progress", lambda: self._bridge.run(tell))

    @overload
    def step(
        self,
        name: str,
        call: Callable[P, Coroutine[Any, Any, T]],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(
        self, name: str, call: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    def step(
        self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a function once over all attempts of the job; its answer, or the kept one.

        - `name`, `call`, `arguments`, `named`: as for `Job.step`.
        - An async function runs on the loop; a plain one in the thread of the job, where it is not
          interrupted.
        - The answer is kept as JSON. If the process dies after the call and before the answer is
          committed, the next attempt calls the function again.
        """
        work = partial(call, *arguments, **named)
        return self._asked("step", lambda: self._step(name, work))

    def transaction(self, result: object = None) -> AbstractAsyncContextManager[AsyncTransaction]:
        """A transaction that ends the job: its writes and the success of the job are one commit.

        `async with job.transaction() as tx:`, and then `await tx.jobs.enqueue(…)`, or
        `await tx.run(lambda tx: tx.connection.execute(…))` for statements of your own. `result` is
        the result of the job, storable as JSON.
        """
        return _EndingTransaction(self._job, self._bridge, result, self._opened)

    def complete(self, tx: AsyncTransaction, result: object = None) -> Coroutine[Any, Any, None]:
        """End the job in your own transaction: if that commits, the job has succeeded.

        - `tx`: what `ledger.join` answers for an AsyncSession or an AsyncConnection.
        - `result`: the result of the job, storable as JSON.
        - Commit before the handler returns. A handler that returns without the commit has failed.
        """
        if not inspect.iscoroutinefunction(getattr(tx, "run", None)):
            message = f"an async job is completed in an AsyncTransaction, not in {tx!r:.100}"
            raise BadInput(message, hint="give what ledger.join(async_session) answers")
        return self._asked(
            "complete", lambda: tx.run(lambda sync: self._job.complete(sync, result))
        )

    async def ended(self, value: Any) -> Any:
        """As `Job.ended`; also refuses calls that were never awaited."""
        self._forget_cancelled()
        if self._unawaited:
            (name, _), *_ = self._unawaited.values()
            message = f"job.{name} was called and not awaited"
            raise NotAllowedNow(message, hint=f"write `await job.{name}(…)`")
        if self._job.unproved:
            return await self._bridge.run(partial(self._job.ended, value))
        return self._job.ended(value)

    def close(self) -> None:
        """The handler has ended: what it left open is undone."""
        for _, coroutine in self._unawaited.values():
            coroutine.close()
        self._unawaited.clear()
        if self._block is not None:
            self._block.abandon()
        self._bridge.close()

    async def _step(self, name: str, work: partial[Any]) -> Any:
        known = await self._bridge.run(partial(self._job.recalled, name))
        if known is not None:
            return known.answer
        self._job.check_may_remember()
        if inspect.iscoroutinefunction(work):
            answer = await work()
        else:
            answer = await self._bridge.run(work)
            if inspect.isawaitable(answer):
                answer = await answer
        return await self._bridge.run(partial(self._job.remember, name, answer))

    def _asked(
        self, name: str, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """A call that is known to be open until it is awaited."""
        if len(self._unawaited) >= UNAWAITED_MAX:
            self._forget_cancelled()
        if len(self._unawaited) >= UNAWAITED_MAX:
            message = f"{UNAWAITED_MAX} calls of this job were not awaited yet"
            raise NotAllowedNow(message, hint=f"write `await job.{name}(…)`")
        key = object()

        async def asked() -> T:
            self._unawaited.pop(key, None)
            return await work()

        coroutine = asked()
        self._unawaited[key] = (name, coroutine)
        return coroutine

    def _forget_cancelled(self) -> None:
        """A task that is cancelled before it has begun awaits nothing, and that is right."""
        for key, (_, coroutine) in list(self._unawaited.items()):
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
                del self._unawaited[key]

    def _opened(self, block: _EndingTransaction | None) -> None:
        if block is not None and self._block is not None:
            message = "a transaction that ends this job is open already"
            raise NotAllowedNow(message, hint="use that one")
        self._block = block


class _AwaitableFlag:
    """A question that is awaited, and is no answer until then."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self._ask = ask

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._ask().__await__()

    def __bool__(self) -> NoReturn:
        message = "job.canceled of an async job is awaited"
        raise NotAllowedNow(message, hint="write `if await job.canceled:`")


class _EndingTransaction:
    """The transaction that ends an async job: the one of `Job`, carried out in the job's thread."""

    def __init__(
        self,
        job: Job,
        bridge: AsyncBridge,
        result: Any,
        opened: Callable[[_EndingTransaction | None], None],
    ) -> None:
        self._job = job
        self._bridge = bridge
        self._result = result
        self._opened = opened
        self._begun: AbstractContextManager[Transaction] | None = None
        self._tx: Transaction | None = None

    async def __aenter__(self) -> AsyncTransaction:
        self._opened(self)
        try:
            tx = await self._bridge.run(self._begin)
            return tx.awaited(self._carry)
        except BaseException:
            self.abandon()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if isinstance(error, GeneratorExit):
            self.abandon()
            return None
        try:
            end = partial(self._end, kind, error, traceback)
            return await self._bridge.run(end, surely=True)
        finally:
            self._opened(None)

    def __enter__(self) -> NoReturn:
        message = "the transaction of an async job is awaited"
        raise NotAllowedNow(message, hint="write `async with job.transaction() as tx:`")

    def __exit__(self, *_: object) -> None:
        """Never: it was not entered."""

    def abandon(self) -> None:
        """Have it undone if it has begun, without waiting for that."""
        self._opened(None)
        undone = NotAllowedNow("the handler has left its transaction")
        # If the thread takes nothing more, the end of the job came before and has seen to it.
        with suppress(NotAllowedNow):
            self._bridge.give(partial(self._end, type(undone), undone, None))

    def _begin(self) -> Transaction:
        begun = self._job.transaction(self._result)
        self._tx = tx = begun.__enter__()
        self._begun = begun
        return tx

    def _end(self, *raised: Any) -> bool | None:
        begun, self._begun, self._tx = self._begun, None, None
        return begun.__exit__(*raised) if begun is not None else None

    async def _carry(self, work: Callable[[Transaction], T], /) -> T:
        def carried() -> T:
            if self._tx is None:
                message = "the transaction of the job has ended"
                raise NotAllowedNow(message, hint="use it inside its block")
            return work(self._tx)

        return await self._bridge.run(carried)

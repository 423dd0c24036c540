"""The handlers of jobs: they check the arguments again and call the function of the user."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ledgerstone import log_context
from ledgerstone.engine.source import ExecutorKind, Handler
from ledgerstone.errors import BadInput, Hopeless
from ledgerstone.jobs.handlers.async_job import AsyncJob
from ledgerstone.jobs.handlers.kinds import Kind, Kinds
from ledgerstone.jobs.handlers.running_job import Job

if TYPE_CHECKING:
    from ledgerstone.jobs.settling import JobClaim, Rules
    from ledgerstone.store.database import Database


class HandlerFactory:
    """Makes the handler of each kind: the function of the user, called with a job's arguments."""

    def __init__(self, database: Database[Any], kinds: Kinds, rules: Rules) -> None:
        self._database = database
        self._kinds = kinds
        self._rules = rules
        self._handlers: dict[str, Handler] = {}

    def handler(self, name: str) -> Handler:
        """The handler of a kind that the process knows."""
        handler = self._handlers.get(name)
        if handler is None:
            kind = self._kinds.get(name)
            assert kind is not None
            handler = self._handlers[name] = self._made(kind)
        return handler

    def _made(self, kind: Kind) -> Handler:
        return Handler(self._call_of(kind), kind.where, gives_up=kind.gives_up)

    def _call_of(self, kind: Kind) -> Callable[..., Any]:
        match kind.where:
            case ExecutorKind.THREAD:
                return partial(self._run, kind)
            case ExecutorKind.LOOP:
                return partial(self._run_async, kind)
            case ExecutorKind.PROCESS:
                return partial(_run_in_process, kind.name, kind.call)

    def _run(self, kind: Kind, claim: JobClaim) -> Any:
        arguments = _arguments(kind, claim)
        with log_context.bound(**claim.log_ids):
            if not kind.takes_job:
                return kind.call(**arguments)
            running = Job(claim, self._database, self._rules)
            return running.ended(kind.call(running, **arguments))

    async def _run_async(self, kind: Kind, claim: JobClaim) -> Any:
        arguments = _arguments(kind, claim)
        with log_context.bound(**claim.log_ids):
            if not kind.takes_job:
                return await kind.call(**arguments)
            running = AsyncJob(Job(claim, self._database, self._rules))
            try:
                return await running.ended(await kind.call(running, **arguments))
            finally:
                running.close()


def _run_in_process(name: str, call: Callable[..., Any], claim: JobClaim) -> Any:
    """Call the function in a child process, which has neither the job nor the database."""
    arguments = _arguments(Kinds().add(name, call), claim)
    with log_context.bound(**claim.log_ids):
        return call(**arguments)


def _arguments(kind: Kind, claim: JobClaim) -> dict[str, Any]:
    try:
        return kind.parsed(claim.body)
    except BadInput as error:
        # The code has changed since the job was accepted: every attempt would fail.
        raise Hopeless(error.message, hint=error.hint) from error

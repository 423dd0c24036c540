"""Kinds of jobs: the function behind a type, what arguments it takes, and how it is run.

The arguments are read off the function's signature once and checked twice: when a job is accepted,
so that what cannot run is refused before it is stored, and when it is run, for code may have
changed in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import msgspec

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.outcomes import is_of
from ledgerstone.engine.source import ExecutorKind
from ledgerstone.errors import BadInput, LedgerstoneError
from ledgerstone.jobs.handlers import signatures
from ledgerstone.jobs.handlers.signatures import JOB_PARAMETER, Signature
from ledgerstone.jobs.tables import (
    DEFAULT_QUEUE,
    KEY_CHARS_MAX,
    MAX_ATTEMPTS,
    QUEUE_CHARS_MAX,
    TYPE_CHARS_MAX,
)
from ledgerstone.store.sql.names import check_name

ATTEMPTS_LIMIT = 1000
PRIORITY_MAX = 1_000_000
TIMEOUT_SECONDS_MAX = 7 * 86_400
LIMIT_MAX = 1_000_000

LimitKey = Callable[..., str | None]
ErrorTypes = tuple[type[BaseException], ...]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `most` jobs with the same key run at once, on all workers together.

    - The key is made from those arguments of a job that its function names; None: this job is not
      limited.
    - A key is the same in all queues, for all types and organisations.
    """

    key: LimitKey
    most: int = 1


class NoLimitKey(BadInput):
    """Give other arguments, or mend the function: it made no limit key of these."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A type of job: its function and how it is run."""

    name: str
    call: Callable[..., Any]
    arguments: type[msgspec.Struct]
    decoder: msgspec.json.Decoder[msgspec.Struct]
    takes_job: bool
    where: ExecutorKind
    queue: str = DEFAULT_QUEUE
    max_attempts: int = MAX_ATTEMPTS
    priority: int = 0
    backoff: Backoff = Backoff()
    timeout_seconds: float | None = None
    retry_on: ErrorTypes | None = None
    give_up_on: ErrorTypes = ()
    limit: Limit | None = None
    limited_by: tuple[str, ...] = ()
    """The arguments that its limit key is made from."""

    def parsed(self, payload: str) -> dict[str, Any]:
        """The arguments that a payload holds as JSON, by name; BadInput if they do not fit."""
        found = self._decoded(payload)
        return {name: getattr(found, name) for name in self.arguments.__struct_fields__}

    def checked(self, payload: str) -> str | None:
        """The limit key of a job with this payload, as JSON; BadInput if it does not fit."""
        found = self._decoded(payload)
        return self._limit_key(found) if self.limit is not None else None

    def gives_up(self, error: BaseException) -> bool:
        """Whether no other attempt is made after this error.

        Errors of Ledgerstone that may pass (a timeout, a crash, a database out of reach) are
        retried unless `give_up_on` names them.
        """
        if is_of(error, self.give_up_on):
            return True
        if self.retry_on is None or (isinstance(error, LedgerstoneError) and error.retryable):
            return False
        return not is_of(error, self.retry_on)

    def terms(self, limit_key: str | None = None) -> Terms:
        """The columns of a job with this limit."""
        limit = self.limit if limit_key is not None else None
        return Terms(
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            backoff_policy=self.backoff.policy,
            limit_key=limit_key,
            limit_max=limit.most if limit is not None else None,
        )

    def _decoded(self, payload: str) -> msgspec.Struct:
        try:
            return self.decoder.decode(payload)
        except msgspec.DecodeError as error:
            message = f"the arguments of {self.name} do not fit: {error}"
            raise BadInput(message, hint=f"it takes {self.takes}") from error

    def _limit_key(self, found: msgspec.Struct) -> str | None:
        assert self.limit is not None
        call = self.limit.key
        try:
            key: object = call(**{name: getattr(found, name) for name in self.limited_by})
        except Exception as error:
            message = f"the limit key of {self.name} ({_called(call)}) raised {error!r}"
            raise NoLimitKey(
                message, hint="give arguments that it is made for, or mend it"
            ) from error
        if key is not None and not isinstance(key, str):
            message = f"the limit key of {self.name} ({_called(call)}) is text or None, not {key!r}"
            raise NoLimitKey(message, hint="return str(…) of it")
        if key is not None:
            try:
                check_name(key, "a limit key", chars_max=KEY_CHARS_MAX)
            except BadInput as error:
                raise NoLimitKey(error.message, hint=error.hint) from error
        return key

    @property
    def takes(self) -> str:
        """The arguments, for people."""
        fields = msgspec.structs.fields(self.arguments)
        return ", ".join(f"{field.name}: {_spelled(field.type)}" for field in fields) or "nothing"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """All that accepting a job takes from its kind, for whoever does not know the kind."""

    queue: str
    priority: int
    max_attempts: int
    backoff_policy: BackoffPolicy
    limit_key: str | None = None
    limit_max: int | None = None

    def kinds(self, name: str) -> Kinds:
        """Kinds by which a job of this type is accepted on these terms, whatever its arguments."""
        key = self.limit_key
        limit = Limit(key=lambda: key, most=self.limit_max or 1) if key is not None else None
        stand_in = Kind(
            name=name,
            call=_nobody,
            arguments=msgspec.Struct,
            decoder=msgspec.json.Decoder(),
            takes_job=False,
            where=ExecutorKind.THREAD,
            queue=self.queue,
            max_attempts=self.max_attempts,
            priority=self.priority,
            backoff=Backoff(policy=self.backoff_policy),
            limit=limit,
        )
        return Kinds([stand_in])


def _nobody() -> None:
    """Nothing is run by terms."""


class Kinds:
    """The kinds that this process knows; one that is known stays known."""

    def __init__(self, known: Iterable[Kind] = ()) -> None:
        self._by_name: dict[str, Kind] = {kind.name: kind for kind in known}
        self._names: dict[Callable[..., Any], str] = {}
        self.shapes: dict[Any, Any] = {}
        """The values that `accepting` has derived from these options."""

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, name: str, call: Callable[..., Any], **options: Any) -> Kind:
        """Make a type of job known; BadInput if it cannot be run like that."""
        check_name(name, "a type of job", chars_max=TYPE_CHARS_MAX)
        if name in self._by_name:
            message = f"there is a job {name!r} already"
            raise BadInput(message, hint="give each type of job its own name")
        kind = _made(name, call, options)
        if not _is_findable(call):
            message = f"the function of {name} cannot be found again: {call!r} is not hashable"
            raise BadInput(message, hint="wrap it in a function of your own")
        self._by_name[name] = kind
        self._names[call] = name
        return kind

    def get(self, name: str) -> Kind | None:
        return self._by_name.get(name)

    def name_of(self, job: str | Callable[..., Any]) -> str:
        """The type that a caller means, by its name or by its function."""
        if isinstance(job, str):
            check_name(job, "a type of job", chars_max=TYPE_CHARS_MAX)
            return job
        name = self._names.get(job) if _is_findable(job) else None
        if name is None:
            message = f"{job!r} is no job of this ledger"
            raise BadInput(message, hint="decorate it with @ledger.job(name)")
        return name

    def of_queue(self, queue: str) -> list[Kind]:
        return [kind for kind in self._by_name.values() if kind.queue == queue]

    def all(self) -> Mapping[str, Kind]:
        return dict(self._by_name)


def _is_findable(call: Any) -> bool:
    """Whether it can be the key of a dict: an object that can be called need not be."""
    return isinstance(call, Hashable)


def _made(name: str, call: Callable[..., Any], options: dict[str, Any]) -> Kind:
    processes = options.pop("process", False)
    for option in ("retry_on", "give_up_on"):
        if options.get(option) is not None:
            options[option] = _error_types(name, option, options[option])
    signature = signatures.read(name, call)
    kind = Kind(
        name=name,
        call=call,
        arguments=signature.arguments,
        decoder=signature.decoder,
        takes_job=signature.takes_job,
        where=_where(signature, process=processes),
        **options,
    )
    check_name(kind.queue, "a queue", chars_max=QUEUE_CHARS_MAX)
    _check_bounds(kind)
    _check_given(kind, signature.job_type)
    if kind.limit is not None:
        kind = msgspec.structs.replace(kind, limited_by=_limited_by(kind, kind.limit))
    if kind.where is ExecutorKind.PROCESS and "<" in getattr(call, "__qualname__", "<"):
        message = f"the function of {name} cannot be imported in another process"
        raise BadInput(message, hint="define it at the top of a module")
    if kind.where is ExecutorKind.PROCESS and kind.takes_job:
        message = f"{name} runs in a process of its own and cannot be given the job"
        raise BadInput(message, hint="leave its first parameter out, or do not use process=True")
    return kind


def _error_types(name: str, option: str, given: Any) -> ErrorTypes:
    """The types of errors that an option names; BadInput if one is no type of error."""
    listed = isinstance(given, Iterable) and not isinstance(given, type | str)
    types = tuple(given) if listed else (given,)
    for each in types:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            message = f"{option} of {name} names types of exceptions, not {each!r}"
            raise BadInput(message, hint=f"write {option}=(ConnectionError, TimeoutError)")
    return types


def _check_bounds(kind: Kind) -> None:
    for what, given, least, most in (
        ("max_attempts", kind.max_attempts, 1, ATTEMPTS_LIMIT),
        ("priority", kind.priority, -PRIORITY_MAX, PRIORITY_MAX),
    ):
        number: object = given
        if type(number) is not int or not least <= number <= most:
            message = f"{what} of {kind.name} is {least} to {most}, not {number!r}"
            raise BadInput(message, hint="give a whole number between these")
    timeout: object = kind.timeout_seconds
    if timeout is not None and (
        not isinstance(timeout, int | float)
        or isinstance(timeout, bool)
        or not 0 < timeout <= TIMEOUT_SECONDS_MAX
    ):
        message = f"a timeout is more than 0 and at most {TIMEOUT_SECONDS_MAX} s, not {timeout!r}"
        raise BadInput(message, hint="give seconds, or None for no timeout")
    backoff: object = kind.backoff
    if not isinstance(backoff, Backoff):
        message = f"the back-off of {kind.name} is a Backoff, not {backoff!r}"
        raise BadInput(message, hint="write backoff=Backoff(seconds=…)")
    backoff.check()
    both = [each.__name__ for each in kind.retry_on or () if each in kind.give_up_on]
    if both:
        message = f"{kind.name} has {', '.join(both)} in retry_on and in give_up_on"
        raise BadInput(message, hint="name it in one of them")
    limit: object = kind.limit
    if limit is None:
        return
    if not isinstance(limit, Limit) or not callable(limit.key):
        message = f"the limit of {kind.name} is a Limit with a function as its key, not {limit!r}"
        raise BadInput(message, hint="write limit=Limit(key=lambda customer: customer)")
    held: object = limit.most
    if type(held) is not int or not 1 <= held <= LIMIT_MAX:
        message = f"a limit is 1 to {LIMIT_MAX}, not {held!r}"
        raise BadInput(message)


def _check_given(kind: Kind, job_type: Any) -> None:
    """A function that expects the other kind of job would call it in vain."""
    # Not at the top: most programs that enqueue jobs run none.
    from ledgerstone.jobs.handlers.async_job import AsyncJob
    from ledgerstone.jobs.handlers.running_job import Job

    if not kind.takes_job:
        return
    given, other = (AsyncJob, Job) if kind.where is ExecutorKind.LOOP else (Job, AsyncJob)
    if job_type is other:
        which = "an async" if given is AsyncJob else "a plain"
        message = f"{kind.name} is {which} function: it is given {given.__name__}"
        raise BadInput(message, hint=f"write `{JOB_PARAMETER}: {given.__name__}`")


def _limited_by(kind: Kind, limit: Limit) -> tuple[str, ...]:
    """The arguments that the key function of a limit names; BadInput if the job has them not."""
    fields = kind.arguments.__struct_fields__
    hint = f"name arguments of the job; it takes {kind.takes}"
    try:
        parameters = inspect.signature(limit.key).parameters.values()
    except (TypeError, ValueError) as error:
        message = f"what the limit key of {kind.name} takes cannot be seen: {_called(limit.key)}"
        raise BadInput(message, hint=hint) from error
    for one in parameters:
        named = one.name in fields and one.kind is not one.POSITIONAL_ONLY
        starred = one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
        if not named and not starred and one.default is one.empty:
            message = f"the limit key of {kind.name} ({_called(limit.key)}) takes {one.name}, "
            message += "which is no argument of the job"
            raise BadInput(message, hint=hint)
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return fields
    by_name = {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY}
    return tuple(name for name in fields if name in by_name)


def _called(call: Callable[..., Any]) -> str:
    return getattr(call, "__qualname__", None) or repr(call)


def _where(signature: Signature, *, process: bool) -> ExecutorKind:
    if signature.is_async:
        if process:
            message = "an async function runs on the event loop, not in a process of its own"
            raise BadInput(message)
        return ExecutorKind.LOOP
    return ExecutorKind.PROCESS if process else ExecutorKind.THREAD


def _spelled(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")

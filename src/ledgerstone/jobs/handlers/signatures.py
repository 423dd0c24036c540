"""The signature of a handler: its arguments, and whether it takes the job.

A signature that can never work is refused here, when the function is made a job: otherwise each
of its jobs would be refused or fail, one by one and much later.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect as types

from ledgerstone.errors import BadInput

JOB_PARAMETER = "job"
"""A first parameter of this name is given the job itself."""
_SAMPLES: tuple[object, ...] = (None, True, 0, 0.0, "", [], {})
"""One of each that JSON is read as."""


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function, and its kind."""

    arguments: type[msgspec.Struct]
    decoder: msgspec.json.Decoder[msgspec.Struct]
    takes_job: bool
    job_type: Any
    """The annotation of the parameter for the job, if it can be read."""
    is_async: bool


def read(name: str, call: Callable[..., Any]) -> Signature:
    """The signature of the function of a job; BadInput if it cannot be run as one."""
    given: object = call
    if not callable(given) or inspect.isclass(given):
        message = f"the job {name} is a function, not {given!r}"
        raise BadInput(message, hint="decorate a function with @ledger.job(name)")
    function = _function(call)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"the function of {name} yields: nobody would take what it yields"
        raise BadInput(message, hint="return what it answers; use `job.step` for its steps")
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        message = f"what the function of {name} takes cannot be seen: {call!r}"
        raise BadInput(message, hint="wrap it in a function of your own") from error
    first = parameters.pop(0) if parameters and parameters[0].name == JOB_PARAMETER else None
    arguments = _arguments(name, function, parameters)
    return Signature(
        arguments,
        _decoder(name, arguments),
        first is not None,
        _job_type(function, first) if first is not None else None,
        inspect.iscoroutinefunction(function),
    )


def _function(call: Any) -> Any:
    """The function that is called: behind partials, static methods and callable objects."""
    while isinstance(call, functools.partial | staticmethod):
        call = call.func if isinstance(call, functools.partial) else call.__func__
    return call if inspect.isroutine(call) else call.__call__


def _annotated(function: Any, parameter: inspect.Parameter) -> Any:
    """The annotation of a parameter, resolved in the module of the function."""
    if parameter.annotation is parameter.empty:
        return Any
    # `get_type_hints` would look up the others too, and what is returned: they may not be known.
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    # A decorator may stand elsewhere than what it decorates, whose signature it shows.
    known = getattr(inspect.unwrap(function), "__globals__", {})
    return get_type_hints(alone, known, include_extras=True)[parameter.name]


def _job_type(function: Any, parameter: inspect.Parameter) -> Any:
    try:
        return _annotated(function, parameter)
    except Exception:  # noqa: BLE001 - it is only looked at, and may be known to type checkers alone
        return None


def _arguments(
    name: str, function: Any, parameters: list[inspect.Parameter]
) -> type[msgspec.Struct]:
    """A struct with a field for each argument, which refuses what it does not know."""
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            message = f"the job {name} takes *{parameter.name}: its arguments could not be checked"
            raise BadInput(message, hint="name every argument")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            message = f"the job {name} takes {parameter.name} by its place, not by its name"
            raise BadInput(message, hint="leave out the / in its signature")
        try:
            kind = _annotated(function, parameter)
        except Exception as error:
            message = f"the annotation of {parameter.name} of {name} cannot be looked up: {error}"
            raise BadInput(
                message,
                hint="import it at the top of the module, not under `if TYPE_CHECKING:`, "
                "and define it outside of functions",
            ) from error
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
    return msgspec.defstruct(
        f"Arguments of {name}", fields, kw_only=True, forbid_unknown_fields=True
    )


def _default(value: Any) -> Any:
    """As msgspec wants it: what can be changed is made anew for each."""
    if isinstance(value, list | dict | set | bytearray | msgspec.Struct):
        return msgspec.field(default_factory=functools.partial(copy, value))
    return value


def _decoder(name: str, arguments: type[msgspec.Struct]) -> msgspec.json.Decoder[msgspec.Struct]:
    try:
        decoder = msgspec.json.Decoder(arguments)
        foreign = next(_foreign(types.type_info(arguments), set()), None)
    except Exception as error:
        message = f"the arguments of {name} cannot be checked as they are annotated: {error}"
        raise BadInput(message, hint="annotate them with types that JSON can be read as") from error
    if foreign is not None:
        message = f"{foreign.__qualname__}, an argument of {name}, cannot be read from JSON"
        raise BadInput(
            message,
            hint="make it a dataclass, a msgspec.Struct, a TypedDict or an attrs class, "
            "or take a dict and make the object of it in the function",
        )
    return decoder


def _foreign(found: Any, seen: set[int]) -> Iterator[type]:
    """The classes that have to be given and that no JSON is read as."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, types.CustomType):
        if not any(isinstance(sample, found.cls) for sample in _SAMPLES):
            yield found.cls
        return
    if isinstance(found, types.Field) and not found.required:
        # It can be left out: a function may have one for callers that are no jobs.
        return
    inner = ("type", "types", "fields", "item_type", "item_types", "key_type", "value_type")
    for attribute in inner:
        parts = getattr(found, attribute, ())
        for part in parts if isinstance(parts, tuple) else (parts,):
            yield from _foreign(part, seen)

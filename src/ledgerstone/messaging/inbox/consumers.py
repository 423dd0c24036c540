"""Consumers: the functions that handle messages, by the names of messages that they are for.

What a consumer has handled is remembered under its name: it stays the same when the function is
moved or renamed, or everything that can still arrive again is handled again.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine.atomic import run_coroutine
from ledgerstone.errors import BadInput
from ledgerstone.messaging.message import NAME_CHARS_MAX, Message
from ledgerstone.messaging.outbox.routing import _expression
from ledgerstone.messaging.tables import CONSUMER_CHARS_MAX

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

NAMES_SEEN_MAX = 4096
"""Names of messages whose consumers are remembered: the same few come again and again."""

# The shared table compares without case, and takes letters with and without accents for the same.
_NAME = re.compile(r"[!-~]([ -~]*[!-~])?")
# Others name their messages as they like: com.github.pull_request.opened, App\Order\Placed.
_PATTERN = re.compile(r"[^.?\s\x00-\x1f\x7f]+(\.[^.?\s\x00-\x1f\x7f]+)*")


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A function that handles messages, called with a transaction and the message.

    `ordered`: messages of one partition are handled one after the other, in the order of arrival.
    """

    name: str
    pattern: str
    call: Callable[..., Any]
    ordered: bool = False

    def run(self, tx: Transaction, message: Message) -> None:
        """Call it; an async one runs to its end here."""
        answer = self.call(tx, message)
        if inspect.iscoroutine(answer):
            run_coroutine(lambda: answer)


class Consumers:
    """The consumers that this process knows."""

    def __init__(self) -> None:
        self._by_name: dict[str, Consumer] = {}
        self._of = lru_cache(maxsize=NAMES_SEEN_MAX)(self._matching)

    def add(
        self,
        pattern: Any,
        call: Any,
        *,
        name: str | None = None,
        ordered: bool = False,
    ) -> Consumer:
        """Make a consumer known; BadInput if it cannot be one.

        - `*` in the pattern stands for any characters; `*` alone is every message.
        - The name is that of the function, with its module, unless another is given.
        """
        fits = isinstance(pattern, str) and len(pattern) <= NAME_CHARS_MAX
        if not fits or not _PATTERN.fullmatch(pattern):
            message = f"{pattern!r} is no pattern of names of messages"
            raise BadInput(message, hint="write order.placed, order.* or *")
        _check_call(call)
        consumer = Consumer(
            name=_checked(_name_of(call) if name is None else name),
            pattern=pattern,
            call=call,
            ordered=ordered,
        )
        if consumer.name.lower() in {known.lower() for known in self._by_name}:
            message = f"there is a consumer {consumer.name!r} already"
            raise BadInput(message, hint="give each its own name: name=…; case does not tell")
        self._by_name[consumer.name] = consumer
        self._of.cache_clear()
        return consumer

    def of(self, message_name: str) -> list[Consumer]:
        """The consumers of a message, in the order in which they were made known."""
        return list(self._of(message_name))

    def get(self, name: str) -> Consumer | None:
        return self._by_name.get(name)

    def all(self) -> Mapping[str, Consumer]:
        return dict(self._by_name)

    def _matching(self, message_name: str) -> tuple[Consumer, ...]:
        return tuple(
            consumer
            for consumer in self._by_name.values()
            if re.fullmatch(_expression(consumer.pattern), message_name)
        )


def _check_call(call: Any) -> None:
    if not callable(call):
        raise BadInput(f"{call!r} is no function", hint="decorate a function: def f(tx, message)")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        message = f"{_shown(call)} yields: calling it would handle nothing"
        raise BadInput(message, hint="write it without yield")
    try:
        signature = inspect.signature(call)
    except ValueError:
        # Built in, and says nothing of what it takes.
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        message = f"{_shown(call)}{signature} cannot handle messages: {error}"
        raise BadInput(message, hint="it is called with two arguments: f(tx, message)") from error


def _name_of(call: Any) -> str:
    """The dotted name of a function, the same whether its module is imported or started."""
    name = getattr(call, "__qualname__", None)
    if name is None or "<lambda>" in name:
        raise BadInput(f"{call!r} has no name of its own", hint="give it one: name=…")
    return f"{_module_of(call)}.{name}"


def _module_of(call: Any) -> str:
    if call.__module__ != "__main__":
        return str(call.__module__)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"


def _checked(name: Any) -> str:
    fits = isinstance(name, str) and len(name) <= CONSUMER_CHARS_MAX
    if fits and _NAME.fullmatch(name):
        return str(name)
    message = f"{name!r} is no name of a consumer"
    hint = f"give it one of at most {CONSUMER_CHARS_MAX} ASCII characters: name='mailer'"
    raise BadInput(message, hint=hint)


def _shown(call: Any) -> str:
    return getattr(call, "__qualname__", None) or repr(call)

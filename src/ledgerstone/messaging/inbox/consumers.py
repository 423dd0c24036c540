"""Consumers: the functions that handle messages, selected by the name of the message.

Receipts are stored under the name of the consumer. The name must stay the same when the function is
moved or renamed; otherwise every message that is delivered again is handled again.
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
"""How many names are cached with their consumers."""

# The shared table compares without case and treats accented letters as equal.
_NAME = re.compile(r"[!-~]([ -~]*[!-~])?")
# Other programs use other names: com.github.pull_request.opened, App\Order\Placed.
_PATTERN = re.compile(r"[^.?\s\x00-\x1f\x7f]+(\.[^.?\s\x00-\x1f\x7f]+)*")


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A function that handles messages. It is called with a transaction and the message.

    - `pattern`: the names of the messages; `*` matches any characters.
    - `ordered`: messages of one partition are handled one at a time, in their order.
    """

    name: str
    pattern: str
    call: Callable[..., Any]
    ordered: bool = False

    def run(self, tx: Transaction, message: Message) -> None:
        """Calls the function; runs the coroutine of an async function to its end."""
        answer = self.call(tx, message)
        if inspect.iscoroutine(answer):
            run_coroutine(lambda: answer)


class Consumers:
    """The consumers of this process."""

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
        """Registers a consumer. Raises BadInput if the function cannot be one.

        - `pattern`: the names of the messages; `*` matches any characters, `*` alone every name.
        - `call`: a function of two arguments, the transaction and the message.
        - `name`: the name under which receipts are stored; default: module and function name.
        - `ordered`: handle messages of one partition one at a time, in their order.
        """
        fits = isinstance(pattern, str) and len(pattern) <= NAME_CHARS_MAX
        if not fits or not _PATTERN.fullmatch(pattern):
            message = f"{pattern!r} is not a pattern of message names"
            raise BadInput(message, hint="write order.placed, order.* or *")
        _check_call(call)
        consumer = Consumer(
            name=_checked(_name_of(call) if name is None else name),
            pattern=pattern,
            call=call,
            ordered=ordered,
        )
        if consumer.name.lower() in {known.lower() for known in self._by_name}:
            message = f"a consumer named {consumer.name!r} exists already"
            raise BadInput(message, hint="give each its own name: name=…; names ignore case")
        self._by_name[consumer.name] = consumer
        self._of.cache_clear()
        return consumer

    def of(self, message_name: str) -> list[Consumer]:
        """The consumers of a message, in the order of their registration."""
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
        raise BadInput(f"{call!r} is not a function", hint="decorate one: def f(tx, message)")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        message = f"{_shown(call)} is a generator: calling it would not handle the message"
        raise BadInput(message, hint="write it without yield")
    try:
        signature = inspect.signature(call)
    except ValueError:
        # A built-in function may have no signature.
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        message = f"{_shown(call)}{signature} cannot handle messages: {error}"
        raise BadInput(message, hint="it is called with two arguments: f(tx, message)") from error


def _name_of(call: Any) -> str:
    """The dotted name of a function, the same whether its module is imported or run as a script."""
    name = getattr(call, "__qualname__", None)
    if name is None or "<lambda>" in name:
        raise BadInput(f"{call!r} has no name", hint="give it one: name=…")
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
    message = f"{name!r} is not a valid name of a consumer"
    hint = f"use at most {CONSUMER_CHARS_MAX} ASCII characters: name='mailer'"
    raise BadInput(message, hint=hint)


def _shown(call: Any) -> str:
    return getattr(call, "__qualname__", None) or repr(call)

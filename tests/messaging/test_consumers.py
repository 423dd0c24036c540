"""Consumers are known by name and found by the names of messages."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ledgerstone.errors import BadInput
from ledgerstone.ids import new_id
from ledgerstone.messaging.inbox.consumers import Consumer, Consumers
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.tables import CONSUMER_CHARS_MAX
from ledgerstone.store.transaction import Transaction

MESSAGE = Message(id=new_id(), name="order.placed", raw=b"{}", created_at=datetime.now(UTC))
NO_TX = cast("Transaction", None)
"""For handlers that write nothing."""


def handle(tx: Any, message: Message) -> None:
    """A handler."""


class Mailer:
    """Handlers that are no plain functions."""

    def send(self, tx: Any, message: Message) -> None:
        """A method."""

    def __call__(self, tx: Any, message: Message) -> None:
        """The object itself."""


def names(found: list[Consumer]) -> list[str]:
    return [consumer.name for consumer in found]


def test_found_by_pattern() -> None:
    """All consumers whose pattern matches are found, in the order in which they were added."""
    consumers = Consumers()
    for name, pattern in {"z": "order.placed", "a": "order.*", "all": "*", "p": "*.paid"}.items():
        consumers.add(pattern, handle, name=name)

    assert names(consumers.of("order.placed")) == ["z", "a", "all"]
    assert names(consumers.of("order.paid")) == ["a", "all", "p"]
    assert names(consumers.of("stock.taken")) == ["all"]


def test_added_later() -> None:
    """A consumer that is added after a message was seen is found as well."""
    consumers = Consumers()
    before = consumers.of("order.placed")

    consumers.add("order.placed", handle, name="late")

    assert before == []
    assert names(consumers.of("order.placed")) == ["late"]


def test_a_dot_is_a_dot() -> None:
    """Only the star stands for other characters."""
    consumers = Consumers()
    consumers.add("order.placed", handle, name="mailer")

    assert consumers.of("orderxplaced") == []
    assert consumers.of("order.placed.late") == []


def test_known_by_name() -> None:
    """A consumer is known by its name, which is that of its function unless another is given."""
    consumers = Consumers()
    plain = consumers.add("*", handle)
    method = consumers.add("*", Mailer().send)
    named = consumers.add("*", Mailer(), name="mailer", ordered=True)

    assert plain.name == f"{__name__}.handle"
    assert method.name == f"{__name__}.Mailer.send"
    assert consumers.get("mailer") is named
    assert named.ordered
    assert consumers.get("nobody") is None
    assert list(consumers.all().values()) == [plain, method, named]


@pytest.mark.parametrize("second", ["mailer", "Mailer"])
def test_the_same_name_twice(second: str) -> None:
    """Two consumers under one name are refused: the table does not tell them by case either."""
    consumers = Consumers()
    consumers.add("order.placed", handle, name="mailer")

    with pytest.raises(BadInput, match="already"):
        consumers.add("order.paid", handle, name=second)

    assert consumers.of("order.paid") == []


@pytest.mark.parametrize(
    "name", ["", "mailer ", " mailer", "größe", "a\nb", "x" * (CONSUMER_CHARS_MAX + 1), 7]
)
def test_no_name(name: Any) -> None:
    """A name that not every database keeps apart from others is refused."""
    with pytest.raises(BadInput, match="name"):
        Consumers().add("*", handle, name=name)


@pytest.mark.parametrize("call", [lambda _tx, _message: None, functools.partial(handle), Mailer()])
def test_without_a_name_of_its_own(call: Any) -> None:
    """What has no name of its own has to be given one."""
    with pytest.raises(BadInput, match="name="):
        Consumers().add("*", call)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("com.github.*", "com.github.pull_request.opened"),
        ("Order.placed", "Order.placed"),
        ("App\\Order\\*", "App\\Order\\Placed"),
        ("urn:shop/*", "urn:shop/order-placed"),
    ],
)
def test_names_of_others(pattern: str, name: str) -> None:
    """What others name as they like can be consumed, letter by letter."""
    consumers = Consumers()
    consumer = consumers.add(pattern, lambda *_: None, name="a")

    assert consumers.of(name) == [consumer]
    assert consumers.of(name.lower() if name != name.lower() else name.upper()) == []


@pytest.mark.parametrize(
    "pattern", ["", "order placed", "order..placed", "order.?", ".order", None]
)
def test_no_pattern(pattern: Any) -> None:
    """What is no pattern of names is refused."""
    with pytest.raises(BadInput, match="pattern"):
        Consumers().add(pattern, handle, name="mailer")


def nothing() -> None:
    """Takes nothing."""


def only_message(message: Message) -> None:
    """Takes too little."""


def three(tx: Any, message: Message, more: int) -> None:
    """Takes too much."""


def by_name(tx: Any, *, message: Message) -> None:
    """Takes by name what is given by place."""


@pytest.mark.parametrize("call", [nothing, only_message, three, by_name])
def test_a_wrong_signature(call: Any) -> None:
    """A function that cannot be called with a transaction and a message is refused."""
    with pytest.raises(BadInput, match=r"f\(tx, message\)"):
        Consumers().add("*", call)


def yields(_: Any, __: Message) -> Iterator[None]:
    """Would do nothing when called."""
    yield


async def yields_later(_: Any, __: Message) -> AsyncIterator[None]:
    """Would do nothing when called."""
    yield


@pytest.mark.parametrize("call", [yields, yields_later])
def test_generators(call: Any) -> None:
    """A generator is refused: calling it would handle nothing, and a receipt would say it had."""
    with pytest.raises(BadInput, match="yield"):
        Consumers().add("*", call)


@pytest.mark.parametrize("call", ["handle", None, 7])
def test_no_function(call: Any) -> None:
    """What cannot be called is refused."""
    with pytest.raises(BadInput, match="not a function"):
        Consumers().add("*", call, name="mailer")


def test_async_to_the_end() -> None:
    """An async function runs to its end, also behind a plain one that only passes it on."""
    seen: list[str] = []

    async def later(_: Any, message: Message) -> None:
        seen.append(message.id)

    def passed_on(tx: Any, message: Message) -> Any:
        return later(tx, message)

    consumers = Consumers()
    consumers.add("*", later, name="async")
    consumers.add("*", passed_on, name="passed on")

    for consumer in consumers.of("order.placed"):
        consumer.run(NO_TX, MESSAGE)

    assert seen == [MESSAGE.id] * 2

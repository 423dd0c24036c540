"""What can be made a job, and what is refused when it is declared, without any database."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from ledgerstone import Ledger
from ledgerstone.engine.source import ExecutorKind
from ledgerstone.errors import BadInput
from ledgerstone.jobs import Job, Kind, Kinds

if TYPE_CHECKING:
    from fractions import Fraction


class Plain:
    """A class that JSON cannot be read as."""


class Text(str):
    """A text of its own kind, which JSON is not read as either."""

    __slots__ = ()


class Point(NamedTuple):
    """A named tuple as an argument."""

    x: int
    y: int = 0


class Box(TypedDict):
    """A typed dict as an argument."""

    size: int
    label: NotRequired[str]


@dataclass
class Holder:
    """A dataclass with such a class in it."""

    held: Plain


@dataclass
class ConnectionPool:
    """A dataclass that can do without."""

    name: str
    lent: Plain | None = None


class Nested(msgspec.Struct):
    """A struct that holds its like."""

    name: str
    inside: Nested | None = None


class Caller:
    """An object that can be called."""

    def __call__(self, order: int, words: str = "none") -> str:
        return f"{order} {words}"


class AsyncCaller:
    """An object that can be awaited when it is called."""

    async def __call__(self, order: int) -> int:
        return order


@dataclass
class Unhashable(Caller):
    """One that cannot be found by itself."""

    number: int = 0


def plain(order: int, words: str = "none") -> str:
    """Two arguments."""
    return f"{order} {words}"


def kind_of(call: Any, **options: Any) -> Kind:
    """The kind that a function becomes."""
    return Kinds().add("a", call, **options)


def called(kind: Kind, payload: str) -> Any:
    """What the function answers when it is called with this payload."""
    return kind.call(**kind.parsed(payload))


def test_generators() -> None:
    """A function that yields is refused: calling it would run nothing."""

    def pages() -> Iterator[int]:
        yield 1

    async def awaited() -> AsyncIterator[int]:
        yield 1

    for call in (pages, awaited, functools.partial(pages)):
        with pytest.raises(BadInput, match="yields") as refused:
            kind_of(call)
        assert "return" in (refused.value.hint or "")


def test_a_decorator_without_a_name(tmp_path: Path) -> None:
    """A function where the name should be is refused at once, with what to write."""
    with Ledger(f"sqlite:///{tmp_path}/a.db") as ledger:
        for wrong in (plain, None, 7):
            with pytest.raises(BadInput, match="name of a job is text") as refused:
                ledger.job(wrong)  # type: ignore[arg-type]

            assert "@ledger.job(" in (refused.value.hint or "")
        assert len(ledger.kinds) == 0


def test_annotations_that_nobody_knows() -> None:
    """An argument whose annotation cannot be looked up is refused, by its name."""

    def hidden(order: int, share: Fraction) -> None: ...

    def misspelled(order: Ordre) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the case

    for call, name in ((hidden, "share"), (misspelled, "order")):
        with pytest.raises(BadInput, match=f"annotation of {name} of a") as refused:
            kind_of(call)
        assert "TYPE_CHECKING" in (refused.value.hint or "")


def test_annotations_that_nobody_needs() -> None:
    """What is returned, and what the job itself is, need not be known while the program runs."""

    def answers(order: int) -> Fraction: ...  # type: ignore[empty-body]

    def given(job: Fraction, order: int) -> None: ...

    assert kind_of(answers).parsed('{"order": 7}') == {"order": 7}
    assert kind_of(given).takes_job


@pytest.mark.parametrize(
    "annotation",
    [Plain, Plain | None, list[Plain], dict[str, Plain], tuple[int, Plain], Holder, Path, Text],
    ids=str,
)
def test_classes_that_are_not_read_from_json(annotation: Any) -> None:
    """An argument that no payload could ever give is refused, with what to write instead."""

    def work(order: int, thing: Any) -> None: ...

    work.__annotations__["thing"] = annotation

    with pytest.raises(BadInput, match="cannot be read from JSON") as refused:
        kind_of(work)
    assert "dataclass" in (refused.value.hint or "")


def test_classes_that_can_be_left_out() -> None:
    """What has a default is not refused: a function may take it from callers that are no jobs."""

    def work(
        order: int, thing: Plain | None = None, pool: ConnectionPool | None = None
    ) -> None: ...

    found = kind_of(work).parsed('{"order": 7, "pool": {"name": "ann"}}')

    assert found == {"order": 7, "thing": None, "pool": ConnectionPool("ann")}


def test_classes_that_are_read_from_json() -> None:
    """Tuples and dicts with names, structs in structs, and what numbers and all else are."""

    def work(
        point: Point, box: Box, nested: Nested, number: Number, thing: object, *, last: int = 3
    ) -> None: ...

    found = kind_of(work).parsed(
        '{"point": [1, 2], "box": {"size": 1}, "nested": {"name": "a", "inside": {"name": "b"}}, '
        '"number": 1.5, "thing": [1]}'
    )

    assert found == {
        "point": Point(1, 2),
        "box": {"size": 1},
        "nested": Nested("a", Nested("b")),
        "number": 1.5,
        "thing": [1],
        "last": 3,
    }


def test_defaults_that_can_be_changed() -> None:
    """A struct as a default is a fresh one for each job."""

    def work(nested: Nested = Nested("a")) -> None: ...  # noqa: B008 - the case

    kind = kind_of(work)
    first = kind.parsed("{}")["nested"]
    first.name = "b"

    assert kind.parsed("{}") == {"nested": Nested("a")}


def test_partials() -> None:
    """A function of which some arguments are given already takes the others."""
    by_name = kind_of(functools.partial(plain, words="x"))
    by_place = kind_of(functools.partial(plain, 7))

    assert called(by_name, '{"order": 1}') == "1 x"
    assert called(by_name, '{"order": 1, "words": "y"}') == "1 y"
    assert called(by_place, "{}") == "7 none"
    with pytest.raises(BadInput, match="imported"):
        kind_of(functools.partial(plain, 7), process=True)


def test_callable_objects() -> None:
    """An object that can be called is a job like a function; one is found by itself."""
    kinds = Kinds()
    caller = Caller()
    kind = kinds.add("a", caller)

    assert called(kind, '{"order": 1}') == "1 none"
    assert kinds.name_of(caller) == "a"
    assert kind_of(AsyncCaller()).where is ExecutorKind.LOOP
    assert kind_of(caller.__call__).where is ExecutorKind.THREAD
    with pytest.raises(BadInput, match="hashable"):
        kinds.add("b", Unhashable())
    with pytest.raises(BadInput, match="no job of this ledger"):
        kinds.name_of(Unhashable())


def test_decorated_functions() -> None:
    """A decorator that shows what it decorates is run; whether it is async is its own affair."""

    def at_once(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def now(**arguments: Any) -> Any:
            awaiting = call(**arguments)
            with pytest.raises(StopIteration) as ended:
                awaiting.send(None)
            return ended.value.value

        return now

    async def awaited(order: int) -> int:
        return order

    kind = kind_of(at_once(awaited))

    assert (kind.where, called(kind, '{"order": 1}')) == (ExecutorKind.THREAD, 1)
    assert kind_of(staticmethod(awaited)).where is ExecutorKind.LOOP


@pytest.mark.parametrize("wrong", [None, 7, "mail", Plain, Plain(), dict, print, sys.exit])
def test_what_is_no_function(wrong: Any) -> None:
    """Classes, values and built-in functions that show no names are refused as such."""
    with pytest.raises(BadInput):
        kind_of(wrong)


def test_the_job_by_an_object() -> None:
    """The job itself is given to partials and to objects as it is to functions."""

    class Given:
        def __call__(self, job: Job, order: int) -> None: ...

    def given(job: Job, order: int, words: str) -> None: ...

    for call in (Given(), functools.partial(given, words="x")):
        kind = kind_of(call)
        assert kind.takes_job
        assert kind.parsed('{"order": 1}')["order"] == 1

"""Kinds of jobs: what a function's signature promises, without any database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import msgspec
import pytest

from ledgerstone import Ledger
from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import ExecutorKind
from ledgerstone.errors import BadInput
from ledgerstone.jobs import AsyncJob, Job, Kind, Kinds, Limit
from ledgerstone.jobs.handlers.kinds import (
    ATTEMPTS_LIMIT,
    LIMIT_MAX,
    PRIORITY_MAX,
    TIMEOUT_SECONDS_MAX,
)


class Colour(Enum):
    """A closed set."""

    RED = "red"


@dataclass
class Address:
    """A dataclass as an argument."""

    street: str
    number: int = 1


class Parcel(msgspec.Struct):
    """A struct as an argument."""

    weight: float
    to: Address


def kind_of(call: Any, **options: Any) -> Kind:
    """The kind that a function becomes."""
    return Kinds().add("a", call, **options)


def plain(order: int, words: str = "none") -> None:
    """Two arguments."""


def kind_of_nothing() -> None:
    """No arguments."""


def given(job: Job) -> None:
    """Given the job."""


def parsed(kind: Kind, payload: Any) -> dict[str, Any]:
    """The arguments of a payload, which is kept as JSON."""
    return kind.parsed(msgspec.json.encode(payload).decode())


def test_arguments_by_name() -> None:
    """Arguments are read off the signature; what is left out has its default."""
    kind = kind_of(plain)

    assert parsed(kind, {"order": 7}) == {"order": 7, "words": "none"}
    assert parsed(kind, {"words": "x", "order": -1}) == {"order": -1, "words": "x"}
    assert (kind.takes_job, kind.where, kind.queue, kind.max_attempts) == (
        False,
        ExecutorKind.THREAD,
        "default",
        5,
    )


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"order": "7"},
        {"order": 7.5},
        {"order": True},
        {"order": None},
        {"order": 7, "words": None},
        {"order": 7, "more": 1},
        {"Order": 7},
        [7],
        None,
        "order",
    ],
)
def test_what_does_not_fit(payload: Any) -> None:
    """A wrong type, a missing or an unknown argument is refused, and the right ones are named."""
    with pytest.raises(BadInput, match="order: int, words: str"):
        parsed(kind_of(plain), payload)


def test_what_is_no_json() -> None:
    """A payload that was spoiled in the database does not fit either."""
    with pytest.raises(BadInput, match="order: int, words: str"):
        kind_of(plain).parsed('{"order": 7')


def test_rich_types() -> None:
    """What JSON has no type for comes as the annotation says: moments, ids, sets, structs."""

    def rich(
        *,
        when: datetime,
        who: UUID,
        colour: Colour,
        parcels: list[Parcel],
        amount: Decimal,
        tags: frozenset[str],
        by_number: dict[int, str],
        size: Literal["s", "m"],
        note: Optional[str] = None,  # noqa: UP045 - people write it like this
        anything: Any = None,
    ) -> None: ...

    read = parsed(
        kind_of(rich),
        {
            "when": "2026-01-02T03:04:05Z",
            "who": "01890a5d-ac96-774b-bcce-b302099a8057",
            "colour": "red",
            "parcels": [{"weight": 1, "to": {"street": "Elm"}}],
            "amount": "10.50",
            "tags": ["a", "b"],
            "by_number": {"1": "one"},
            "size": "m",
            "anything": [1, {"x": None}],
        },
    )

    assert read == {
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "who": UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
        "colour": Colour.RED,
        "parcels": [Parcel(1.0, Address("Elm"))],
        "amount": Decimal("10.50"),
        "tags": frozenset({"a", "b"}),
        "by_number": {1: "one"},
        "size": "m",
        "note": None,
        "anything": [1, {"x": None}],
    }


def test_the_job_itself() -> None:
    """A first parameter called job is no argument; another of that name is one."""

    def first(job: Job, n: int) -> None: ...

    def second(n: int, job: str) -> None: ...

    assert kind_of(first).takes_job
    assert parsed(kind_of(first), {"n": 1}) == {"n": 1}
    assert not kind_of(second).takes_job
    assert parsed(kind_of(second), {"n": 1, "job": "x"}) == {"n": 1, "job": "x"}


def test_no_arguments() -> None:
    """A function without arguments takes an empty payload and no other."""

    def nothing() -> None: ...

    kind = kind_of(nothing)

    assert parsed(kind, {}) == {}
    with pytest.raises(BadInput, match="it takes nothing"):
        parsed(kind, {"n": 1})


def test_defaults_are_not_shared() -> None:
    """A default that can be changed is a fresh one for each job."""

    def work(tags: list[str] = [], seen: dict[str, int] = {"a": 1}) -> None: ...  # noqa: B006 - the case

    kind = kind_of(work)
    first = parsed(kind, {})
    first["tags"].append("x")
    first["seen"]["b"] = 2

    assert parsed(kind, {}) == {"tags": [], "seen": {"a": 1}}


def test_arguments_without_annotations() -> None:
    """What is not annotated takes anything."""

    def loose(a, b=1): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - that is the case

    assert parsed(kind_of(loose), {"a": {"x": [1]}}) == {"a": {"x": [1]}, "b": 1}


def test_async_functions() -> None:
    """An async function runs on the loop, and not in a process of its own."""

    async def work() -> None: ...

    assert kind_of(work).where is ExecutorKind.LOOP
    with pytest.raises(BadInput, match="event loop"):
        kind_of(work, process=True)


def test_the_job_that_is_given() -> None:
    """A function that expects the other kind of job is refused, with what to write."""

    def plain_with(job: Job) -> None: ...
    async def awaited_with(job: AsyncJob) -> None: ...
    def plain_with_other(job: AsyncJob) -> None: ...
    async def awaited_with_other(job: Job) -> None: ...

    assert kind_of(plain_with).takes_job
    assert kind_of(awaited_with).takes_job
    with pytest.raises(BadInput, match="write `job: Job`"):
        kind_of(plain_with_other)
    with pytest.raises(BadInput, match="write `job: AsyncJob`"):
        kind_of(awaited_with_other)


def test_processes() -> None:
    """A function in a process of its own must be found there, and cannot be given the job."""

    def local() -> None: ...

    assert kind_of(plain, process=True).where is ExecutorKind.PROCESS
    with pytest.raises(BadInput, match="cannot be given the job"):
        kind_of(given, process=True)
    with pytest.raises(BadInput, match="imported"):
        kind_of(local, process=True)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": ATTEMPTS_LIMIT + 1},
        {"timeout_seconds": 0},
        {"timeout_seconds": -1},
        {"timeout_seconds": TIMEOUT_SECONDS_MAX + 1},
        {"timeout_seconds": float("nan")},
        {"queue": ""},
        {"queue": "q" * 101},
        {"queue": "a\0"},
        {"timeout_seconds": "3"},
        {"max_attempts": "3"},
        {"max_attempts": True},
        {"priority": "high"},
        {"priority": 1.0},
        {"priority": True},
        {"priority": None},
        {"priority": PRIORITY_MAX + 1},
        {"priority": -PRIORITY_MAX - 1},
        {"timeout_seconds": True},
        {"limit": Limit(key=lambda **_: "k", most=0)},
        {"limit": Limit(key=lambda **_: "k", most=LIMIT_MAX + 1)},
        {"limit": Limit(key=lambda **_: "k", most=1.5)},  # type: ignore[arg-type]
        {"limit": Limit(key="order")},  # type: ignore[arg-type]
        {"limit": 3},
        {"backoff": 3},
        {"retry_on": "OSError"},
        {"retry_on": [OSError, 3]},
        {"give_up_on": int},
        {"retry_on": OSError, "give_up_on": (ValueError, OSError)},
        {"backoff": Backoff(seconds=float("inf"))},
        {"backoff": Backoff(seconds=float("nan"))},
        {"backoff": Backoff(seconds=-1)},
        {"backoff": Backoff(seconds_max=1e18)},
    ],
)
def test_bounds(options: dict[str, Any]) -> None:
    """Attempts, priorities, timeouts, waits, queues and limits have types and bounds."""
    with pytest.raises(BadInput):
        kind_of(plain, **options)


@pytest.mark.parametrize("name", ["", "t" * 101, "a\0", "a ", "\ud83d"])
def test_names(name: str) -> None:
    """A type has a name that every database keeps alike."""
    kinds = Kinds()

    with pytest.raises(BadInput):
        kinds.add(name, plain)
    with pytest.raises(BadInput):
        kinds.name_of(name)

    assert kinds.all() == {}


def test_signatures_that_cannot_be_checked() -> None:
    """Arguments without a name of their own are refused when the function is made a job."""

    def many(*numbers: int) -> None: ...

    def named(**numbers: int) -> None: ...

    def by_place(number: int, /) -> None: ...

    for call in (many, named, by_place):
        with pytest.raises(BadInput, match="number"):
            kind_of(call)


def test_one_name_one_function() -> None:
    """A name is given once; a function is known by its name and by itself."""
    kinds = Kinds()
    kind = kinds.add("mail", plain)

    with pytest.raises(BadInput, match="already"):
        kinds.add("mail", kind_of_nothing)

    assert kinds.get("mail") is kind
    assert kinds.get("other") is None
    assert kinds.name_of(plain) == kinds.name_of("mail") == "mail"
    assert kinds.name_of("elsewhere") == "elsewhere"
    with pytest.raises(BadInput, match=r"@ledger\.job"):
        kinds.name_of(kind_of)


def test_kinds_of_a_queue() -> None:
    """Kinds are found by their queue."""
    kinds = Kinds()
    kinds.add("a", plain, queue="mail")
    kinds.add("b", kind_of_nothing, queue="other")

    assert [kind.name for kind in kinds.of_queue("mail")] == ["a"]
    assert sorted(kinds.all()) == ["a", "b"]


def test_what_limits_a_job() -> None:
    """The limit key is made from the arguments, as they were parsed."""
    limited = kind_of(plain, limit=Limit(key=lambda order, words: f"{order}:{words}", most=2))

    assert limited.checked('{"order": 7}') == "7:none"
    assert kind_of(plain).checked('{"order": 7}') is None


def test_what_a_limit_key_names() -> None:
    """A limit key is given the arguments that it names and no others."""
    keys: list[Any] = [lambda order: f"{order}", lambda **all_: ",".join(all_)]
    keys += [lambda words, more="!": words + more]

    found = [kind_of(plain, limit=Limit(key=key)).checked('{"order": 7}') for key in keys]

    assert found == ["7", "order,words", "none!"]


@pytest.mark.parametrize("key", [lambda customer: customer, lambda order, /: str(order), dict])
def test_limit_keys_that_do_not_fit(key: Any) -> None:
    """One that takes what the job has not is refused when the job is declared, with the right."""
    with pytest.raises(BadInput, match="order: int, words: str"):
        kind_of(plain, limit=Limit(key=key))


@pytest.mark.parametrize(
    "key", [lambda order: order, lambda order: [order], lambda order: order / 0]
)
def test_limit_keys_that_are_no_text(key: Any) -> None:
    """One that raises or is no text refuses the job, and both are named."""
    limited = kind_of(plain, limit=Limit(key=key))

    with pytest.raises(BadInput, match=r"limit key of a \(<lambda>\)"):
        limited.checked('{"order": 7}')


def test_bounds_in_annotations() -> None:
    """What an annotation says of a value beyond its type is checked too."""

    def bounded(
        pages: Annotated[int, msgspec.Meta(ge=1)], note: Annotated[str, "for people"] = ""
    ) -> None: ...

    kind = kind_of(bounded)

    assert parsed(kind, {"pages": 1}) == {"pages": 1, "note": ""}
    for check in (lambda: parsed(kind, {"pages": 0}), lambda: kind.checked('{"pages": 0}')):
        with pytest.raises(BadInput, match="pages"):
            check()


def test_annotations_that_cannot_be_checked() -> None:
    """Bounds that do not go with their type are refused when the job is declared."""

    def wrong(pages: Annotated[int, msgspec.Meta(max_length=3)]) -> None: ...

    with pytest.raises(BadInput, match="arguments of a cannot be checked"):
        kind_of(wrong)


def test_waits_of_its_own() -> None:
    """A kind keeps the back-off that it was given."""
    backoff = Backoff(seconds=3)

    assert kind_of(plain, backoff=backoff).backoff == backoff


@pytest.mark.slow
def test_timeouts_and_back_offs_in_other_words(tmp_path: Path) -> None:
    """A timeout may be a timedelta or seconds, a back-off the name of its policy."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.job("seconds", timeout=1.5, backoff="none")(plain)
    ledger.job("delta", timeout=timedelta(minutes=2), backoff=BackoffPolicy.FIXED)(plain)

    kinds = ledger.kinds.all()

    assert kinds["seconds"].timeout_seconds == 1.5
    assert kinds["seconds"].backoff == Backoff(policy=BackoffPolicy.NONE)
    assert kinds["delta"].timeout_seconds == 120
    assert kinds["delta"].backoff == Backoff(policy=BackoffPolicy.FIXED)
    with pytest.raises(BadInput, match="one of none, fixed, exp"):
        ledger.job("odd", backoff="often")
    with pytest.raises(BadInput, match="a timeout and timeout_seconds"):
        ledger.job("both", timeout=1, timeout_seconds=1)
    ledger.close()

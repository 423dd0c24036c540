"""The runner of JSON cases: the example passes, and a protocol with a defect does not."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event, current_thread

import pytest

from ledgerstone import errors
from ledgerstone.protocols import Envelope, Projecting, Protocol, Result, cases, load
from ledgerstone.protocols.connection import Reading
from ledgerstone.protocols.example import protocol as example
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

SCHEMA = """
CREATE TABLE sum (name TEXT PRIMARY KEY, total INTEGER NOT NULL);
CREATE TABLE seen (event_id TEXT PRIMARY KEY, total INTEGER NOT NULL);
"""


def adding(folder: Path, then: object, **case: object) -> Protocol:
    """A protocol with one case."""
    (folder / "tests").mkdir(exist_ok=True)
    events = [{"type": "add", "data": {"n": n}} for n in (1, 2, 3)]
    text = json.dumps({"cases": [{"name": "adds", "events": events, "then": then, **case}]})
    (folder / "tests" / "adding.json").write_text(text)
    return Protocol("adding", folder=folder, schema=SCHEMA)


@pytest.mark.slow
def test_the_example() -> None:
    """Each of its cases holds, in every order, twice, and by threads and processes at once."""
    verdicts = cases.run_cases(example, orders_max=24)

    assert [(verdict.case, verdict.problems) for verdict in verdicts if verdict.problems] == []
    assert [verdict.runs for verdict in verdicts] == [27, 24, 6, 1, 1]


def test_a_projector_that_is_not_idempotent(tmp_path: Path) -> None:
    """One that counts each call is found, though the log lets no event in twice."""
    protocol = adding(tmp_path, {"tables": {"sum": [{"total": "*"}]}})

    @protocol.projector("add")
    def add(db: Projecting, event: Envelope) -> None:
        db.insert("sum", name="all", total=0)
        db.execute("UPDATE sum SET total = total + :n", n=event.data["n"])

    (verdict,) = cases.run_cases(protocol)

    assert verdict.problems == ["a projector that is called twice with an event changes something"]


def test_a_projector_that_depends_on_the_order(tmp_path: Path) -> None:
    """One whose end depends on the order of independent events is found."""
    protocol = adding(tmp_path, {})

    @protocol.projector("add")
    def add(db: Projecting, event: Envelope) -> None:
        if not db.exists("SELECT 1 FROM seen WHERE event_id = :id", id=event.event_id):
            before = len(db.rows("SELECT 1 FROM seen"))
            db.insert("seen", event_id=event.event_id, total=before)

    (verdict,) = cases.run_cases(protocol)

    assert verdict.problems == ["another order ends otherwise: add, add, add"]


def test_values_are_compared(tmp_path: Path) -> None:
    """A counter that counts each call is found, and a value that depends on the order."""
    protocol = adding(tmp_path, {})

    @protocol.projector("add")
    def add(db: Projecting, event: Envelope) -> None:
        db.values.add("calls")
        db.values.set("last", event.data["n"])

    (verdict,) = cases.run_cases(protocol)

    assert verdict.problems == [
        "a projector that is called twice with an event changes something",
        "another order ends otherwise: add, add, add",
    ]


def test_commands_of_a_concurrent_case(tmp_path: Path) -> None:
    """The concurrent runs are compared with what the events alone lead to, without the commands."""
    protocol = shared(tmp_path, commands=[{"name": "add.three"}])

    (verdict,) = cases.run_cases(protocol)

    assert verdict.problems == []


def test_processes_that_crash(tmp_path: Path) -> None:
    """A case whose workers do not come so far as to apply something does not pass."""
    protocol = shared(tmp_path)
    (tmp_path / "__init__.py").write_text("raise RuntimeError('not in this process')\n")

    (verdict,) = cases.run_cases(protocol)

    assert verdict.problems == ["a process ended with exit status 1"] * 3


def test_threads_that_do_not_end(tmp_path: Path) -> None:
    """Workers that hang are told, and those that fail."""
    protocol, go_on = adding(tmp_path, {}, concurrent=True), Event()
    (tmp_path / "__init__.py").write_text(
        "from ledgerstone.protocols import Protocol\nprotocol = Protocol('adding')\n"
    )

    @protocol.projector("add")
    def add(_db: Projecting, _event: Envelope) -> None:
        if current_thread().name.startswith("Thread"):
            go_on.wait(WAIT_SECONDS_MAX)

    (verdict,) = cases.run_cases(protocol, orders_max=1, join_seconds_max=0.5)

    go_on.set()
    assert "a thread did not end within 0.5 s" in verdict.problems


SHARED = """
from pathlib import Path
from ledgerstone.protocols import Envelope, Protocol, Result
protocol = Protocol("adding", folder=Path(__file__).parent)

@protocol.projector("add")
def add(db, event):
    db.insert("seen", event_id=event.event_id, total=event.data["n"])

@protocol.command("add.three")
def three(db):
    return Result(envelopes=[Envelope(type="add", data={"n": 3}, created_at_ms=1)])
"""


def shared(folder: Path, **case: object) -> Protocol:
    """A protocol in a folder, which processes can load, with one concurrent case."""
    (folder / "__init__.py").write_text(SHARED)
    (folder / "schema.sql").write_text(SCHEMA)
    case = {"events": [{"type": "add", "data": {"n": n}} for n in (1, 2)], **case}
    adding(folder, {}, concurrent=True, **case)
    return load(folder)


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        ({"tables": {"seen": []}}, "seen has more rows"),
        ({"tables": {"seen": [{"total": 1}, {"total": 1}, {"total": 9}]}}, "seen has no row"),
        ({"blocked": 2}, "0 events wait, and not 2"),
        ({"parked": 1}, "0 items are parked, and not 1"),
    ],
)
def test_an_expectation_that_does_not_hold(
    tmp_path: Path, then: dict[str, object], problem: str
) -> None:
    """The verdict says what was found instead."""
    protocol = adding(tmp_path, then)

    @protocol.projector("add")
    def add(db: Projecting, event: Envelope) -> None:
        db.insert("seen", event_id=event.event_id, total=1)

    (verdict,) = cases.run_cases(protocol)

    assert problem in verdict.problems[0]


def test_commands_of_a_case(tmp_path: Path) -> None:
    """What they answer, and that they are refused, is compared."""
    commands = [
        {"name": "say", "params": {"n": 1}, "answer": {"n": 2}},
        {"name": "say", "params": {"n": 1}, "refused": "never"},
        {"name": "none", "refused": "has no command"},
    ]
    protocol = adding(tmp_path, {}, events=[], commands=commands)

    @protocol.command("say")
    def say(_db: Reading, *, n: int) -> Result:
        return Result(answer={"n": n})

    (verdict,) = cases.run_cases(protocol)

    assert verdict.problems == ["say answered {'n': 1}, and not {'n': 2}", "say was not refused"]


def test_a_file_that_holds_no_cases(tmp_path: Path) -> None:
    """The error names the file and the field."""
    protocol = adding(tmp_path, {"tabels": {}})

    with pytest.raises(errors.BadInput, match=r"adding\.json holds no cases: .*tabels"):
        cases.run_cases(protocol)

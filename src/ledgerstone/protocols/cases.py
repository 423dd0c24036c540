"""The tests of a protocol: JSON cases, each of them run in many ways that must end alike.

    {"cases": [{"name": "…",
                "events": [{"type": "…", "data": {…}}],              in order, as they arrive
                "commands": [{"name": "…", "params": {…}, "answer": {…}, "refused": "words"}],
                "then": {"tables": {"message": [{"words": "hello", "id": "*"}]},
                         "blocked": 0, "parked": 0},
                "concurrent": true}]}

- A row of `then` names the columns that matter; "*" stands for any value. Rows have no order.
- Each event arrives twice, and each projector is called once more with what the log holds: both
  change nothing.
- All orders of the events end in the same tables and values; beyond `orders_max` a sample of them,
  the same at every run.
- `concurrent`: the events are applied by several threads and by several processes at once.
- Commands run after the events, in the first run only. An event without a moment gets
  `UNDATED_MS`, the same in each run.

Every run has a database of its own, a copy of one that is empty.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, permutations
from math import factorial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, LedgerstoneError
from ledgerstone.protocols import log
from ledgerstone.protocols.connection import Projecting, Reading
from ledgerstone.protocols.events import Envelope, encode
from ledgerstone.protocols.protocol import TESTS_FOLDER, Protocol, load
from ledgerstone.protocols.room import PROTOCOLS
from ledgerstone.protocols.running import Running
from ledgerstone.settings import Settings
from ledgerstone.store.database import Database
from ledgerstone.store.schema import revisions
from ledgerstone.store.transaction import Transaction

ORDERS_MAX = 120
"""All orders of five events; of more events so many orders are tried."""
WORKERS = 3
JOIN_SECONDS_MAX = 300.0
ANY = "*"
UNDATED_MS = 1_735_689_600_000
"""The moment of events that bring none: the first of January 2025."""
_EVENTS_READ = 1_000_000


class CommandCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command, and what it answers or why it is refused."""

    name: str
    params: dict[str, Any] = {}
    answer: dict[str, Any] | None = None
    refused: str | None = None


class Then(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it ends."""

    tables: dict[str, list[dict[str, Any]]] = {}
    blocked: int | None = None
    parked: int = 0


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case."""

    name: str
    events: list[Envelope] = []
    commands: list[CommandCase] = []
    then: Then
    concurrent: bool = False


class Cases(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of cases."""

    cases: list[Case]


class CaseResult(msgspec.Struct, frozen=True):
    """How a case came out: in how many ways it was run, and what was wrong."""

    case: str
    runs: int
    problems: list[str]


State = Mapping[str, list[str]]


def cases_of(protocol: Protocol) -> list[Case]:
    """The cases in the folder of a protocol, by file."""
    if protocol.folder is None:
        return []
    found: list[Case] = []
    for file in sorted((protocol.folder / TESTS_FOLDER).glob("*.json")):
        try:
            found += msgspec.json.decode(file.read_bytes(), type=Cases).cases
        except msgspec.MsgspecError as error:
            raise BadInput(f"{file} holds no cases: {error}") from error
    return found


def run_cases(
    protocol: Protocol,
    *,
    orders_max: int = ORDERS_MAX,
    join_seconds_max: float = JOIN_SECONDS_MAX,
    progress: Callable[[CaseResult], None] = lambda _: None,
) -> list[CaseResult]:
    """Run all cases of a protocol; each worker of a concurrent case has so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(protocol, Path(folder))
        verdicts = []
        for case in cases_of(protocol):
            verdicts.append(_run(bench, case, orders_max, join_seconds_max))
            progress(verdicts[-1])
    return verdicts


class Bench:
    """Empty databases for a protocol."""

    def __init__(self, protocol: Protocol, folder: Path) -> None:
        self.protocol = protocol
        self._folder = folder
        self._empty = folder / "empty.db"
        self._count = 0
        with opened(self._empty) as database:
            revisions.migrate(database)
            Running(protocol, database, Settings())

    def file(self) -> Path:
        """A new one."""
        self._count += 1
        file = self._folder / f"{self._count}.db"
        shutil.copy(self._empty, file)
        return file


class opened:  # noqa: N801 - read as a function
    """A database in a file, closed at the end of the block."""

    def __init__(self, file: Path) -> None:
        self._database: Database[Transaction] = Database(
            f"sqlite:///{file}", Settings().store, wrap=Transaction, rooms=[PROTOCOLS.stored]
        )

    def __enter__(self) -> Database[Transaction]:
        return self._database

    def __exit__(self, *_: object) -> None:
        self._database.close()


def _run(bench: Bench, case: Case, orders_max: int, join_seconds_max: float) -> CaseResult:
    problems: list[str] = []
    events = [log.dated(each, UNDATED_MS) for each in case.events]
    with opened(bench.file()) as database:
        running = Running(bench.protocol, database, Settings())
        _arrive(running, events)
        of_events = state_of(running)
        problems += [words for each in case.commands for words in _commanded(running, each)]
        problems += _compared(running, case.then)
        expected = state_of(running)
        _arrive(running, events)
        if state_of(running) != expected:
            problems.append("an event that arrives twice changes something")
        problems += _projected_again(running, expected)
    runs = 1
    for order in _orders(events, orders_max):
        runs += 1
        if _ended(bench, order) != of_events:
            names = ", ".join(each.type for each in order)
            problems.append(f"another order ends otherwise: {names}")
            break
    if case.concurrent:
        runs += 2
        problems += _at_once(bench, events, of_events, join_seconds_max)
    return CaseResult(case.name, runs, problems)


def _arrive(running: Running, events: Sequence[Envelope]) -> None:
    for event in events:
        running.receive([_wire(event)])
        running.work()


def _wire(event: Envelope) -> Any:
    from ledgerstone.protocols.incoming import Wire

    return Wire(blob=encode(event), enveloped=True, received_by=event.received_by)


def _commanded(running: Running, case: CommandCase) -> Iterator[str]:
    try:
        answer = running.command(case.name, case.params)
    except LedgerstoneError as error:
        if case.refused is None or case.refused not in str(error):
            yield f"{case.name} was refused: {error}"
        return
    if case.refused is not None:
        yield f"{case.name} was not refused"
    elif case.answer is not None and not _fits(case.answer, json.loads(json.dumps(answer))):
        yield f"{case.name} answered {dict(answer)}, and not {case.answer}"
    running.work()


def _compared(running: Running, then: Then) -> Iterator[str]:
    for table, wanted in then.tables.items():
        found = _rows(running, table)
        left = list(found)
        for row in wanted:
            match = next((each for each in left if _fits(row, each, some=True)), None)
            if match is None:
                yield f"{table} has no row {row}; it has {found}"
            else:
                left.remove(match)
        if left and len(left) + len(wanted) == len(found):
            yield f"{table} has more rows: {left}"
    blocked = _count(running, "SELECT COUNT(*) FROM blocked")
    if then.blocked is not None and blocked != then.blocked:
        yield f"{blocked} events wait, and not {then.blocked}"
    parked = _count(running, "SELECT COUNT(*) FROM incoming WHERE status = 'parked'")
    if parked != then.parked:
        yield f"{parked} items are parked, and not {then.parked}"


def _projected_again(running: Running, expected: State) -> Iterator[str]:
    """Each projector is called again with the events of the log."""

    def work(tx: Transaction) -> None:
        db = Projecting(tx, running.protocol, log.now_of(tx))
        for row in log.rows_after(tx, running.protocol.name, 0, limit=_EVENTS_READ):
            event = log.envelope_of(row)
            projector = running.protocol.projectors[event.type]
            if projector is not None:
                projector(db, event)

    running.database.run(work)
    if state_of(running) != expected:
        yield "a projector that is called twice with an event changes something"


def _orders(events: Sequence[Envelope], most: int) -> Iterator[Sequence[Envelope]]:
    """All other orders, or a sample that is always the same."""
    if factorial(len(events)) <= most:
        yield from islice(permutations(events), 1, None)
        return
    dice = Random(0)  # noqa: S311 - the same orders at every run
    for _ in range(most):
        yield dice.sample(list(events), len(events))


def _ended(bench: Bench, events: Sequence[Envelope]) -> State:
    with opened(bench.file()) as database:
        return _applied(Running(bench.protocol, database, Settings()), events)


def _applied(running: Running, events: Sequence[Envelope]) -> State:
    """The state when these events, and what has come in before, are applied."""
    running.receive([_wire(each) for each in events])
    running.work()
    return state_of(running)


def _at_once(
    bench: Bench, events: Sequence[Envelope], expected: State, seconds: float
) -> Iterator[str]:
    """What is wrong where threads, and then processes, apply the events together."""
    for workers, start in (("threads", _threads), ("processes", _processes)):
        file = bench.file()
        with opened(file) as database:
            running = Running(bench.protocol, database, Settings())
            running.receive([_wire(each) for each in events])
            failed = start(bench.protocol, file, seconds)
            if failed:
                yield from failed
            elif _applied(running, ()) != expected:
                yield f"{WORKERS} {workers} at once end otherwise"


def _threads(protocol: Protocol, file: Path, seconds: float) -> list[str]:
    """Have threads apply what came in; how those failed that did."""
    failed: list[str] = []

    def work() -> None:
        try:
            with opened(file) as own:
                Running(protocol, own, Settings()).work()
        except Exception as error:  # noqa: BLE001 - a projector may raise anything
            failed.append(f"a thread failed: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    late = [thread for thread in threads if thread.is_alive()]
    return failed + [f"a thread did not end within {seconds:g} s" for _ in late]


def _processes(protocol: Protocol, file: Path, seconds: float) -> list[str]:
    """The same with processes."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=work_in_process, args=(str(protocol.folder), str(file)))
        for _ in range(WORKERS)
    ]
    for process in processes:
        process.start()
    failed = []
    for process in processes:
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
            failed.append(f"a process did not end within {seconds:g} s")
        elif process.exitcode:
            failed.append(f"a process ended with exit status {process.exitcode}")
    return failed


def work_in_process(folder: str, file: str) -> None:
    """What a process of a concurrent case does."""
    with opened(Path(file)) as database:
        Running(load(Path(folder)), database, Settings()).work()


def state_of(running: Running) -> State:
    """Its tables without the numbers that the database counts, its values, and what waits."""
    state: dict[str, list[str]] = {}
    for definition in running.protocol.schema.tables:
        counted = {field.name for field in definition.columns if field.counts}
        rows = _rows(running, definition.name)
        state[definition.name] = sorted(
            repr([value for name, value in row.items() if name not in counted]) for row in rows
        )
    # An event that lacks several things may wait for another of them, by the order they came in.
    state["blocked"] = _column(running, "SELECT event_id FROM blocked")
    state["events"] = _column(running, "SELECT event_id FROM events")
    values = _read(running, "SELECT name, value FROM protocol_value ORDER BY name")
    state["values"] = [repr(tuple(row)) for row in values]
    return state


def _rows(running: Running, table: str) -> list[dict[str, Any]]:
    definitions = {each.name: each for each in running.protocol.schema.tables}
    if table not in definitions:
        raise BadInput(f"{running.protocol.name} has no table {table}")
    names = [field.name for field in definitions[table].columns]
    sql = f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608 - names of the schema
    return [dict(zip(names, row, strict=True)) for row in _read(running, sql)]


def _read(running: Running, sql: str) -> list[Any]:
    def read(db: Reading) -> list[Any]:
        return db.rows(sql)

    return running.read(read)


def _column(running: Running, sql: str) -> list[str]:
    return sorted(str(row[0]) for row in _read(running, sql))


def _count(running: Running, sql: str) -> int:
    return int(_read(running, sql)[0][0])


def _fits(wanted: Any, found: Any, *, some: bool = False) -> bool:
    """Whether a value is the one that is wanted; `some`: of a row only what is named."""
    if wanted == ANY:
        return True
    if isinstance(wanted, dict) and isinstance(found, dict):
        if not some and wanted.keys() != found.keys():
            return False
        return all(name in found and _fits(each, found[name]) for name, each in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_fits, wanted, found))
    return bool(wanted == found)

"""Checks: is everything as it should be, and if not, what to do about it.

A check looks at one thing and answers `ok`, `warning` or `problem`. Which settings a database has
is told by its dialect, so a setting is checked wherever it exists.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum

import msgspec
from sqlalchemy import inspect, select

from ledgerstone.cli.database import file_of, must_exist, opened
from ledgerstone.cli.output import counted, foldable
from ledgerstone.cli.reaching import Place, reached
from ledgerstone.cli.signing import standing
from ledgerstone.cli.status import (
    WorkerState,
    failed_messages_of,
    jobs_of,
    leases_of,
    workers_of,
)
from ledgerstone.engine.source import Ask, Outcome
from ledgerstone.engine.source import Verdict as ItemVerdict
from ledgerstone.errors import LedgerstoneError, SettingsError
from ledgerstone.ids import new_id
from ledgerstone.jobs.kinds import Kinds
from ledgerstone.jobs.source import JobSource
from ledgerstone.ledger import Transaction
from ledgerstone.messaging import Office
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.signing.folder import store_folder
from ledgerstone.store import migrating
from ledgerstone.store.database import Database
from ledgerstone.store.dialects import sqlite
from ledgerstone.store.expressions import database_now_ms
from ledgerstone.store.tables import worker

LATENCY_TRIES = 5
QUOTED_MAX = 4
"""A quote in a body is quoted as part of a document, and once more as part of a statement."""
LATENCY_MS_MAX = 50.0
SKEW_MS_MAX = 1000
FREE_BYTES_LOW = 1 << 30
FREE_BYTES_MIN = 100 << 20
TYPES_NAMED_MAX = 5
ROUND_TRIP = "ledgerstone.doctor"
"""The type of the job with which the way from enqueue to settlement is tried."""
DUTY_LATE_MS = 600_000
"""A duty is late when nobody has done it for so long, though there are workers."""


class Verdict(Enum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at: how it is, what was found, and what to do."""

    name: str
    verdict: Verdict
    found: str
    todo: str | None = None


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything that was looked at."""

    ok: int
    warnings: int
    problems: int
    checks: list[Check]


Examined = Database[Transaction]


def diagnose(load: Callable[[], Settings]) -> Diagnosis:
    """Make every check that can be made."""
    checks = list(_checks(load))

    def count(verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in checks)

    return Diagnosis(count(Verdict.OK), count(Verdict.WARNING), count(Verdict.PROBLEM), checks)


def _checks(load: Callable[[], Settings]) -> Iterator[Check]:
    try:
        settings = load()
        # Routes may lead nowhere, though each setting by itself is right.
        Office(settings.messaging)
    except SettingsError as error:
        todo = "correct it in the file, the environment or the call"
        yield from (_problem("settings", problem, todo) for problem in error.problems)
        return
    yield _ok("settings", settings.url_masked)
    # Before the database: the store of signing is there without it.
    yield from _signing(settings)
    with opened(settings, tell=False) as database:
        try:
            yield from _file(database)
            yield from _reached(database)
        except LedgerstoneError as error:
            # What cannot be reached cannot be looked at.
            yield _refused("database", error)
            return
        for name, look in _LOOKS.items():
            try:
                yield from look(database, settings)
            except LedgerstoneError as error:
                yield _refused(name, error)


def _ok(name: str, found: str) -> Check:
    return Check(name, Verdict.OK, found)


def _warning(name: str, found: str, todo: str) -> Check:
    return Check(name, Verdict.WARNING, found, todo)


def _problem(name: str, found: str, todo: str | None) -> Check:
    return Check(name, Verdict.PROBLEM, found, todo)


def _refused(name: str, error: LedgerstoneError) -> Check:
    return _problem(name, " ".join(error.message.split()), error.hint)


def _signing(settings: Settings) -> Iterator[Check]:
    """The store of signing, if there is one, is whole, private and looked after."""
    found = standing.examine(settings.signing)
    if found is None:
        return
    if not found:
        yield _ok("signing", f"{store_folder(settings.signing)} is whole")
    for each in found:
        yield Check(
            "signing", Verdict.PROBLEM if each.grave else Verdict.WARNING, each.found, each.todo
        )


def _file(database: Examined) -> Iterator[Check]:
    """An embedded database is a file: private, in a folder that can be written, with room."""
    file = file_of(database)
    if file is None:
        return
    yield _driver(database)
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        yield _problem("folder", f"{folder} cannot be written", "give its user the right to")
    else:
        yield _ok("folder", f"{folder} can be written")
    free = shutil.disk_usage(folder).free
    room = f"{free / (1 << 30):,.1f} GiB free"
    if free < FREE_BYTES_MIN:
        yield _problem("disk", room, "make room: soon nothing more is accepted")
    elif free < FREE_BYTES_LOW:
        yield _warning("disk", room, "make room")
    else:
        yield _ok("disk", room)
    if not file.exists():
        return
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield _warning("file", f"mode {mode:03o}: others can get at it", f"chmod 600 {file}")
    else:
        yield _ok("file", f"mode {mode:03o}, {file.stat().st_size / (1 << 20):,.1f} MiB")


def _driver(database: Examined) -> Check:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver = sqlite.driver_of(database.url)
    found = f"{driver.__name__} with SQLite {driver.sqlite_version}"
    if driver.sqlite_version_info < sqlite.VERSION_SOUND:
        bug = "has the WAL-reset bug: several writers at once can corrupt the file"
        return _warning("driver", f"{found} {bug}", "install pysqlite3 or a newer Python")
    return _ok("driver", f"{found}, without the WAL-reset bug")


def _reached(database: Examined) -> Iterator[Check]:
    """It answers, in what time, and of which version it is: one too old cannot be opened."""
    must_exist(database)
    with database.reading() as tx:
        facts = database.dialect.describe(tx.connection)
        took: list[float] = []
        for _ in range(LATENCY_TRIES):
            began = time.perf_counter()
            tx.connection.execute(select(1))
            took.append((time.perf_counter() - began) * 1000)
    yield _ok("server", facts["database"])
    best = min(took)
    answer = f"answers in {best:.2f} ms"
    if best > LATENCY_MS_MAX:
        yield _warning("database", answer, "run workers nearer to it")
    else:
        yield _ok("database", answer)


class _Expected(msgspec.Struct, frozen=True):
    """What a setting of the database should be, and what to do where it is not."""

    holds: Callable[[str], bool]
    otherwise: Verdict
    todo: str


_EXPECTED = {
    "journal_mode": _Expected(
        lambda value: value == "wal",
        Verdict.PROBLEM,
        "keep the file on a local disk; another journal makes readers wait for writers",
    ),
    "synchronous": _Expected(
        lambda value: value in {"NORMAL", "FULL", "EXTRA"},
        Verdict.PROBLEM,
        "a power cut can damage the file: leave it to Ledgerstone",
    ),
    "auto_vacuum": _Expected(
        lambda value: value == "incremental",
        Verdict.WARNING,
        "the file never shrinks: run `PRAGMA auto_vacuum=INCREMENTAL; VACUUM` on it once",
    ),
    "foreign_keys": _Expected(
        lambda value: value == "1", Verdict.PROBLEM, "use a SQLite that was built with them"
    ),
    "pooler": _Expected(lambda _: True, Verdict.OK, ""),
    "fsync": _Expected(
        lambda value: value == "on",
        Verdict.PROBLEM,
        "a power cut can lose what was accepted: set fsync = on",
    ),
    "synchronous_commit": _Expected(
        lambda value: value != "off",
        Verdict.WARNING,
        "a crash of the server can lose the last commits: set synchronous_commit = on",
    ),
    "innodb_flush_log_at_trx_commit": _Expected(
        lambda value: value == "1",
        Verdict.WARNING,
        "a crash of the server can lose the last commits: set it to 1",
    ),
    "sql_mode": _Expected(
        lambda value: "STRICT" in value,
        Verdict.PROBLEM,
        "values that do not fit would be cut in silence: add STRICT_TRANS_TABLES",
    ),
    "isolation": _Expected(
        lambda value: value.upper() == "READ COMMITTED",
        Verdict.WARNING,
        "workers will meet each other more often: leave it at READ COMMITTED",
    ),
}


def _server_settings(database: Examined, settings: Settings) -> Iterator[Check]:
    with database.reading() as tx:
        facts = dict(database.dialect.describe(tx.connection))
        if not database.dialect.embedded:
            facts["isolation"] = tx.connection.get_isolation_level()
    for name, expected in _EXPECTED.items():
        if name not in facts:
            continue
        found = foldable(facts[name])
        if expected.holds(facts[name]):
            yield _ok(name, found)
        else:
            yield Check(name, expected.otherwise, found, expected.todo)
    if (packet := facts.get("max_allowed_packet")) is not None:
        yield _packet(int(packet), settings.store.body_bytes_max)


def _packet(bytes_max: int, body_bytes_max: int) -> Check:
    """The largest body fits into what the server takes at once, however much of it is quoted."""
    needed = body_bytes_max * QUOTED_MAX
    name, found = "max_allowed_packet", f"{bytes_max:,} bytes"
    if bytes_max >= needed:
        return _ok(name, found)
    todo = f"set it to {needed:,}, or store.body_bytes_max to {bytes_max // QUOTED_MAX:,}"
    return _warning(name, f"{found}: too few for the largest body", todo)


def _wakeups(database: Examined, _: Settings) -> Iterator[Check]:
    """What another process commits is noticed at once, not only at the next poll."""
    watcher = database.watcher()
    if watcher is None:
        yield _ok("wake-ups", "by polling")
        return
    watcher.start()
    prompt = watcher.prompt
    watcher.stop()
    if prompt:
        yield _ok("wake-ups", "at once")
    else:
        todo = "look for a pooler or firewall in between; work is found by polling meanwhile"
        yield _warning("wake-ups", "notifications do not arrive", todo)


def _schema(database: Examined, _: Settings) -> Iterator[Check]:
    with database.reading() as tx:
        migrating.check(tx.connection, database.url)
        yield _ok("schema", f"{migrating.newest()}, up to date")


def _clock(database: Examined, _: Settings) -> Iterator[Check]:
    """The database's clock decides; logs and traces are written by the clock of this machine."""
    with database.reading() as tx:
        before = time.time() * 1000
        theirs = tx.connection.execute(select(database_now_ms())).scalar_one()
        after = time.time() * 1000
    # The truth lies anywhere between before and after: only what is outside counts.
    skew = max(before - theirs, theirs - after, 0)
    if skew > SKEW_MS_MAX:
        todo = "let both machines keep time by NTP"
        yield _warning("clock", f"{skew / 1000:.1f} s from that of this machine", todo)
    else:
        yield _ok("clock", f"within {max(skew, 1):.0f} ms of that of this machine")


class _Undo(Exception):
    """Rolls the transaction back."""


def _round_trip(database: Examined, settings: Settings) -> Iterator[Check]:
    """Accept, claim and settle a job, in a transaction that leaves nothing behind."""
    with database.reading() as tx:
        if not migrating.look(tx.connection).up_to_date:
            return
    kinds = Kinds()
    kinds.add(ROUND_TRIP, lambda: None, queue=f"{ROUND_TRIP}-{new_id()}")
    queue = kinds.all()[ROUND_TRIP].queue
    source = JobSource(queue, kinds, database, crashes_max=settings.engine.crashes_max)
    began = time.perf_counter()
    refused = list[Outcome]()
    with suppress(_Undo), database.transaction() as tx:
        tx.jobs.enqueue(ROUND_TRIP, queue=queue)
        claims = source.claim(tx, Ask(1, "doctor", 1.0))
        done = [Outcome(claim, ItemVerdict.DONE) for claim in claims]
        refused += source.settle(tx, done).lost
        raise _Undo
    took = (time.perf_counter() - began) * 1000
    if claims and not refused:
        yield _ok("round trip", f"accept, claim, settle in {took:.1f} ms, undone")
    else:
        yield _problem("round trip", "what was accepted could not be claimed and settled", None)


def _workers(database: Examined, settings: Settings) -> Iterator[Check]:
    with database.reading() as tx:
        if not inspect(tx.connection).has_table(worker.name):
            return
        found = workers_of(tx, settings)
        leases = leases_of(tx)
        waiting = migrating.look(tx.connection).up_to_date and jobs_of(tx).queued
    states = [one.state for one in found]
    alive, silent = states.count(WorkerState.ALIVE), states.count(WorkerState.SILENT)
    seen = f"{alive} alive, {silent} silent, {states.count(WorkerState.STOPPED)} stopped"
    if silent:
        todo = "they died, are paused or cut off; living workers take over what they held"
        yield _warning("workers", seen, todo)
    elif not alive and waiting:
        todo = "run `ledgerstone work -A MODULE:LEDGER` with your code"
        yield _warning("workers", f"{seen}, and jobs wait", todo)
    else:
        yield _ok("workers", seen)
    if not alive:
        return
    late = [one.name for one in leases if one.expires_in_ms < -DUTY_LATE_MS]
    late = [name for name in late if name.startswith("duty:")]
    if late:
        yield _warning("duties", f"nobody does {', '.join(late)}", "look at the workers' logs")
    else:
        yield _ok("duties", "each has been done lately")


def _jobs(database: Examined, settings: Settings) -> Iterator[Check]:
    """Dead letters, and jobs of types that nobody runs."""
    with database.reading() as tx:
        if not migrating.look(tx.connection).up_to_date:
            return
        found = jobs_of(tx)
        failed = failed_messages_of(tx, settings)
    dead = counted(found.dead_letters, found.counted_max)
    if found.dead_letters:
        todo = "`ledgerstone jobs list --status dead_letter` shows why; then `jobs retry --all`"
        yield _warning("dead letters", dead, todo)
    else:
        yield _ok("dead letters", "none")
    if failed:
        todo = "`ledgerstone failed show --group` shows why; then `failed retry --all`"
        yield _warning("failed messages", counted(failed, found.counted_max), todo)
    elif failed is not None:
        yield _ok("failed messages", "none")
    if found.unserved:
        named = [f"{each.type} ({each.queue})" for each in found.unserved[:TYPES_NAMED_MAX]]
        rest = len(found.unserved) - len(named)
        words = ", ".join([*named, *([f"and {rest} more"] if rest else [])])
        todo = "start `ledgerstone work -A MODULE:LEDGER` with the code that has them"
        yield _warning("types", f"queued, and run by no worker: {words}", todo)
    else:
        yield _ok("types", "each type that is queued is run by a worker")


def _messages(database: Examined, settings: Settings) -> Iterator[Check]:
    """The tables that are shared with others are there, as they should be."""
    lacking = Office(settings.messaging).setup.plan(database)
    if not lacking:
        yield _ok("messages", "the tables are there")
        return
    words = list(dict.fromkeys(step.words for step in lacking))
    rest = f" and {len(words) - 1} more" if words[1:] else ""
    todo = "run `ledgerstone messaging setup --apply`; with --dry-run it shows what that does"
    yield _warning("messages", f"not done yet: {words[0]}{rest}", todo)


def _destinations(_: Examined, settings: Settings) -> Iterator[Check]:
    """What messages are carried to and received from can be reached, within seconds."""
    places: dict[str, Place] = {}
    for name, destination in settings.messaging.destinations.items():
        if name != LOCAL:
            places[f"destination {name}"] = destination
    for name, subscription in settings.messaging.subscriptions.items():
        places[f"subscription {name}"] = subscription
    for name, place in places.items():
        try:
            yield _ok(name, reached(name, place))
        except LedgerstoneError as error:
            yield _refused(name, error)


_LOOKS = {
    "settings of the server": _server_settings,
    "wake-ups": _wakeups,
    "schema": _schema,
    "clock": _clock,
    "round trip": _round_trip,
    "workers": _workers,
    "jobs": _jobs,
    "messages": _messages,
    "destinations": _destinations,
}

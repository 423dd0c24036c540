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
from typing import Any

import msgspec
from sqlalchemy import inspect, select

from ledgerstone.console.database import file_of, must_exist, opened
from ledgerstone.console.output import foldable
from ledgerstone.engine.status import WorkerState, leases_of, workers_of
from ledgerstone.errors import LedgerstoneError, SettingsError
from ledgerstone.ledger import Transaction, rooms_for
from ledgerstone.room import Check, CheckStatus, Room, Rooms, refused
from ledgerstone.settings import Settings
from ledgerstone.store.connections.faults import migrate_hint
from ledgerstone.store.database import Database
from ledgerstone.store.dialects.sqlite.dialect import VERSION_SOUND, driver_of
from ledgerstone.store.schema import revisions
from ledgerstone.store.schema.tables import worker
from ledgerstone.store.sql.expressions import database_now_ms

LATENCY_TRIES = 5
QUOTED_MAX = 4
"""A quote in a body is quoted as part of a document, and once more as part of a statement."""
LATENCY_MS_MAX = 50.0
SKEW_MS_MAX = 1000
FREE_BYTES_LOW = 1 << 30
FREE_BYTES_MIN = 100 << 20
DUTY_LATE_MS = 600_000
"""A duty is late when nobody has done it for so long, though there are workers."""


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

    def count(verdict: CheckStatus) -> int:
        return sum(check.verdict is verdict for check in checks)

    return Diagnosis(
        count(CheckStatus.OK), count(CheckStatus.WARNING), count(CheckStatus.PROBLEM), checks
    )


def _checks(load: Callable[[], Settings]) -> Iterator[Check]:
    try:
        settings = load()
        # Routes may lead nowhere, though each setting by itself is right.
        rooms = rooms_for(settings)
    except SettingsError as error:
        todo = "correct it in the file, the environment or the call"
        yield from (_problem("settings", problem, todo) for problem in error.problems)
        return
    yield _ok("settings", settings.url_masked)
    # A store of a room outside the database can be checked without the database.
    elsewhere = [room for room in rooms if not room.tables]
    others = [room for room in rooms if room.tables]
    with opened(settings, rooms, tell=False) as database:
        yield from _rooms(rooms, elsewhere, database)
        try:
            yield from _file(database)
            yield from _reached(database)
        except LedgerstoneError as error:
            # Without a connection the other checks have nothing to read.
            yield refused("database", error)
            return
        for name, look in _LOOKS.items():
            try:
                yield from look(database, settings)
            except LedgerstoneError as error:
                yield refused(name, error)
        yield from _rooms(rooms, others, database)


def _rooms(rooms: Rooms, looked_at: list[Room[Any, Any]], database: Examined) -> Iterator[Check]:
    """The checks of these rooms."""
    for room in looked_at:
        for name, look in room.doctor.items():
            try:
                yield from look(rooms.opened(room, database))
            except LedgerstoneError as error:
                yield refused(name, error)


def _ok(name: str, found: str) -> Check:
    return Check(name, CheckStatus.OK, found)


def _warning(name: str, found: str, todo: str) -> Check:
    return Check(name, CheckStatus.WARNING, found, todo)


def _problem(name: str, found: str, todo: str | None) -> Check:
    return Check(name, CheckStatus.PROBLEM, found, todo)


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
        driver = driver_of(database.url)
    found = f"{driver.__name__} with SQLite {driver.sqlite_version}"
    if driver.sqlite_version_info < VERSION_SOUND:
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


class _ExpectedSetting(msgspec.Struct, frozen=True):
    """The expected value of a database setting, and what to do if it differs."""

    holds: Callable[[str], bool]
    otherwise: CheckStatus
    todo: str


_EXPECTED = {
    "journal_mode": _ExpectedSetting(
        lambda value: value == "wal",
        CheckStatus.PROBLEM,
        "keep the file on a local disk; another journal makes readers wait for writers",
    ),
    "synchronous": _ExpectedSetting(
        lambda value: value in {"NORMAL", "FULL", "EXTRA"},
        CheckStatus.PROBLEM,
        "a power cut can damage the file: leave it to Ledgerstone",
    ),
    "auto_vacuum": _ExpectedSetting(
        lambda value: value == "incremental",
        CheckStatus.WARNING,
        "the file never shrinks: run `PRAGMA auto_vacuum=INCREMENTAL; VACUUM` on it once",
    ),
    "foreign_keys": _ExpectedSetting(
        lambda value: value == "1", CheckStatus.PROBLEM, "use a SQLite that was built with them"
    ),
    "pooler": _ExpectedSetting(lambda _: True, CheckStatus.OK, ""),
    "fsync": _ExpectedSetting(
        lambda value: value == "on",
        CheckStatus.PROBLEM,
        "a power cut can lose what was accepted: set fsync = on",
    ),
    "synchronous_commit": _ExpectedSetting(
        lambda value: value != "off",
        CheckStatus.WARNING,
        "a crash of the server can lose the last commits: set synchronous_commit = on",
    ),
    "innodb_flush_log_at_trx_commit": _ExpectedSetting(
        lambda value: value == "1",
        CheckStatus.WARNING,
        "a crash of the server can lose the last commits: set it to 1",
    ),
    "sql_mode": _ExpectedSetting(
        lambda value: "STRICT" in value,
        CheckStatus.PROBLEM,
        "values that do not fit would be cut in silence: add STRICT_TRANS_TABLES",
    ),
    "isolation": _ExpectedSetting(
        lambda value: value.upper() == "READ COMMITTED",
        CheckStatus.WARNING,
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
    """A commit of another process is noticed at once, not only at the next poll."""
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
        names = database.namespace
        found = revisions.look_closely(tx.connection, names, database.rooms)
    revisions.check(found, database.url)
    if found.missing:
        todo = f"{migrate_hint(database.url)}, which makes them"
        yield _problem("schema", f"missing: {', '.join(found.missing)}", todo)
    else:
        at = "" if database.dialect.embedded else f", in the schema {names.own}"
        yield _ok("schema", f"{revisions.newest()}, up to date{at}")


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


def _workers(database: Examined, settings: Settings) -> Iterator[Check]:
    with database.reading() as tx:
        if not inspect(tx.connection).has_table(worker.name, schema=database.namespace.own):
            return
        found = workers_of(tx, lease_seconds=settings.engine.lease_seconds)
        leases = leases_of(tx)
        schema = revisions.look(tx.connection, database.namespace, database.rooms)
        waiting = schema.up_to_date and any(
            room.waiting(tx.rooms.opened(room, database), tx) for room in tx.rooms
        )
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


_LOOKS = {
    "settings of the server": _server_settings,
    "wake-ups": _wakeups,
    "schema": _schema,
    "clock": _clock,
    "workers": _workers,
}

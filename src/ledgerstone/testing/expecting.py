"""Expectations about enqueued jobs; a failure shows the jobs that were there instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack
from uuid import UUID

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.jobs import JobRow, Status
from ledgerstone.jobs.accepting import org_of
from ledgerstone.jobs.room import JOBS
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.sql.pages import LIMIT_MAX

ROWS_MAX = 10_000
"""How many jobs a test looks through."""
NEAREST_MAX = 5
"""How many jobs a message shows."""
CELL_CHARS_MAX = 60

AnyJob = str | Callable[..., Any]


class Like(TypedDict, total=False):
    """The expected job: `payload` may leave out what does not matter, at any depth."""

    payload: Mapping[str, Any] | None
    queue: str | None
    key: str | None
    org: str | UUID | None
    status: Status | str | None


def enqueued(
    where: Ledger | Transaction, job: AnyJob | None = None, **like: Unpack[Like]
) -> list[JobRow]:
    """The jobs that were enqueued and are like this, the oldest first, whatever became of them.

    A transaction also sees what it has enqueued itself and not committed yet.
    """
    with _looking(where) as tx:
        return _found(tx, _Wanted.of(tx, job, like))


def assert_enqueued(
    where: Ledger | Transaction,
    job: AnyJob | None = None,
    *,
    count: int | None = 1,
    **like: Unpack[Like],
) -> list[JobRow]:
    """Exactly so many jobs like this were enqueued, these; `count=None`: at least one."""
    with _looking(where) as tx:
        wanted = _Wanted.of(tx, job, like)
        found = _found(tx, wanted)
        right = bool(found) if count is None else len(found) == count
        if right:
            return found
        expected = "at least 1" if count is None else str(count)
        message = f"expected {expected} of {wanted}, found {len(found)}"
        raise AssertionError(f"{message}\n{_shown(found) if found else _nearest(tx, wanted)}")


def assert_not_enqueued(
    where: Ledger | Transaction, job: AnyJob | None = None, **like: Unpack[Like]
) -> None:
    """No job like this was enqueued."""
    with _looking(where) as tx:
        wanted = _Wanted.of(tx, job, like)
        found = _found(tx, wanted)
        if found:
            message = f"expected none of {wanted}, found {len(found)}"
            raise AssertionError(f"{message}\n{_shown(found)}")


@contextmanager
def _looking(where: object) -> Iterator[Transaction]:
    if isinstance(where, Ledger):
        with where.reading() as tx:
            yield tx
    elif isinstance(where, Transaction):
        yield where
    else:
        message = f"jobs are looked for in a ledger or a transaction, not in {where!r}"
        hint = "of an async one: await tx.run(lambda tx: assert_enqueued(tx, …))"
        raise BadInput(message, hint=hint)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An expectation, and how a job differs from it."""

    type: str | None
    payload: Mapping[str, Any] | None = None
    queue: str | None = None
    key: str | None = None
    org: str | UUID | None = None
    status: Status | None = None

    @classmethod
    def of(cls, tx: Transaction, job: AnyJob | None, like: Like) -> _Wanted:
        kinds = tx.rooms.state(JOBS).kinds
        known: dict[str, Any] = {**like}
        payload, status = known.get("payload"), known.get("status")
        if payload is not None and not isinstance(payload, Mapping):
            message = f"payload holds arguments by name, not {payload!r}"
            raise BadInput(message, hint='as in payload={"order": 7}')
        if status is not None:
            known["status"] = _status_of(status)
        return cls(type=kinds.name_of(job) if job is not None else None, **known)

    def __str__(self) -> str:
        facts = {
            "queue": self.queue,
            "key": self.key,
            "org": self.org,
            "status": self.status and self.status.value,
            "payload": self.payload,
        }
        given = ", ".join(f"{name} {fact!r}" for name, fact in facts.items() if fact is not None)
        return (self.type or "any job") + (f" with {given}" if given else "")

    @property
    def filters(self) -> dict[str, Any]:
        """The conditions that the database can check."""
        names = ("type", "queue", "key", "org", "status")
        return {name: getattr(self, name) for name in names}

    def differences(self, row: JobRow) -> list[str]:
        """The fields of the job that differ."""
        held = {"type": row.type, "queue": row.queue, "key": row.key, "status": row.status}
        wanted = self.filters
        found = [name for name in held if wanted[name] not in {None, held[name]}]
        if self.org is not None and org_of(self.org) != row.org_id:
            found.append("org")
        if self.payload is not None:
            found += _unlike(self.payload, row.payload, "payload")
        return found


def _status_of(given: Status | str) -> Status:
    try:
        return Status(given)
    except ValueError as error:
        known = ", ".join(status.value for status in Status)
        raise BadInput(f"a job cannot stand at {given!r}", hint=f"use one of {known}") from error


def _unlike(expected: Any, found: Any, path: str) -> Iterator[str]:
    """Where a document is not like the expected part of it, and what is there instead."""
    if isinstance(expected, Mapping) and isinstance(found, dict):
        for name, value in expected.items():
            here = f"{path}.{name}"
            if str(name) in found:
                yield from _unlike(value, found[str(name)], here)
            else:
                yield f"{here}: missing"
    elif isinstance(expected, list | tuple) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{path}: {len(found)} items"
        for i, (value, there) in enumerate(zip(expected, found, strict=False)):
            yield from _unlike(value, there, f"{path}[{i}]")
    elif not _same(expected, found):
        yield f"{path}: {_cut(_spelled(found))}"


def _same(expected: Any, found: Any) -> bool:
    """Whether it is equal, or would be once it is written as JSON."""
    if isinstance(found, bool) != isinstance(expected, bool) and isinstance(expected, int | float):
        return False
    if expected == found:
        return True
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(expected)) == found)
    except (TypeError, ValueError):
        return False


def _found(tx: Transaction, wanted: _Wanted) -> list[JobRow]:
    return [row for row in _all(tx, **wanted.filters) if not wanted.differences(row)]


def _all(tx: Transaction, **filters: Any) -> list[JobRow]:
    """The jobs that meet the filters, the oldest first."""
    rows: list[JobRow] = []
    cursor: str | None = None
    while len(rows) < ROWS_MAX:
        page = tx.jobs.find(limit=LIMIT_MAX, cursor=cursor, **filters)
        rows += page.rows
        cursor = page.next
        if cursor is None:
            return rows[::-1]
    message = f"more than {ROWS_MAX} jobs are too many to look through"
    raise BadInput(message, hint="say more of what you look for, or use a fresh database")


def _nearest(tx: Transaction, wanted: _Wanted) -> str:
    """A table of the jobs that are there instead, those with the fewest differences first."""
    rows = tx.jobs.find(limit=LIMIT_MAX).rows
    if not rows:
        return "there is no job at all"
    rows.sort(key=lambda row: _distance(wanted, row))
    return _shown(rows, wanted)


def _distance(wanted: _Wanted, row: JobRow) -> tuple[bool, int]:
    differences = wanted.differences(row)
    return "type" in differences, len(differences)


def _shown(rows: Sequence[JobRow], wanted: _Wanted | None = None) -> str:
    """Some jobs as a small table."""
    head = ["type", "queue", "status", "key", "payload"] + (["differs in"] if wanted else [])
    lines = [head]
    for row in rows[:NEAREST_MAX]:
        cells = [row.type, row.queue, row.status.value, row.key or "-", _spelled(row.payload)]
        lines.append(cells + ([", ".join(wanted.differences(row))] if wanted else []))
    cut = [[_cut(cell) for cell in line] for line in lines]
    widths = [max(map(len, cells)) for cells in zip(*cut, strict=True)]
    shown = ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in cut]
    left = len(rows) - NEAREST_MAX
    if left > 0:
        shown.append(f"  and {left} more")
    there = "what is there instead, the nearest first:" if wanted else "these are there:"
    return "\n".join([there, *shown])


def _spelled(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _cut(cell: str) -> str:
    return cell if len(cell) <= CELL_CHARS_MAX else cell[: CELL_CHARS_MAX - 1] + "…"

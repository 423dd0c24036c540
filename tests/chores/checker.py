"""An independent check of the promises, read off the database.

It shares no code with what it checks: it opens the database with the bare driver, reads the rows of
chores and of their history, and replays the one against the other. Its own table of moves is
written out below, from the document and not from the code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from tests.harness.drivers import connect

MOVES = {
    (None, "queued"),
    ("queued", "running"),
    ("running", "queued"),
    ("running", "done"),
    ("running", "dead"),
    ("running", "canceled"),
}
ENDS = {"done", "dead", "canceled"}
PROBLEMS_MAX = 50


class OutcomeKind(NamedTuple):
    """What was found: broken promises, and counts for people."""

    problems: list[str]
    by_status: dict[str, int]
    refused: int
    rescued: int


class _Event(NamedTuple):
    prev: str | None
    next: str
    attempt: int
    reason: str

    @property
    def refusal(self) -> bool:
        return self.reason.startswith("refused")


def check(url: str, accepted: Collection[str]) -> OutcomeKind:
    """Check every chore of a database; `accepted` are the ids that the producer was promised."""
    chores, events = _read(url)
    problems: list[str] = []
    _say(problems, "accepted and not there", set(accepted) - set(chores))
    _say(problems, "there and never accepted", set(chores) - set(accepted))
    for key, (status, attempt) in chores.items():
        problems.extend(_replayed(key, status, attempt, events[key]))
    everything = [event for listed in events.values() for event in listed]
    return OutcomeKind(
        problems[:PROBLEMS_MAX],
        dict(Counter(status for status, _ in chores.values())),
        sum(event.refusal for event in everything),
        sum(event.reason.startswith("the lease of") for event in everything),
    )


def _replayed(key: str, status: str, attempt: int, events: list[_Event]) -> Iterable[str]:
    at: str | None = None
    begun = 0
    ends = 0
    for event in events:
        if event.refusal:
            if event.prev != event.next:
                yield f"{key}: a refusal moved it from {event.prev} to {event.next}"
            continue
        if event.prev != at:
            yield f"{key}: recorded from {event.prev} while it was {at}"
        if (event.prev, event.next) not in MOVES:
            yield f"{key}: moved from {event.prev} to {event.next}"
        at = event.next
        begun += event.next == "running"
        ends += event.next in ENDS
    if at != status:
        yield f"{key}: its history ends {at}, its row says {status}"
    if ends > 1 or (status in ENDS) != (ends == 1):
        yield f"{key}: it is {status} and ended {ends} times"
    if attempt > begun:
        yield f"{key}: attempt {attempt} after {begun} starts"


def _read(url: str) -> tuple[dict[str, tuple[str, int]], dict[str, list[_Event]]]:
    connection = connect(url)
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT id, status, attempt FROM chore")
        chores = {str(row[0]): (row[1], row[2]) for row in cursor.fetchall()}
        columns = "chore_id, prev_status, next_status, attempt, reason"
        cursor.execute(f"SELECT {columns} FROM chore_event ORDER BY id")  # noqa: S608 - fixed
        events: defaultdict[str, list[_Event]] = defaultdict(list)
        for row in cursor.fetchall():
            events[str(row[0])].append(_Event(row[1], row[2], row[3], row[4] or ""))
        cursor.close()
    finally:
        connection.close()
    return chores, events


def _say(problems: list[str], what: str, keys: set[str]) -> None:
    if keys:
        problems.append(f"{len(keys)} {what}, for example {sorted(keys)[:3]}")

"""Where the engine is measured, and the chores in it."""

from __future__ import annotations

from bench import places
from bench.ledgers import opened
from bench.places import Opener
from tests.chores import Chores, NewChore, install

ENQUEUE_MAX = 1000
PLACES: dict[str, Opener] = {
    "sqlite": places.sqlite,
    "postgres": places.postgres,
    "mysql": places.mysql("chore", "chore_event"),
}


def furnish(url: str) -> None:
    """Make the tables."""
    with opened(url) as ledger:
        ledger.migrate()
        install(ledger.database)


def fill(url: str, chores: int) -> None:
    """Enqueue so many chores."""
    with opened(url) as ledger:
        for start in range(0, chores, ENQUEUE_MAX):
            numbers = range(start, min(start + ENQUEUE_MAX, chores))
            with ledger.transaction() as tx:
                Chores(tx).enqueue_many([NewChore(body={"number": number}) for number in numbers])


def standing(url: str) -> dict[str, int]:
    """How many chores stand where, and how many of each move are on record."""
    chores = "SELECT status, COUNT(*) FROM chore GROUP BY status"
    events = (
        "SELECT COALESCE(prev_status, ''), next_status, COUNT(*) FROM chore_event"
        " GROUP BY prev_status, next_status"
    )
    with opened(url) as ledger, ledger.reading() as tx:
        moves = {
            f"{prev}>{after}": int(number)
            for prev, after, number in tx.connection.exec_driver_sql(events)
        }
        return moves | {
            str(status): int(number) for status, number in tx.connection.exec_driver_sql(chores)
        }

"""Many events: imported in batches, exported, and read page by page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.protocols import Envelope, Reading, Running, moving
from ledgerstone.protocols.connection import _listing
from ledgerstone.protocols.read.status import EVENTS
from tests.protocols.letters import count, given_key, letters, rows, seat, words_of, written


def mixed() -> list[Envelope]:
    """Events that are new, known, waiting and failing."""
    return [
        written("early"),
        given_key(),
        *[written(f"{i}", at=i // 3 + 1) for i in range(20)],
        written("3", at=2),
        Envelope(type="broken"),
        seat("b", "a"),
        *[Envelope(type="note", data={"n": i}) for i in range(20)],
        seat("a"),
    ]


def state_of(running: Running) -> list[object]:
    """What the tables hold, without numbers and moments."""
    return [
        sorted(rows(running, "SELECT words, room, received_by FROM letter")),
        sorted(rows(running, "SELECT name, after FROM seat")),
        sorted(rows(running, "SELECT event_type, event_id FROM events")),
        rows(running, "SELECT event_type FROM blocked"),
        rows(running, "SELECT status FROM incoming"),
    ]


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_an_import(ledger: Ledger, batch: int) -> None:
    """Whatever the size of its batches, the end is the same."""
    running = ledger.protocol(letters())

    moved = running.import_events(mixed(), batch=batch)
    running.work()

    assert (moved.new, moved.known, moved.blocked, moved.failed) == (42, 1, 2, 1)
    assert len(words_of(running)) == 21
    assert count(running, "events") == 44
    assert rows(running, "SELECT name FROM seat ORDER BY name") == [("a",), ("b",)]
    assert rows(running, "SELECT status FROM incoming") == [("queued",)]


def test_an_import_is_resumed(running: Running) -> None:
    """One that was broken off goes on behind its last batch."""

    def broken_off() -> Iterator[Envelope]:
        yield from mixed()[:13]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.import_events(broken_off(), name="file", batch=5)
    kept = count(running, "events")

    moved = running.import_events(mixed(), name="file", batch=5)
    running.work()

    assert (kept, moved.resumed, moved.known) == (9, 10, 1)
    assert count(running, "events") == 44


@pytest.mark.parametrize("file", ["other", "shorter"])
def test_an_import_is_resumed_with_another_file(running: Running, file: str) -> None:
    """It is refused: the events of that file would be passed over silently."""
    running.import_events(mixed(), name="file", batch=5)
    other = [written("other"), *mixed()] if file == "other" else mixed()[:-1]

    with pytest.raises(errors.KeyConflict, match="the import file has read 46 other events"):
        running.import_events(other, name="file", batch=5)

    assert running.import_events([*mixed(), written("more")], name="file").new == 1


def test_a_batch_is_bounded_in_bytes(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the event that exceeds the bound, whatever the count of its events."""
    monkeypatch.setattr(moving, "BATCH_BYTES_MAX", 500)
    seen = list[int]()

    running.import_events(
        [Envelope(type="note", data={"n": n, "words": "x" * 230}) for n in range(5)],
        progress=lambda moved: seen.append(moved.all),
    )

    assert seen == [2, 4, 5]


def test_an_event_that_is_too_large(running: Running) -> None:
    """It is refused as where one is received, and nothing of its batch is kept."""
    most = running.database.settings.body_bytes_max + moving.FRAME_BYTES_MAX
    large = Envelope(type="note", data={"words": "x" * most})

    with pytest.raises(errors.TooLarge, match=r"event 2 has \d+ bytes, at most 1048576"):
        running.import_events([given_key(), large])

    assert count(running, "events") == 0


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Envelope(type="note", created_at_ms=10**30), "event 2: an event has a moment in ms"),
        (Envelope(type="note", event_id="x" * 500), "event 2: the identity of an event has 1 to"),
        (Envelope(type="note", event_id="a\0b"), "event 2: the identity of an event holds"),
        (Envelope(type="note", received_by="y" * 300), "event 2: an identity that receives"),
        (Envelope(type=""), "event 2: the type of an event"),
        (Envelope(type="note", data={"n": "\ud800"}), "is no JSON"),
        (Envelope(type="note", data={"n": object()}), "is no JSON"),
        (Envelope(type="ledgerstone.wire", data={"blob": ""}), "event 2: bytes for a decoder"),
    ],
)
def test_an_event_that_no_database_keeps(running: Running, event: Envelope, why: str) -> None:
    """It is refused with its number, alike on every database, and nothing of its batch is kept."""
    with pytest.raises(errors.BadInput, match=why):
        running.import_events([given_key(), event, written("behind")])

    assert [count(running, table) for table in ("events", "incoming")] == [0, 0]


def test_an_export(running: Running) -> None:
    """What was exported, and imported elsewhere, is the same."""
    running.import_events(mixed())
    running.work()
    exported = [event for _, event in running.export_events()]

    again = running.import_events(exported)

    assert (len(exported), again.known, again.new) == (44, 44, 0)


@pytest.mark.parametrize("tie", ["event_id", "id"])
def test_pages(running: Running, tie: str) -> None:
    """Newest first, forward and back, without gaps and repetitions, also among equal times.

    Among equal times by the identity of the event, or by the number of the row.
    """
    running.import_events(mixed())
    columns, order = ("words", "sent_at_ms", tie), ("sent_at_ms", tie)

    def page(cursor: str | None = None, *, back: bool = False):  # type: ignore[no-untyped-def] # noqa: ANN202
        def read(db: Reading):  # type: ignore[no-untyped-def] # noqa: ANN202
            return db.page(
                "letter",
                columns,
                order=order,
                limit=8,
                cursor=cursor,
                back=back,
                where={"received_by": "ann"},
            )

        return running.read(read)

    first = page()
    second = page(first.next)
    third = page(second.next)
    back = page(third.previous, back=True)
    front = page(back.previous, back=True)

    seen = [*first.rows, *second.rows, *third.rows]
    assert [row[1:] for row in seen] == sorted((row[1:] for row in seen), reverse=True)
    assert len({row[0] for row in seen}) == 20
    assert (third.next, first.previous) == (None, None)
    assert (back.rows, front.rows) == (second.rows, first.rows)
    assert (back.next, front.previous) == (second.next, None)
    with pytest.raises(errors.BadInput, match="begins at a cursor"):
        page(back=True)


@pytest.mark.parametrize("page", ["first", "next", "previous"])
def test_a_page_reads_its_index_alone(tmp_path: Path, page: str) -> None:
    """Columns that an index has are read from it, in its order: no row is looked up or sorted."""
    columns, order = ("sent_at_ms", "event_id"), ("sent_at_ms", "event_id")
    listed = _listing("letter", columns, order, ("received_by",), ascending=False)
    statements = {"first": listed._first, "next": listed._next, "previous": listed._previous}
    given = {"received_by_": "ann", "limit": 51, "after_0": 5, "after_1": "x"}

    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.migrate()
        ledger.protocol(letters())
        with ledger.reading() as tx:
            compiled = statements[page].compiled(tx)
            cursor = tx.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {compiled.text}", compiled.parameters(given))
            plan = [row[3] for row in cursor.fetchall()]

    assert len(plan) == 1
    assert "USING COVERING INDEX idx_letter_page" in plan[0]


def test_a_page_is_planned_once(tmp_path: Path) -> None:
    """SQLite plans the statement of a page at its first read, and not again at each."""
    prepared = list[int]()

    def asked(action: int, *_: object) -> int:
        """SQLite asks whenever it plans; 0 allows it."""
        prepared.append(action)
        return 0

    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.migrate()
        with ledger.reading() as tx:
            driver: Any = tx.connection.connection.driver_connection
            driver.set_authorizer(asked)
            EVENTS.read(tx, limit=50, protocol_="letters")
            once = len(prepared)
            EVENTS.read(tx, limit=50, protocol_="letters")
            EVENTS.read(tx, limit=20, protocol_="letters")
            driver.set_authorizer(None)

    assert 0 < once == len(prepared)

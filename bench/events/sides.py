"""Both sides: the driver doing by hand what the ledger does, and the ledger.

The driver's side has the table, index and session settings of the ledger, its own copy of the code
that makes an identity, and the same batches. It checks nothing else.
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

import msgspec

from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from ledgerstone.ledger import Ledger
from ledgerstone.protocols import Envelope, Projecting, Protocol, Running
from ledgerstone.protocols.events import encode

BATCH = 1000
APPEND_BATCH = 100
PAGE = 50
TEXT = "x" * 440
"""With its frame an event has about 500 bytes."""
START_MS = 1_700_000_000_000
NAME = "bench"
SCHEMA = """
CREATE TABLE bench_note (
  event_id TEXT PRIMARY KEY, n INTEGER NOT NULL, words TEXT NOT NULL, sent_at_ms INTEGER NOT NULL,
  INDEX idx_bench_note_page (sent_at_ms DESC, event_id DESC)
);
"""
ADD = (
    "INSERT INTO events (event_type, created_at_ms, payload, protocol, received_by, event_id)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
NOTE = "INSERT INTO bench_note (event_id, n, words, sent_at_ms) VALUES (?, ?, ?, ?)"
POP = (
    "SELECT id, blob FROM incoming INDEXED BY idx_incoming__due WHERE status = 'queued'"
    " ORDER BY available_at_ms, id LIMIT 1"
)
DROP = "DELETE FROM incoming WHERE id = ?"
LAST = (
    "SELECT id, event_type, event_id, received_by, created_at_ms FROM events"
    " WHERE protocol = 'bench' ORDER BY id DESC LIMIT 51"
)
_encoder = msgspec.json.Encoder(order="deterministic")


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """An import: how fast, what the file has, what memory the process took at most."""

    timing: Timing
    file_bytes: int
    peak_bytes: int


def protocol() -> Protocol:
    """One kind of event is only kept, the other projected."""
    made = Protocol(NAME, schema=SCHEMA)
    made.keeps("kept")

    @made.projector("note")
    def note(db: Projecting, event: Envelope) -> None:
        db.insert(
            "bench_note",
            event_id=event.event_id,
            n=event.data["n"],
            words=event.data["words"],
            sent_at_ms=event.created_at_ms,
        )

    return made


def running(ledger: Ledger) -> Running:
    """The protocol, its tables made."""
    return ledger.protocol(protocol())


def envelopes(count: int, kind: str = "kept") -> Iterator[Envelope]:
    """So many events, all different."""
    for n in range(count):
        yield Envelope(type=kind, data={"n": n, "words": TEXT}, created_at_ms=START_MS + n)


def ledger_ingest(url: str, count: int) -> Ingested:
    """`import_events`, in batches."""
    with opened(url) as ledger:
        made = running(ledger)
        timing = _timed(count, lambda: made.import_events(envelopes(count), batch=BATCH))
    return _ingested(url, timing)


def driver_ingest(url: str, count: int) -> Ingested:
    """The same rows by the driver's `executemany`."""

    def ingest(connection: Any) -> None:
        batch: list[tuple[Any, ...]] = []
        for n in range(count):
            payload = _encoder.encode({"n": n, "words": TEXT})
            identity = hashlib.blake2b(b"kept\0" + payload, digest_size=32).hexdigest()
            batch.append(("kept", START_MS + n, payload, NAME, "", identity))
            if len(batch) == BATCH or n == count - 1:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(ADD, batch)
                connection.execute("COMMIT")
                batch.clear()

    with opened(url) as ledger:
        running(ledger)
        raw = ledger.database.engine.raw_connection()
        timing = _timed(count, lambda: ingest(raw.driver_connection))
        raw.close()
    return _ingested(url, timing)


def ledger_per_item(url: str, count: int) -> Timing:
    """`incoming`: claimed, and each popped, projected and committed by itself."""
    with opened(url) as ledger:
        made = running(ledger)
        made.receive([encode(each) for each in envelopes(count, "note")])
        return _timed(count, made.work)


def driver_per_item(url: str, count: int) -> Timing:
    """The bare statements: pop, append, project, remove, commit."""

    def work(connection: Any) -> None:
        for _ in range(count):
            connection.execute("BEGIN IMMEDIATE")
            number, blob = connection.execute(POP).fetchone()
            event = msgspec.json.decode(blob)
            payload = _encoder.encode(event["data"])
            identity = hashlib.blake2b(b"note\0" + payload, digest_size=32).hexdigest()
            at, data = event["created_at_ms"], event["data"]
            connection.execute(ADD, ("note", at, payload, NAME, "", identity))
            connection.execute(NOTE, (identity, data["n"], data["words"], at))
            connection.execute(DROP, (number,))
            connection.execute("COMMIT")

    with opened(url) as ledger:
        made = running(ledger)
        made.receive([encode(each) for each in envelopes(count, "note")])
        raw = ledger.database.engine.raw_connection()
        timing = _timed(count, lambda: work(raw.driver_connection))
        raw.close()
        return timing


def pages(url: str, reads: int) -> tuple[float, float, float]:
    """The last page of the log: the median in ms, by the ledger and by the bare statement.

    And by the ledger the page in the middle of the log.
    """
    from ledgerstone.protocols.read.status import EVENTS

    with opened(url) as ledger, ledger.reading() as tx:
        raw = tx.connection.connection.driver_connection
        assert raw is not None
        (count,) = raw.execute("SELECT MAX(id) FROM events").fetchone()
        # A cursor is made of the row that a page ends with.
        row = (count // 2, "kept", "", "", START_MS)
        middle = EVENTS._behind(row, EVENTS._key(tx, {"protocol_": NAME}))  # noqa: SLF001
        ours, bare, deep = [], [], []
        for _ in range(reads):
            began = perf_counter()
            EVENTS.read(tx, limit=PAGE, protocol_=NAME)
            between = perf_counter()
            raw.execute(LAST).fetchall()
            ours.append(between - began)
            after = perf_counter()
            EVENTS.read(tx, limit=PAGE, cursor=middle, protocol_=NAME)
            deep.append(perf_counter() - after)
            bare.append(after - between)
    return median(ours) * 1000, median(bare) * 1000, median(deep) * 1000


def ledger_append(url: str, count: int) -> Timing:
    """`import_events`, in the batches of the peer."""
    with opened(url) as ledger:
        made = running(ledger)
        return _timed(count, lambda: made.import_events(envelopes(count), batch=APPEND_BATCH))


def eventsourcing_append(url: str, count: int) -> Timing:
    """The recorder of `eventsourcing`, given bytes that are ready."""
    # It is no dependency of ours: the benchmark alone installs it.
    stored_event: Any = import_module("eventsourcing.persistence").StoredEvent
    sqlite: Any = import_module("eventsourcing.sqlite")
    datastore = sqlite.SQLiteDatastore(url.removeprefix("sqlite:///"))
    recorder = sqlite.SQLiteApplicationRecorder(datastore)
    recorder.create_table()
    state, originator = (b'{"n":1,"words":"%s"}' % TEXT.encode()), uuid4()

    def append() -> None:
        for start in range(0, count, APPEND_BATCH):
            numbers = range(start, min(start + APPEND_BATCH, count))
            recorder.insert_events(
                [stored_event(originator, n + 1, "bench:Kept", state) for n in numbers]
            )

    return _timed(count, append)


def _timed(count: int, work: Any) -> Timing:
    settle_memory()
    began, cpu = perf_counter(), process_time()
    work()
    return Timing(count=count, seconds=perf_counter() - began, cpu_seconds=process_time() - cpu)


def _ingested(url: str, timing: Timing) -> Ingested:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    file = Path(url.removeprefix("sqlite:///"))
    return Ingested(timing=timing, file_bytes=file.stat().st_size, peak_bytes=peak)

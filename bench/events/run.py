"""One run: events are imported, applied one by one, read and appended by each side in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from bench.command import Say
from bench.events import sides
from bench.events.sides import Ingested
from bench.ledgers import described, opened
from bench.machine import ROOT, versions
from bench.measure import Timing, apart, ratios
from bench.report import AtMost, Figure, Measurement, Observed, Report, Unit, report

T = TypeVar("T")
DATABASE = "sqlite"
PARTS = ("ingest", "per_item", "append")
EVENTS = 10_000_000
MEBIBYTE = 1_048_576
WORDS = """\
Ingest: events of 500 bytes, 1,000 a commit, into a log with a unique identity. Both sides encode
each event and hash its content; the driver's side is a hand-written loop with `executemany` on the
same table, index and session settings. File size, last page (50 events, newest first) and the page
in the middle of the log are those of the database that ingest has left; memory is the peak of the
importing process. Per item: each event is popped off `incoming`, appended,
projected into a table and committed by itself; the ledger claims 100 at once under a lease and
compares its token for each. Append: 100 events a commit, beside the SQLite recorder of the library
`eventsourcing`, which is given bytes that are ready. The sides take turns, each in a fresh process
on a fresh database; a ratio is the median of the ratios of the rounds."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    scale: float
    events: int
    items: int
    rounds_ingest: int
    rounds: int
    reads: int
    peers: bool = True

    @classmethod
    def of(cls, scale: float, events: int | None = None) -> Plan:
        """The plan of a scale: ten million events once; less events, three times.

        A number of events is the scale, too: a small run must not pass for a whole one.
        """
        count = max(1000, round(EVENTS * scale)) if events is None else events
        return cls(
            scale=scale if events is None else events / EVENTS,
            events=count,
            items=min(20_000, count),
            rounds_ingest=1 if count > EVENTS // 10 else 3,
            rounds=5,
            reads=2000,
        )


def measured(plan: Plan, parts: Sequence[str], *, say: Say) -> Report:
    """Measure the parts one after the other."""
    figures: list[Figure] = []
    measurements: list[Measurement] = []
    with _folder() as folder:
        if "ingest" in parts:
            _ingest(plan, folder, figures, measurements, say)
        if "per_item" in parts:
            both = _rounds(plan, folder, say, "per item", _PER_ITEM)
            figures.append(_at_least("per_item.vs_driver", both, 0.5))
            measurements += _rates("per item", both)
        if "append" in parts and plan.peers:
            both = _rounds(plan, folder, say, "append", _APPEND)
            value = median(ratios(both["ledger"], both["peer"]))
            name = "events.sqlite.append.vs_eventsourcing"
            figures.append(Observed(unit=Unit.RATIO, name=name, value=value))
            measurements += _rates("append", both)
        facts = described(f"sqlite:///{folder}/described.db")
    return report(
        room="events",
        scale=plan.scale,
        versions=versions(["SQLAlchemy", "pysqlite3", "msgspec"]),
        databases={DATABASE: facts},
        settings={"plan": msgspec.to_builtins(plan)},
        figures=figures,
        measurements=measurements,
    )


Side = Callable[[str, int], Timing]
_PER_ITEM: dict[str, Side] = {"driver": sides.driver_per_item, "ledger": sides.ledger_per_item}
_APPEND: dict[str, Side] = {"peer": sides.eventsourcing_append, "ledger": sides.ledger_append}


def _ingest(
    plan: Plan, folder: Path, figures: list[Figure], measurements: list[Measurement], say: Say
) -> None:
    theirs, ours = list[Ingested](), list[Ingested]()
    for number in range(plan.rounds_ingest):
        theirs.append(_on_fresh(folder, lambda url: apart(sides.driver_ingest, url, plan.events)))
        ours.append(_on_fresh(folder, lambda url: apart(sides.ledger_ingest, url, plan.events)))
        rates = f"driver {theirs[-1].timing.rate:,.0f}, ledger {ours[-1].timing.rate:,.0f}"
        peak = ours[-1].peak_bytes / MEBIBYTE
        say(f"ingest {number + 1} of {plan.rounds_ingest}: {rates} a second, {peak:,.0f} MiB")
    page_ms, bare_ms, deep_ms = apart(sides.pages, _url(folder), plan.reads)
    both = {"driver": [each.timing for each in theirs], "ledger": [each.timing for each in ours]}
    size = ours[-1].file_bytes / theirs[-1].file_bytes
    prefix = "events.sqlite"
    figures += [
        _at_least("ingest.vs_driver", both, 0.8),
        AtMost(unit=Unit.RATIO, name=f"{prefix}.file_size.vs_driver", value=size, bound=1.15),
        AtMost(
            unit=Unit.RATIO, name=f"{prefix}.page.vs_driver", value=page_ms / bare_ms, bound=1.5
        ),
        Figure(unit=Unit.MS, name=f"{prefix}.page_p50", value=page_ms, bound=1.0),
        Figure(unit=Unit.MS, name=f"{prefix}.page_in_the_middle_p50", value=deep_ms, bound=1.0),
    ]
    measurements += _rates("ingest", both)
    memory = [each.peak_bytes / MEBIBYTE for each in ours]
    measurements.append(
        Measurement(database=DATABASE, case="ingest ledger, memory", unit="MiB", values=memory)
    )


def _rounds(
    plan: Plan, folder: Path, say: Say, words: str, both: dict[str, Side]
) -> dict[str, list[Timing]]:
    timings: dict[str, list[Timing]] = {side: [] for side in both}
    for number in range(plan.rounds):
        for side, run in both.items():
            fresh = "eventsourcing" if side == "peer" else None

            def once(url: str, run: Side = run) -> Timing:
                return apart(run, url, plan.items)

            timings[side].append(_on_fresh(folder, once, empty=fresh is not None))
        rates = ", ".join(f"{side} {taken[-1].rate:,.0f}" for side, taken in timings.items())
        say(f"{words} {number + 1} of {plan.rounds}: {rates} a second")
    return timings


def _on_fresh(folder: Path, work: Callable[[str], T], *, empty: bool = False) -> T:
    """Do it on a new database; `empty`: without the tables of the ledger."""
    for left in folder.glob("run.db*"):
        left.unlink()
    if not empty:
        with opened(_url(folder)) as ledger:
            ledger.migrate()
    return work(_url(folder))


def _url(folder: Path) -> str:
    return f"sqlite:///{folder}/run.db"


def _at_least(name: str, both: dict[str, list[Timing]], bound: float) -> Figure:
    value = median(ratios(both["ledger"], both["driver"]))
    return Figure(unit=Unit.RATIO, name=f"events.sqlite.{name}", value=value, bound=bound)


def _rates(case: str, both: dict[str, list[Timing]]) -> Iterator[Measurement]:
    for side, taken in both.items():
        rates = [each.rate for each in taken]
        yield Measurement(database=DATABASE, case=f"{case} {side}", unit="events/s", values=rates)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder on the disk of the checkout."""
    with tempfile.TemporaryDirectory(prefix=".bench-events-", dir=ROOT) as folder:
        yield Path(folder)

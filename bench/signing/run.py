"""One run: inserts of driver, store and threads in turn, reads, then lives, all on the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from bench.command import Say
from bench.machine import ROOT
from bench.measure import Spread, Timing, apart, cpu_us, ratios
from bench.report import Figure, Measurement, Report, Unit, report
from bench.signing import driver, inserts, lives
from ledgerstone.signing.rocksdb.library import load

DATABASE = "rocksdb"
PARTS = ("inserts", "reads", "lives")
THREADS = 16
BOUNDS = {
    "signing.insert_1t.vs_driver": 0.7,
    "signing.insert_16t.vs_1t": 2.0,
    "signing.read_p99": 1.0,
    # The original's goal is more than one full signing a second.
    "signing.life_p50": 1000.0,
}
KEPT_VALUES = 101
"""Of a case with many values: its least, its most and the percentiles between."""
DOCUMENTED_BYTES = 14_000
"""What the original's document estimates for a request."""
WORDS = """\
Inserts: events of 500 bytes, each new, each in a transaction of its own (begin, get for update,
put, commit) that is on disk when the call returns. The driver makes the same C calls by ctypes in a
hand-written loop. Driver, store and store with 16 threads are measured in turn, each time in a
fresh process on a fresh folder; a ratio is the median of the ratios of the rounds. The folder lies
on the disk of the checkout, not in memory.

Reads: point reads of events that were flushed and reopened, cold at first.

Lives: event, request, proposal of 10,000 bytes and 5 inputs in one call, 2 of 3 votes, 10
Schnorr signatures, made and verified, and the final transaction: 14 calls, each on disk when it
returns. Bytes of a request are of a store that was flushed and compacted; the original's document
estimates 14,000 with 3 votes and 15 signatures."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    scale: float
    inserts: int
    warm_up: int = 50
    rounds: int
    rows: int
    reads: int
    lives: int
    value_bytes: int = 500

    @classmethod
    def of(cls, scale: float) -> Plan:
        """The plan of a scale; below some size nothing can be told from noise."""
        return cls(
            scale=scale,
            inserts=max(320, round(1600 * scale)),
            rounds=7 if scale >= 1 else 3,
            rows=max(2000, round(50_000 * scale)),
            reads=max(2000, round(20_000 * scale)),
            lives=max(50, round(300 * scale)),
        )


def measured(plan: Plan, parts: Sequence[str], *, say: Say) -> Report:
    """Measure the parts one after the other."""
    figures: list[Figure] = []
    measurements: list[Measurement] = []
    for name, measure in (("inserts", _inserts), ("reads", _reads), ("lives", _lives)):
        if name in parts:
            found = measure(plan, say)
            figures += found[0]
            measurements += found[1]
    return report(
        room="signing",
        scale=plan.scale,
        versions={"librocksdb": load().file},
        databases={DATABASE: {"sync": "each write", "use_fsync": "true"}},
        settings={"plan": msgspec.to_builtins(plan)},
        figures=figures,
        measurements=measurements,
    )


Found = tuple[list[Figure], list[Measurement]]


def _inserts(plan: Plan, say: Say) -> Found:
    sides: dict[str, Callable[..., Timing]] = {
        "driver": driver.insert,
        "store": inserts.insert,
        f"store, {THREADS} threads": partial(inserts.insert, threads=THREADS),
    }
    timings: dict[str, list[Timing]] = {side: [] for side in sides}
    for number in range(plan.rounds):
        for side, run in sides.items():
            with _folder() as folder:
                timings[side].append(
                    apart(
                        run,
                        folder,
                        warm_up=plan.warm_up,
                        count=plan.inserts,
                        value_bytes=plan.value_bytes,
                    )
                )
        told = ", ".join(f"{side} {taken[-1].rate:,.0f}/s" for side, taken in timings.items())
        say(f"inserts {number + 1} of {plan.rounds}: {told}")
    bare, one, many = timings.values()
    beside = {
        "signing.insert_1t.vs_driver": ratios(one, bare),
        "signing.insert_16t.vs_1t": ratios(many, one),
    }
    return [
        Figure(unit=Unit.RATIO, name=name, value=median(values), bound=BOUNDS[name])
        for name, values in beside.items()
    ], [
        *(_rates(side, taken) for side, taken in timings.items()),
        *(
            Measurement(database=DATABASE, case=name, unit="ratio", values=values)
            for name, values in beside.items()
        ),
    ]


def _rates(side: str, taken: Sequence[Timing]) -> Measurement:
    return Measurement(
        database=DATABASE,
        case=f"insert {side}",
        unit="1/s",
        values=[timing.rate for timing in taken],
        note=f"{cpu_us(taken):.1f} µs CPU",
    )


def _reads(plan: Plan, say: Say) -> Found:
    with _folder() as folder:
        values = apart(
            inserts.reads,
            folder,
            rows=plan.rows,
            count=plan.reads,
            value_bytes=plan.value_bytes,
        )
    name = "signing.read_p99"
    p99 = Spread.of(values).p99
    say(f"reads: {median(values):.4f} ms, p99 {p99:.4f} ms")
    return [Figure(unit=Unit.MS, name=name, value=p99, bound=BOUNDS[name])], [
        _summary("point read", values)
    ]


def _summary(case: str, taken: Sequence[float]) -> Measurement:
    """A case by its percentiles: enough for the table and the picture, and small in the file."""
    ordered = sorted(taken)
    last, steps = len(ordered) - 1, KEPT_VALUES - 1
    kept = ordered
    if len(ordered) > KEPT_VALUES:
        kept = [ordered[round(last * step / steps)] for step in range(KEPT_VALUES)]
    return Measurement(
        database=DATABASE,
        case=case,
        unit="ms",
        values=[round(value, 6) for value in kept],
        note=f"percentiles of {len(ordered):,}",
    )


def _lives(plan: Plan, say: Say) -> Found:
    with _folder() as folder:
        found = apart(lives.live, folder, warm_up=plan.lives // 10, count=plan.lives)
    name = "signing.life_p50"
    p50 = median(found.taken)
    say(
        f"lives: {p50:.2f} ms; {found.rows_bytes:,.0f} bytes a request,"
        f" {found.own_bytes:,.0f} of our own, {found.disk_bytes:,.0f} on disk"
    )
    sizes = {
        "documented rows": found.rows_bytes,
        "our own rows": found.own_bytes,
        "data files": found.disk_bytes,
    }
    return [Figure(unit=Unit.MS, name=name, value=p50, bound=BOUNDS[name])], [
        _summary("life, 2 of 3, 5 inputs", found.taken),
        *(
            Measurement(
                database=DATABASE,
                case=f"a request: {case}",
                unit="bytes",
                values=[size],
                note=f"{size / DOCUMENTED_BYTES:.2f} of the documented estimate",
            )
            for case, size in sizes.items()
        ),
    ]


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder on the disk of the checkout: one in memory would have nothing to wait for."""
    with tempfile.TemporaryDirectory(prefix=".bench-signing-", dir=ROOT) as folder:
        yield Path(folder) / "store"

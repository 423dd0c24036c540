"""One run: pairs of driver and pump in turn, then wake-ups, on each database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import msgspec

from bench.command import Say
from bench.engine import drain, driver, script, wake
from bench.engine.databases import PLACES, fill, furnish, standing
from bench.engine.wake import Rests
from bench.ledgers import described
from bench.machine import versions
from bench.measure import Timing, apart, cpu_us, ratios
from bench.places import Place
from bench.report import Figure, Measurement, Report, Unit, report
from ledgerstone.settings import EngineSettings

DRAIN_BOUND = 0.7
WAKE_BOUNDS = {
    ("postgres", "across"): ("engine.postgres.wake_p50", 5.0),
    ("sqlite", "in process"): ("engine.sqlite.wake_in_process_p50", 2.0),
    ("sqlite", "across"): ("engine.sqlite.wake_across_p50", 15.0),
}
FIGURES = (
    *(f"engine.{name}.drain.vs_driver" for name in PLACES),
    *(name for name, _ in WAKE_BOUNDS.values()),
)
"""Every figure, in the order in which they are printed."""
WAKES = {"in process": wake.in_process, "across": wake.across}
PACKAGES = ("SQLAlchemy", "pysqlite3", "psycopg", "PyMySQL")
WORDS = """\
Drain: chores that were enqueued before are claimed and settled, with every move on record. The
driver runs the statements of the chores' source, overheard from it, in a hand-written loop: one
thread, one connection, `batch_max` rows and one commit for each claim and each settlement, without
the savepoints. The pump is a worker with default settings and a handler that does nothing. They are
measured in turn, each time in a fresh process on a fresh database with the ledger's own session
settings; the ratio is the median of the ratios of the pairs. CPU is the client's, for each chore.

Wake-up: from the end of the transaction that enqueued to the handler's first line, the worker idle
before; "rested" means idle for more than a second. Across: the worker is another process."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    scale: float
    chores: int
    warm_up: int = 1000
    pairs: int
    wakes: Rests
    rested: Rests

    @classmethod
    def of(cls, scale: float) -> Plan:
        """The plan of a scale; below some size nothing can be told from noise."""
        return cls(
            scale=scale,
            chores=max(4000, round(20_000 * scale)),
            pairs=9 if scale >= 1 else 5,
            wakes=Rests(count=max(30, round(100 * scale)), seconds_min=0.02, seconds_max=0.2),
            rested=Rests(count=max(5, round(10 * scale)), seconds_min=1.1, seconds_max=1.3),
        )


def measured(plan: Plan, databases: Sequence[str], *, say: Say) -> Report:
    """Measure the databases one after the other."""
    settings = EngineSettings()
    figures: list[Figure] = []
    measurements: list[Measurement] = []
    facts: dict[str, dict[str, str]] = {}
    for name in databases:
        with PLACES[name]() as place:
            with place.fresh(furnish) as url:
                facts[name] = described(url)
            for found in (_drains(name, place, plan, say), _wakes(name, place, plan, say)):
                figures += found[0]
                measurements += found[1]
    return report(
        room="engine",
        scale=plan.scale,
        versions=versions(PACKAGES),
        databases=facts,
        settings={"plan": msgspec.to_builtins(plan), "engine": msgspec.to_builtins(settings)},
        figures=sorted(figures, key=lambda figure: FIGURES.index(figure.name)),
        measurements=measurements,
    )


Found = tuple[list[Figure], list[Measurement]]


def _drains(name: str, place: Place, plan: Plan, say: Say) -> Found:
    with place.fresh(furnish) as url:
        statements = script.overheard(url, limit=EngineSettings().batch_max)
    sides: dict[str, Callable[..., Timing]] = {
        "driver": partial(driver.drain, script=statements),
        "pump": drain.drain,
    }
    timings: dict[str, list[Timing]] = {side: [] for side in sides}
    for number in range(plan.pairs):
        for side, run in sides.items():
            timings[side].append(_drained(place, plan, run))
        told = ", ".join(f"{side} {taken[-1].rate:,.0f}/s" for side, taken in timings.items())
        say(f"{name} drain {number + 1} of {plan.pairs}: {told}")
    beside_driver = ratios(timings["pump"], timings["driver"])
    figure = Figure(
        unit=Unit.RATIO,
        name=f"engine.{name}.drain.vs_driver",
        value=median(beside_driver),
        bound=DRAIN_BOUND,
    )
    return [figure], [
        *(_rates(name, side, taken) for side, taken in timings.items()),
        Measurement(database=name, case="drain pump/driver", unit="ratio", values=beside_driver),
    ]


def _drained(place: Place, plan: Plan, run: Callable[..., Timing]) -> Timing:
    """One side, on a database of its own; it must leave everything done and on record."""
    total = plan.warm_up + plan.chores
    with place.fresh(furnish) as url:
        fill(url, total)
        place.level(url)
        timing = apart(run, url, warm_up=plan.warm_up, count=plan.chores)
        left = standing(url)
    moves = (">queued", "queued>running", "running>done", "done")
    if left != dict.fromkeys(moves, total):
        message = f"not all of {total} were done and recorded: {left}"
        raise RuntimeError(message)
    return timing


def _rates(name: str, side: str, taken: Sequence[Timing]) -> Measurement:
    return Measurement(
        database=name,
        case=f"drain {side}",
        unit="1/s",
        values=[timing.rate for timing in taken],
        note=f"{cpu_us(taken):.1f} µs CPU",
    )


def _wakes(name: str, place: Place, plan: Plan, say: Say) -> Found:
    figures, measurements = [], []
    for where, run in WAKES.items():
        with place.fresh(furnish) as url:
            found = apart(run, url, plan.wakes, plan.rested)
        for case, values in zip((where, f"{where}, rested"), found, strict=True):
            say(f"{name} wake {case}: {median(values):.2f} ms")
            measurements.append(
                Measurement(database=name, case=f"wake {case}", unit="ms", values=values)
            )
            if (name, case) in WAKE_BOUNDS:
                figure_name, bound = WAKE_BOUNDS[name, case]
                figures.append(
                    Figure(unit=Unit.MS, name=figure_name, value=median(values), bound=bound)
                )
    return figures, measurements

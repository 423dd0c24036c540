"""One run: on each database the sides in turn, round after round; a ratio is the rounds' median."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import msgspec

from bench.command import Say
from bench.drain import Drained, drain, drain_fresh
from bench.engine.wake import Rests
from bench.jobs import bulk, conditions, script, singles
from bench.jobs.databases import PLACES
from bench.jobs.figures import FIGURES, figure
from bench.jobs.latency import latencies
from bench.jobs.side import Prompt
from bench.jobs.sides import huey, pgqueuer, procrastinate
from bench.jobs.sides.driver import Driver
from bench.jobs.sides.huey import Huey
from bench.jobs.sides.ours import Ours
from bench.jobs.sides.pgqueuer import PgQueuer
from bench.jobs.sides.procrastinate import Procrastinate
from bench.ledgers import described
from bench.machine import versions
from bench.measure import Timing, apart, cpu_us, ratios
from bench.places import Place
from bench.report import Figure, Measurement, Report, report
from bench.side import LOT_MAX, Side
from ledgerstone.settings import EngineSettings

PACKAGES = ("SQLAlchemy", "pysqlite3", "psycopg", "PyMySQL")
PEERS = ("pgqueuer", "asyncpg", "uvloop", "procrastinate", "huey")

WORDS = f"""\
Drain: workers, each a process, are started, do a few jobs and fall idle; they are held still
(SIGSTOP) while the backlog is sent and the tables are analyzed, and let go. Measured is from that
moment until the last job is finished in the database. Every job does nothing. Ours is a ledger with
default settings, every move on record; the sides are measured in turn, each time on a fresh
database of one server with stock settings (fsync and synchronous_commit on), and a ratio is the
median of the ratios of the rounds. CPU is that of the worker processes, for each job.

- pgqueuer: asyncpg, uvloop, async jobs, its tables durable with the autovacuum it advises, batches
  of {pgqueuer.BATCH_SIZE} (its default is 10, its guide goes up to 25). Beside it, for the table
  alone, batches of {pgqueuer.LARGE_BATCH_SIZE}, as large as ours.
- procrastinate: async jobs, {procrastinate.CONCURRENCY} at a time, at most
  {procrastinate.CONNECTIONS_MAX} connections, and a smaller backlog: what is compared is jobs a
  second.
- huey: SQLite without any fsync, no results kept. It deletes a job before it runs it, so that a
  crash loses it, and writes nothing else. With {huey.THREADS} threads, as it is run for jobs that
  take time; and with one, its fastest here: nothing has to take turns, and one slow job holds up
  all others. Four times as fast as that is out of reach for whoever keeps a record: the bare
  statements of a claim and a settlement take longer, see driver. Ours runs ten jobs at a time.
- driver: the statements of our source, overheard from it, in a hand-written loop: one thread, one
  connection, `batch_max` rows and one commit for each claim and each settlement.

Bulk enqueue: {LOT_MAX} jobs in each transaction, that carry nothing, arguments, or arguments and a
key; the figure is the lowest of the medians of the ratios and the ratios of the medians. Enqueue
one: each job in a transaction of its own, beside a driver that is given the finished values of the
same two rows. Latency: from the call that sends a job to its first line, in an idle worker of
another process, the sides in turn job by job;
"committed": from the end of the commit.
Million: finished jobs with their events in the same tables. Held: a transaction with an older
snapshot is open all the time, while drain follows drain on the same tables; the last one counts."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    scale: float
    jobs: int
    jobs_procrastinate: int
    singles: int
    """Jobs that are enqueued one by one."""
    finished: int
    rounds: int
    rounds_conditions: int
    rounds_procrastinate: int
    rests: Rests
    peers: bool = True
    """Whether the peers are measured too; without them only the bare driver is."""

    @classmethod
    def of(cls, scale: float) -> Plan:
        """The plan of a scale; below some size nothing can be told from noise."""
        return cls(
            scale=scale,
            jobs=max(2000, round(20_000 * scale)),
            jobs_procrastinate=max(300, round(2000 * scale)),
            singles=max(500, round(2000 * scale)),
            finished=max(10_000, round(1_000_000 * scale)),
            rounds=9 if scale >= 1 else 3,
            rounds_conditions=7 if scale >= 1 else 3,
            rounds_procrastinate=3,
            rests=Rests(count=max(20, round(60 * scale)), seconds_min=0.02, seconds_max=0.2),
        )


def measured(plan: Plan, databases: Sequence[str], *, say: Say) -> Report:
    """Measure the databases one after the other."""
    figures: list[Figure] = []
    measurements: list[Measurement] = []
    facts: dict[str, dict[str, str]] = {}
    for name in databases:
        with PLACES[name]() as place:
            bench = Bench(name, place, plan, say)
            with place.fresh(bench.ours.prepare) as url:
                facts[name] = described(url)
            bench.measure()
            figures += bench.figures
            measurements += bench.measurements
    return report(
        room="jobs",
        scale=plan.scale,
        versions=versions([*PACKAGES, *(PEERS if plan.peers else ())]),
        databases=facts,
        settings={
            "plan": msgspec.to_builtins(plan),
            "engine": msgspec.to_builtins(EngineSettings()),
        },
        figures=sorted(figures, key=lambda found: FIGURES.index(found.name)),
        measurements=measurements,
    )


class Bench:
    """The measurements on one database."""

    def __init__(self, name: str, place: Place, plan: Plan, say: Say) -> None:
        self.name = name
        self.place = place
        self.plan = plan
        self.say = say
        self.ours = Ours()
        self.figures: list[Figure] = []
        self.measurements: list[Measurement] = []

    def measure(self) -> None:
        """Everything that this database is measured for."""
        with self.place.fresh(self.ours.prepare) as url:
            driver = Driver(script.overheard(url, limit=EngineSettings().batch_max))
        match self.name:
            case "postgres" if self.plan.peers:
                peer, large = PgQueuer(), PgQueuer.with_large_batches()
                self._drains({1: [self.ours, driver, peer, large], 2: [self.ours, peer, large]})
                self._singles()
                self._latencies([self.ours, peer])
                self._procrastinate()
                self._conditions()
            case "sqlite" if self.plan.peers:
                self._drains({1: [self.ours, driver, Huey(), Huey.with_threads()]})
                self._singles()
            case _:
                self._drains({1: [self.ours, driver]})
                self._singles()

    def _drains(self, sides: dict[int, list[Side]]) -> None:
        """With so many workers these sides, ours first; pairs of ours and each of the others."""
        taken: dict[tuple[str, int], list[Drained]] = {}
        for number in range(self.plan.rounds):
            for workers, some in sides.items():
                # Each is first and last in its turn: what one leaves to do meets every other.
                for side in some if number % 2 == 0 else reversed(some):
                    self._drain(taken, side, workers, self.plan.jobs)
            self._say_round("drain", number, self.plan.rounds, taken)
        for workers, some in sides.items():
            for side in some:
                case = f"drain {side.name}, {_counted(workers)}"
                self._rates(case, _drains_of(taken[side.name, workers]), side.setting)
            for side in some[1:]:
                self._compare(taken, workers, side.name)
        if ("pgqueuer", 1) in taken:
            fills = {
                name: [found.filled for workers in sides for found in taken[name, workers]]
                for name in ("ours", "pgqueuer")
            }
            self._bulk(fills)

    def _bulk(self, bare: dict[str, list[Timing]]) -> None:
        """Jobs that carry nothing (`bare`), arguments, and a key, too; the lowest ratio counts."""
        ours, peer = ("ours", bulk.ours), ("pgqueuer", bulk.pgqueuer)
        lowest: list[float] = []
        for content, keys in (("", False), (" with arguments", False), (" with keys", True)):
            taken = {"ours": [], "pgqueuer": []} if content else bare
            for number in range(self.plan.rounds if content else 0):
                for name, send in (ours, peer) if number % 2 == 0 else (peer, ours):
                    prepare = self.ours.prepare if name == "ours" else PgQueuer().prepare
                    with self.place.fresh(prepare) as url:
                        taken[name].append(apart(send, url, self.plan.jobs, keys=keys))
            for name, filled in taken.items():
                self._rates(f"enqueue {name}{content}", filled)
            found, case = ratios(*taken.values()), f"enqueue ours/pgqueuer{content}"
            # The rates of one side vary by half: of the two ways to compare, the lower counts.
            rates = [median(timing.rate for timing in filled) for filled in taken.values()]
            self._add(case, "ratio", found)
            self._add(f"{case}, of the medians", "ratio", [rates[0] / rates[1]])
            lowest += [median(found), rates[0] / rates[1]]
        self.figures.append(figure(f"jobs.{self.name}.bulk_enqueue.vs_pgqueuer", min(lowest)))

    def _singles(self) -> None:
        """Jobs that are enqueued one by one, each committed by itself."""
        taken: dict[str, list[Timing]] = {"ours": [], "driver": []}
        sides = {"ours": singles.ours, "driver": singles.driver}
        for number in range(self.plan.rounds):
            for name in taken if number % 2 == 0 else reversed(taken):
                with self.place.fresh(self.ours.prepare) as url:
                    taken[name].append(apart(sides[name], url, self.plan.singles))
            told = ", ".join(f"{name} {some[-1].rate:,.0f}/s" for name, some in taken.items())
            self.say(f"{self.name} enqueue one {number + 1} of {self.plan.rounds}: {told}")
        for name, some in taken.items():
            self._rates(f"enqueue one, {name}", some)
        found = ratios(taken["ours"], taken["driver"])
        self._ratio("enqueue_one.vs_driver", "enqueue one, ours/driver", found)

    def _procrastinate(self) -> None:
        """Fewer jobs and fewer rounds of a side that takes its time."""
        taken: dict[tuple[str, int], list[Drained]] = {}
        for number in range(self.plan.rounds_procrastinate):
            self._drain(taken, self.ours, 1, self.plan.jobs)
            self._drain(taken, Procrastinate(), 1, self.plan.jobs_procrastinate)
            self._say_round("drain", number, self.plan.rounds_procrastinate, taken)
        slow = _drains_of(taken["procrastinate", 1])
        self._rates("drain procrastinate, 1 worker", slow, Procrastinate.setting)
        self._compare(taken, 1, "procrastinate")

    def _drain(
        self, taken: dict[tuple[str, int], list[Drained]], side: Side, workers: int, count: int
    ) -> None:
        found = drain_fresh(self.place, side, workers=workers, count=count)
        taken.setdefault((side.name, workers), []).append(found)

    def _compare(
        self, taken: dict[tuple[str, int], list[Drained]], workers: int, other: str
    ) -> None:
        found = ratios(_drains_of(taken["ours", workers]), _drains_of(taken[other, workers]))
        case = f"drain ours/{other}, {_counted(workers)}"
        name = f"drain_{workers}w.vs_{other.replace(' ', '_')}"
        if f"jobs.{self.name}.{name}" in FIGURES:
            self._ratio(name, case, found)
        else:
            self._add(case, "ratio", found)

    def _latencies(self, sides: Sequence[Prompt]) -> None:
        """In turn, job by job, three times; the ratio is of the medians."""
        calls: dict[str, list[list[float]]] = {side.name: [] for side in sides}
        commits: dict[str, list[float]] = {side.name: [] for side in sides}
        for number in range(self.plan.rounds_procrastinate):
            for name, found in latencies(self.place, sides, self.plan.rests).items():
                calls[name].append(found.since_call)
                commits[name] += found.since_commit
            told = ", ".join(f"{name} {median(some[-1]):.2f} ms" for name, some in calls.items())
            self.say(f"{self.name} latency {number + 1}: {told}")
        for side in sides:
            every = [value for some in calls[side.name] for value in some]
            self._add(f"latency {side.name}", "ms", every)
            self._add(f"latency {side.name}, committed", "ms", commits[side.name])
        pairs = zip(*calls.values(), strict=True)
        values = [median(ours) / median(theirs) for ours, theirs in pairs]
        self._ratio("latency_p50.vs_pgqueuer", "latency ours/pgqueuer", values)

    def _conditions(self) -> None:
        """An empty table, one with a million finished jobs, one that cannot be cleaned up."""
        rates: dict[str, list[Timing]] = {"empty": [], "million": [], "held": []}
        with self._million() as (full, finished), self._held() as held:
            totals = {full: finished, held: 0}
            rounds = self.plan.rounds_conditions
            for number in range(rounds):
                found = drain_fresh(self.place, self.ours, workers=1, count=self.plan.jobs)
                rates["empty"].append(found.drained)
                for case, url in (("million", full), ("held", held)):
                    found = drain(
                        self.place,
                        self.ours,
                        url,
                        workers=1,
                        count=self.plan.jobs,
                        before=totals[url],
                    )
                    totals[url] = found.total
                    rates[case].append(found.drained)
                told = ", ".join(f"{case} {some[-1].rate:,.0f}/s" for case, some in rates.items())
                self.say(f"{self.name} condition {number + 1} of {rounds}: {told}")
        for case, some in rates.items():
            self._rates(f"condition {case}", some)
        beside_empty = ratios(rates["million"], rates["empty"])
        self._ratio("drain_million.vs_empty", "condition million/empty", beside_empty)
        empty = median(timing.rate for timing in rates["empty"])
        last = rates["held"][-1].rate / empty
        self._ratio("drain_held_xmin.vs_empty", "condition held/empty, last", [last])

    @contextmanager
    def _million(self) -> Iterator[tuple[str, int]]:
        with self.place.fresh(self.ours.prepare) as url:
            self.say(f"{self.name}: filling in {self.plan.finished:,} finished jobs")
            conditions.add_finished(url, self.plan.finished)
            yield url, self.plan.finished

    @contextmanager
    def _held(self) -> Iterator[str]:
        with self.place.fresh(self.ours.prepare) as url, conditions.held_open(url):
            yield url

    def _say_round(
        self,
        what: str,
        number: int,
        rounds: int,
        taken: dict[tuple[str, int], list[Drained]],
    ) -> None:
        told = ", ".join(
            f"{side} {workers}w {some[-1].drained.rate:,.0f}/s"
            for (side, workers), some in taken.items()
        )
        self.say(f"{self.name} {what} {number + 1} of {rounds}: {told}")

    def _rates(self, case: str, taken: Sequence[Timing], setting: str = "") -> None:
        parts = (f"{taken[0].count:,} jobs", f"{cpu_us(taken):.0f} µs CPU", setting)
        note = ", ".join(part for part in parts if part)
        self._add(case, "1/s", [timing.rate for timing in taken], note)

    def _ratio(self, figure_name: str, case: str, values: list[float]) -> None:
        self._add(case, "ratio", values)
        self.figures.append(figure(f"jobs.{self.name}.{figure_name}", median(values)))

    def _add(self, case: str, unit: str, values: list[float], note: str = "") -> None:
        self.measurements.append(
            Measurement(database=self.name, case=case, unit=unit, values=values, note=note)
        )


def _drains_of(taken: Sequence[Drained]) -> list[Timing]:
    return [found.drained for found in taken]


def _counted(workers: int) -> str:
    return f"{workers} worker" if workers == 1 else f"{workers} workers"

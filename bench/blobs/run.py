"""One run: a file is written and read by each side in turn, each time on a fresh database."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from bench.blobs import sides
from bench.blobs.sides import Side
from bench.command import Say
from bench.ledgers import described, opened
from bench.machine import ROOT, versions
from bench.measure import Timing, apart, ratios
from bench.report import Figure, Measurement, Observed, Report, Unit, report

DATABASE = "sqlite"
MEBIBYTE = 1_048_576
PARTS = ("write", "read")
SIDES: dict[str, dict[str, Side]] = {
    "write": {
        "driver": sides.driver_write,
        "put path": sides.put_path,
        "put stream": sides.put_stream,
    },
    "read": {"driver": sides.driver_read, "ledger": sides.read},
}
NAMES = {
    "write put path": "blobs.sqlite.write.vs_driver",
    "write put stream": "blobs.sqlite.write_stream.vs_driver",
    "read ledger": "blobs.sqlite.read.vs_driver",
}
BOUNDS = {"blobs.sqlite.write.vs_driver": 0.5}
WORDS = """\
A file of random bytes is stored in slices of 256 KiB, 16 in a transaction. The driver's side is a
hand-written loop on the same connection, tables, indexes and session settings; it reads the file
once and hashes nothing. `put path` reads and hashes it twice, looks for slices that are there, and
completes it; `put stream` stores it under an id and renames the slices when the hash is known.
Read: all slices in order, by key; the ledger reads each in a transaction of its own. The sides
take turns, each in a fresh process on a fresh database on the disk of the checkout; a ratio is the
median of the ratios of the rounds."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    scale: float
    file_bytes: int
    rounds: int

    @classmethod
    def of(cls, scale: float) -> Plan:
        """The plan of a scale: 200 MiB, nine times."""
        size = max(4, round(200 * scale)) * MEBIBYTE
        return cls(scale=scale, file_bytes=size, rounds=9 if scale >= 1 else 3)


def measured(plan: Plan, parts: Sequence[str], *, say: Say) -> Report:
    """Measure the parts one after the other."""
    figures: list[Figure] = []
    measurements: list[Measurement] = []
    with _folder() as folder:
        file = folder / "file.bin"
        _fill(file, plan.file_bytes)
        for part in parts:
            timings = _timings(plan, part, folder, file, say)
            figures += _figures(part, timings)
            measurements += _rates(part, timings)
        url = f"sqlite:///{folder}/described.db"
        facts = described(url)
    return report(
        room="blobs",
        scale=plan.scale,
        versions=versions(["SQLAlchemy", "pysqlite3"]),
        databases={DATABASE: facts},
        settings={"plan": msgspec.to_builtins(plan)},
        figures=figures,
        measurements=measurements,
    )


def _timings(plan: Plan, part: str, folder: Path, file: Path, say: Say) -> dict[str, list[Timing]]:
    timings: dict[str, list[Timing]] = {side: [] for side in SIDES[part]}
    for number in range(plan.rounds):
        for side, run in SIDES[part].items():
            database = folder / "run.db"
            url = f"sqlite:///{database}"
            with opened(url) as ledger:
                ledger.migrate()
            timings[side].append(apart(run, url, file))
            for left in folder.glob(f"{database.name}*"):
                left.unlink()
        rates = ", ".join(f"{s} {t[-1].rate / MEBIBYTE:,.0f} MiB/s" for s, t in timings.items())
        say(f"{part} {number + 1} of {plan.rounds}: {rates}")
    return timings


def _figures(part: str, timings: dict[str, list[Timing]]) -> Iterator[Figure]:
    bare = timings["driver"]
    for side, taken in timings.items():
        name = NAMES.get(f"{part} {side}")
        if name is None:
            continue
        value = median(ratios(taken, bare))
        if name in BOUNDS:
            yield Figure(unit=Unit.RATIO, name=name, value=value, bound=BOUNDS[name])
        else:
            yield Observed(unit=Unit.RATIO, name=name, value=value)


def _rates(part: str, timings: dict[str, list[Timing]]) -> Iterator[Measurement]:
    for side, taken in timings.items():
        yield Measurement(
            database=DATABASE,
            case=f"{part} {side}",
            unit="MiB/s",
            values=[each.rate / MEBIBYTE for each in taken],
        )


def _fill(file: Path, size: int) -> None:
    bytes_of = random.Random(1)  # noqa: S311 - it keeps no secret
    with file.open("wb") as out:
        for _ in range(size // MEBIBYTE):
            out.write(bytes_of.randbytes(MEBIBYTE))


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder on the disk of the checkout."""
    with tempfile.TemporaryDirectory(prefix=".bench-blobs-", dir=ROOT) as folder:
        yield Path(folder)

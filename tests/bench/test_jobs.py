"""The benchmark of the job ledger, at its smallest and without its peers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import report
from bench.engine.wake import Rests
from bench.jobs.figures import FIGURES, figure
from bench.jobs.run import Plan, measured
from tests.bench.servers import SERVERS

SMALLEST = Plan(
    scale=0.01,
    jobs=200,
    jobs_procrastinate=10,
    singles=10,
    finished=10,
    rounds=1,
    rounds_conditions=1,
    rounds_procrastinate=1,
    rests=Rests(count=2, seconds_min=0.01, seconds_max=0.02),
    peers=False,
)


@pytest.mark.slow
def test_jobs_on_the_embedded_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are printed last, one a line, and kept as JSON under the same names."""
    said: list[str] = []

    found = measured(SMALLEST, ["sqlite"], say=said.append)
    report.write_json(found, tmp_path / "jobs.json")
    report.show(found, Console(width=110))

    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    kept = msgspec.json.decode((tmp_path / "jobs.json").read_bytes())
    assert said
    names = ["jobs.sqlite.enqueue_one.vs_driver", "jobs.sqlite.drain_1w.vs_driver"]
    assert [(unit, name) for unit, name, _ in lines] == [("ratio", name) for name in names]
    assert all(float(value) > 0 for *_, value in lines)
    assert [figure["name"] for figure in kept["figures"]] == names


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.slow
def test_jobs_on_a_server(name: str) -> None:
    """The bare driver finds its way with the statements of every database."""
    found = measured(SMALLEST, [name], say=lambda _: None)

    figures = {figure.name: figure.value for figure in found.figures}
    assert list(figures) == [
        f"jobs.{name}.{each}.vs_driver" for each in ("enqueue_one", "drain_1w")
    ]
    assert all(value > 0 for value in figures.values())


@pytest.mark.parametrize(
    ("name", "value", "promise", "met"),
    [
        ("jobs.postgres.drain_1w.vs_pgqueuer", 1.4, "at least 1.5", False),
        ("jobs.postgres.latency_p50.vs_pgqueuer", 0.9, "at most 1", True),
        ("jobs.postgres.latency_p50.vs_pgqueuer", 1.1, "at most 1", False),
        ("jobs.postgres.drain_million.vs_empty", 0.1, "nothing", True),
    ],
)
def test_what_a_figure_promises(name: str, value: float, promise: str, met: bool) -> None:
    """A rate has a least bound, a time a largest one, and what is only told has none."""
    found = figure(name, value)

    assert name in FIGURES
    assert (found.promise, found.met) == (promise, met)
    assert found.line == f"ratio {name} {value:.3f}"

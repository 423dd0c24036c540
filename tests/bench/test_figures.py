"""The benchmarks, at their smallest: they run, and print the figures that they promise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import report
from bench.engine.run import FIGURES, Plan, measured
from bench.engine.wake import Rests
from tests.bench.servers import SERVERS

SMALLEST = Plan(
    scale=0.01,
    chores=400,
    warm_up=500,
    pairs=1,
    wakes=Rests(count=2, seconds_min=0.01, seconds_max=0.02),
    rested=Rests(count=1, seconds_min=0.01, seconds_max=0.02),
)


@pytest.mark.slow
def test_the_engine_on_the_embedded_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are printed last, one a line, and kept as JSON under the same names."""
    expected = [name for name in FIGURES if name.startswith("engine.sqlite.")]
    said: list[str] = []

    found = measured(SMALLEST, ["sqlite"], say=said.append)
    report.write_json(found, tmp_path / "engine.json")
    report.show(found, Console(width=110))

    last = [line.split() for line in capsys.readouterr().out.splitlines()[-len(expected) :]]
    kept = msgspec.json.decode((tmp_path / "engine.json").read_bytes())
    assert said
    assert [(unit, name) for unit, name, _ in last] == [
        ("ratio", "engine.sqlite.drain.vs_driver"),
        ("ms", "engine.sqlite.wake_in_process_p50"),
        ("ms", "engine.sqlite.wake_across_p50"),
    ]
    # Not the wake-ups: on a busy machine one may be over before its sender has read the clock.
    assert float(last[0][2]) > 0
    assert [figure["name"] for figure in kept["figures"]] == expected


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.slow
def test_the_engine_on_a_server(name: str) -> None:
    """The bare driver finds its way with the statements of every database."""
    found = measured(SMALLEST, [name], say=lambda _: None)

    assert found.figures[0].name == f"engine.{name}.drain.vs_driver"
    assert found.figures[0].value > 0

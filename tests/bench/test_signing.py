"""The benchmark of signing, at its smallest: it runs, and prints the figures that it promises."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import report
from bench.signing.run import BOUNDS, KEPT_VALUES, PARTS, Plan, measured

SMALLEST = Plan(scale=0.01, inserts=32, warm_up=2, rounds=1, rows=100, reads=500, lives=10)


@pytest.mark.slow
def test_signing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are printed last, one a line, and kept as JSON under the same names."""
    said: list[str] = []

    found = measured(SMALLEST, PARTS, say=said.append)
    report.write_json(found, tmp_path / "signing.json")
    report.show(found, Console(width=110))

    last = [line.split() for line in capsys.readouterr().out.splitlines()[-len(BOUNDS) :]]
    kept = msgspec.json.decode((tmp_path / "signing.json").read_bytes())
    assert said
    assert [name for _, name, _ in last] == list(BOUNDS)
    assert all(float(value) > 0 for _, _, value in last)
    assert [figure["name"] for figure in kept["figures"]] == list(BOUNDS)
    assert max(len(each["values"]) for each in kept["measurements"]) == KEPT_VALUES


def test_the_recorded_results_are_small() -> None:
    """The file of a run at full scale holds what the table and the picture need, and no more."""
    recorded = report.FOLDER / "results" / "signing.json"

    kept = msgspec.json.decode(recorded.read_bytes())

    assert max(len(each["values"]) for each in kept["measurements"]) <= KEPT_VALUES

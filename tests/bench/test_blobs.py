"""The benchmark of files, at its smallest: it runs, and prints the figures that it promises."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import report
from bench.blobs.run import NAMES, PARTS, Plan, measured

SMALLEST = Plan(scale=0.01, file_bytes=1_048_576, rounds=1)


@pytest.mark.slow
def test_blobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are printed last, one a line, and kept as JSON under the same names."""
    said: list[str] = []

    found = measured(SMALLEST, PARTS, say=said.append)
    report.write_json(found, tmp_path / "blobs.json")
    report.show(found, Console(width=110))

    last = [line.split() for line in capsys.readouterr().out.splitlines()[-len(NAMES) :]]
    kept = msgspec.json.decode((tmp_path / "blobs.json").read_bytes())
    assert said
    assert [name for _, name, _ in last] == list(NAMES.values())
    assert all(float(value) > 0 for _, _, value in last)
    assert [figure["name"] for figure in kept["figures"]] == list(NAMES.values())

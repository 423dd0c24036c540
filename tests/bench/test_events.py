"""The benchmark of events, at its smallest and without its peer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import command, report
from bench.events.run import PARTS, Plan, measured

SMALLEST = Plan(scale=0.01, events=2000, items=300, rounds_ingest=1, rounds=1, reads=5, peers=False)
FIGURES = [
    "events.sqlite.ingest.vs_driver",
    "events.sqlite.file_size.vs_driver",
    "events.sqlite.page.vs_driver",
    "events.sqlite.page_p50",
    "events.sqlite.page_in_the_middle_p50",
    "events.sqlite.per_item.vs_driver",
]


@pytest.mark.slow
def test_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are printed last, one a line, and kept as JSON under the same names."""
    said: list[str] = []

    found = measured(SMALLEST, list(PARTS), say=said.append)
    report.write_json(found, tmp_path / "events.json")
    report.show(found, Console(width=110))

    last = [line.split() for line in capsys.readouterr().out.splitlines()[-len(FIGURES) :]]
    kept = msgspec.json.decode((tmp_path / "events.json").read_bytes())
    assert said
    assert [name for _, name, _ in last] == FIGURES
    assert all(float(value) > 0 for _, _, value in last)
    assert [figure["name"] for figure in kept["figures"]] == FIGURES
    assert not command.is_recorded(found, PARTS, PARTS)


def test_a_plan() -> None:
    """Scale 1 is ten million events; a number of events fits anywhere."""
    assert Plan.of(1).events == 10_000_000
    assert (Plan.of(1, 5000).events, Plan.of(1, 5000).items) == (5000, 5000)


@pytest.mark.parametrize(
    ("scale", "events", "chosen", "recorded"),
    [
        (1.0, None, PARTS, True),
        (1.0, 10_000_000, PARTS, True),
        (1.0, 200_000, PARTS, False),
        (0.5, None, PARTS, False),
        (1.0, None, PARTS[:1], False),
    ],
)
def test_a_run_that_is_recorded(
    scale: float, events: int | None, chosen: tuple[str, ...], *, recorded: bool
) -> None:
    """Only a whole run of ten million events replaces what is recorded."""
    plan = Plan.of(scale, events)
    found = report.report(
        room="events",
        scale=plan.scale,
        versions={},
        databases={},
        settings={},
        figures=[],
        measurements=[],
    )

    assert command.is_recorded(found, chosen, PARTS) is recorded

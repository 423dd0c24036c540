"""The benchmark of messaging, at its smallest and without its peer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import report
from bench.messaging import load
from bench.messaging.figures import FIGURES, HEAD_LOOKUP, figure
from bench.messaging.run import PARTS, Plan, measured
from ledgerstone.settings import DestinationSettings

SMALLEST = Plan(
    scale=0.01,
    messages=300,
    messages_peer=0,
    messages_inbox=100,
    rounds=1,
    waiting=(2000, 4000),
    lookups=3,
    lookup_rounds=1,
    peers=False,
)


@pytest.mark.postgres
@pytest.mark.rabbitmq
@pytest.mark.slow
def test_messaging_with_a_real_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are printed last, one a line, and kept as JSON under the same names."""
    expected = [name for name in FIGURES if not name.endswith("vs_faststream_outbox")]
    said: list[str] = []

    found = measured(SMALLEST, PARTS, say=said.append)
    report.write_json(found, tmp_path / "messaging.json")
    report.show(found, Console(width=110))

    last = [line.split() for line in capsys.readouterr().out.splitlines()[-len(expected) :]]
    kept = msgspec.json.decode((tmp_path / "messaging.json").read_bytes())
    assert said
    assert [name for _, name, _ in last] == expected
    assert [unit for unit, _, _ in last] == ["ratio", "ratio", "ratio", "ms"]
    assert all(float(value) > 0 for _, _, value in last)
    assert [figure["name"] for figure in kept["figures"]] == expected
    assert {m.case for m in found.measurements} >= {"heads one of 2,000", "heads round of 4,000"}


@pytest.mark.parametrize(
    ("name", "value", "promise", "met"),
    [
        ("messaging.amqp.competing.vs_client", 0.49, "at least 0.5", False),
        ("messaging.amqp.ordered.vs_client", 0.35, "at least 0.35", True),
        ("messaging.amqp.competing.vs_faststream_outbox", 2.9, "at least 3", False),
        ("messaging.inbox.handled.vs_client", 0.55, "at least 0.6", False),
    ],
)
def test_what_a_rate_promises(name: str, value: float, promise: str, met: bool) -> None:
    """A ratio of rates has a least bound, and what is only told has none."""
    found = figure(name, value)

    assert name in FIGURES
    assert (found.promise, found.met) == (promise, met)
    assert found.line == f"ratio {name} {value:.3f}"


@pytest.mark.parametrize(("value", "met"), [(4.9, True), (5.1, False)])
def test_what_a_lookup_promises(value: float, met: bool) -> None:
    """A lookup has a largest bound, in milliseconds."""
    found = figure(HEAD_LOOKUP, value)

    assert (found.promise, found.met) == ("at most 5", met)
    assert found.line == f"ms {HEAD_LOOKUP} {value:.3f}"


@pytest.mark.parametrize(("scale", "messages", "rounds"), [(0.1, 4000, 3), (1, 20_000, 5)])
def test_the_plan_of_a_scale(scale: float, messages: int, rounds: int) -> None:
    """More is measured at a larger scale; heads are looked up behind the same number of rows."""
    plan = Plan.of(scale)

    assert (plan.messages, plan.rounds, plan.waiting[-1]) == (messages, rounds, 100_000)
    assert plan.lookups < load.PARTITIONS


def test_what_is_carried() -> None:
    """Bodies have the promised size, and a relay has defaults but for the mode."""
    broker = "amqp://nowhere"

    (message,) = load.in_memory(1)
    settings = load.settings(broker, "ordered")

    assert len(message.raw) == load.BODY_BYTES
    assert settings.destinations == {"broker": DestinationSettings(url=broker, mode="ordered")}

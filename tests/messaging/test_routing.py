"""Which destinations a message goes to."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerstone.errors import SettingsError
from ledgerstone.messaging.outbox.routing import RETRY, Routes
from ledgerstone.settings import Settings

AMQP = {"url": "amqp://localhost"}


def of(destinations: dict[str, Any], patterns: dict[str, list[str]]) -> Routes:
    """Routes as they would be set."""
    messaging = {"destinations": destinations, "routes": patterns}
    settings = Settings.load(url="sqlite:///a.db", environ={}, messaging=messaging)
    return Routes(settings.messaging)


def test_what_matches_none_is_local() -> None:
    """A message that no pattern matches goes to the consumers of the ledger."""
    found = of({"shop": AMQP}, {"order.*": ["shop"]})

    assert found.of("order.placed") == ("shop",)
    assert found.of("stock.counted") == ("local",)
    assert found.of("orders.placed") == ("local",)
    assert found.of("order.placed.late") == ("shop",)


def test_all_that_match_count() -> None:
    """Each destination is named once, in the order of the settings."""
    patterns = {"order.*": ["shop"], "*.placed": ["audit", "shop"], "*": ["local"]}
    found = of({"shop": AMQP, "audit": AMQP}, patterns)

    assert found.of("order.placed") == ("shop", "audit", "local")
    assert found.of("order.changed") == ("shop", "local")
    assert found.of("user.placed") == ("audit", "shop", "local")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("order.placed", "order.placed", True),
        ("order.placed", "order.placedx", False),
        ("o*d", "order.paid", True),
        ("*.paid", "order.item.paid", True),
        ("or*er.*", "orxer.a", True),
        ("order.placed", "orderxplaced", False),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    """A star stands for any characters, everything else for itself."""
    found = of({"shop": AMQP}, {pattern: ["shop"]})

    assert (found.of(name) == ("shop",)) is matches


def test_local_and_retry_are_always_there() -> None:
    """The consumers of the ledger are a destination, and so is where retried messages wait."""
    found = of({}, {})

    assert set(found.destinations) == {"local", RETRY}
    assert found.destinations["local"].url == "local:"


def test_local_can_be_set() -> None:
    """How the consumers of the ledger are reached can be set as of any destination."""
    found = of({"local": {"on_failure": "skip"}}, {})

    assert found.destinations["local"].on_failure == "skip"


@pytest.mark.parametrize(
    ("destinations", "patterns", "words"),
    [
        ({"Shop": AMQP}, {}, "invalid name"),
        ({"a b": AMQP}, {}, "invalid name"),
        ({"1a": AMQP}, {}, "invalid name"),
        ({"a" * 191: AMQP}, {}, "invalid name"),
        ({RETRY: AMQP}, {}, "reserved name"),
        ({"local": AMQP}, {}, "local"),
        ({"shop": {}}, {}, "local"),
        ({}, {"order.*": ["shop"]}, "no destination is named 'shop'"),
        ({}, {"order.*": [RETRY]}, "no destination is named 'retry'"),
        ({"shop": AMQP}, {"order.*": []}, "no destination; allowed: at least one"),
        ({"shop": AMQP}, {"Order.*": ["shop"]}, "invalid pattern"),
        ({"shop": AMQP}, {"order.[ab]": ["shop"]}, "invalid pattern"),
        ({"shop": AMQP}, {"": ["shop"]}, "invalid pattern"),
        ({"shop": AMQP}, {"order..a": ["shop"]}, "invalid pattern"),
    ],
)
def test_what_cannot_be_meant(
    destinations: dict[str, Any], patterns: dict[str, list[str]], words: str
) -> None:
    """Settings that cannot be meant are refused, and say what is allowed."""
    with pytest.raises(SettingsError, match=words):
        of(destinations, patterns)


def test_all_problems_at_once() -> None:
    """All problems are told together."""
    with pytest.raises(SettingsError) as raised:
        of({"Shop": AMQP, "local": AMQP}, {"order.*": ["nowhere"], "X": []})

    assert len(raised.value.problems) == 5

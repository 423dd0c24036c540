"""What a process says of its destinations: each trouble once, and that it is over."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from ledgerstone.errors import TargetDown
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard, SendResult
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.relay.watched_transport import WatchedTransport
from ledgerstone.testing.contracts.transport import made
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

SILENT = Answer(SendResult.UNKNOWN, "timeout", "no\nanswer")
REFUSED = Answer(SendResult.REFUSED, "nacked", "full")


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged is heard, whatever was called in this process before."""
    monkeypatch.setattr(logging.getLogger("ledgerstone"), "propagate", True)


class Scripted:
    """A transport that answers as it was told to, call by call."""

    def __init__(self, *answers: list[Answer] | TargetDown) -> None:
        self._answers = list(answers)
        self.closed = 0

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        assert seconds_max == WAIT_SECONDS_MAX
        answer = self._answers.pop(0)
        if isinstance(answer, TargetDown):
            raise answer
        return answer[: len(messages)]

    def close(self) -> None:
        self.closed += 1


def sent(watched: WatchedTransport, times: int) -> list[str | None]:
    """Its trouble after each call."""
    troubles: list[str | None] = []
    for _ in range(times):
        try:
            watched.send(made(2), seconds_max=WAIT_SECONDS_MAX)
        except TargetDown:
            troubles.append(f"raised, {watched.trouble}")
        else:
            troubles.append(watched.trouble)
    return troubles


def test_out_of_reach_and_back(caplog: pytest.LogCaptureFixture) -> None:
    """Out of reach and silence are one trouble, said once; so is that it is over."""
    down = TargetDown("broker", "broker is out of reach: refused")
    watched = WatchedTransport(
        "broker", Scripted(down, down, [SILENT] * 2, [SILENT, DELIVERED], [])
    )

    with caplog.at_level(logging.INFO, "ledgerstone.relay"):
        troubles = sent(watched, 5)

    assert troubles == [
        "raised, broker is out of reach: refused",
        "raised, broker is out of reach: refused",
        "no answer",
        None,
        None,
    ]
    assert caplog.messages == [
        "broker is out of reach: refused; messages wait until it is back",
        "broker is back",
    ]


def test_refusals(caplog: pytest.LogCaptureFixture) -> None:
    """Each cause of a refusal is said once, and how to see which messages it are."""
    other = Answer(SendResult.UNDELIVERABLE, "unroutable", "none")
    watched = WatchedTransport(
        "broker", Scripted([REFUSED] * 2, [DELIVERED, REFUSED], [other, DELIVERED])
    )

    with caplog.at_level(logging.INFO, "ledgerstone.relay"):
        troubles = sent(watched, 3)

    assert troubles == [None] * 3
    assert caplog.messages == [
        "broker refuses messages: nacked: full; `ledgerstone outbox lanes broker` shows which",
        "broker refuses messages: unroutable: none; `ledgerstone outbox lanes broker` shows which",
    ]


def test_consumers_do_not_refuse(caplog: pytest.LogCaptureFixture) -> None:
    """Of a destination that leads to consumers it is said that messages wait."""
    watched = WatchedTransport("local", Scripted([REFUSED, DELIVERED]))

    with caplog.at_level(logging.INFO, "ledgerstone.relay"):
        sent(watched, 1)

    assert caplog.messages[0].startswith("local has messages waiting: nacked: full")


def test_close() -> None:
    """Closing closes the transport."""
    transport = Scripted()

    WatchedTransport("broker", transport).close()

    assert transport.closed == 1

"""A wrapper around a transport that logs outages of its destination."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from ledgerstone.errors import TargetDown
from ledgerstone.messaging.brokers.transport import Answer, Heard, SendResult, Transport
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.settings.messaging import LOCAL

OF_CONSUMERS = (LOCAL, RETRY)
"""Destinations that are handled by consumers."""
CODES_SAID_MAX = 100
"""The maximum number of codes of refusals that are logged, each once."""

_log = logging.getLogger("ledgerstone.relay")


class WatchedTransport:
    """A transport that logs when its destination becomes unreachable and when it is back.

    An outage is logged once when it begins and once when it ends. Each code of a refusal is logged
    once.
    """

    def __init__(self, name: str, transport: Transport) -> None:
        self.trouble: str | None = None
        self._name = name
        self._transport = transport
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        try:
            answers = self._transport.send(messages, seconds_max=seconds_max, heard=heard)
        except TargetDown as down:
            self._went(down.message)
            raise
        if answers and all(answer.result is SendResult.UNKNOWN for answer in answers):
            self._went(answers[0].reason or "no answer came")
        elif answers:
            self._came_back()
            self._say_refusals(answers)
        return answers

    def close(self) -> None:
        self._transport.close()

    def _went(self, words: str) -> None:
        words = " ".join(words.split())
        with self._lock:
            known, self.trouble = self.trouble, words
        if known is None:
            told = words if words.startswith(self._name) else f"{self._name}: {words}"
            _log.warning("%s; messages wait until it is back", told)

    def _came_back(self) -> None:
        with self._lock:
            known, self.trouble = self.trouble, None
        if known is not None:
            _log.info("%s is back", self._name)

    def _say_refusals(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.result not in {SendResult.REFUSED, SendResult.UNDELIVERABLE}:
                continue
            with self._lock:
                if answer.code in self._said or len(self._said) >= CODES_SAID_MAX:
                    continue
                self._said.add(answer.code)
            _log.warning(
                "%s %s: %s: %s; `ledgerstone outbox lanes %s` shows which",
                self._name,
                "has messages waiting" if self._name in OF_CONSUMERS else "refuses messages",
                *(answer.code, answer.reason, self._name),
            )

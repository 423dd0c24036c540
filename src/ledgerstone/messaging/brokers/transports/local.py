"""The local transport: calls the consumers of the same ledger, without a broker.

A message is delivered when every consumer has handled it, now or before, or has failed for the last
time. In that case the message is moved to the failed table for that consumer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine.source import Failure
from ledgerstone.errors import LedgerstoneError
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard, SendResult
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.inbox.consumers import Consumer
from ledgerstone.messaging.inbox.inbox import Result, handle, log_failed, pause_seconds
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import LOCAL

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database

NO_CONSUMER = "no_consumer"
HELD = "held"
LATE = "late"


class LocalTransport:
    """Handles messages in the thread that sends them, one after the other.

    - The receipt tells whether a consumer has handled a message before.
    - A failed handler is retried after a growing pause, as many times as the settings allow.
    - A message that is not delivered holds those behind it in its partition.
    - A message without a consumer in this process is refused, and waits for a process that has one.
    """

    def __init__(
        self, database: Database[Any], registry: MessagingRegistry, *, name: str = LOCAL
    ) -> None:
        self._database = database
        self._registry = registry
        self._name = name

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        """Returns after `seconds_max`, plus the time of the handler that runs then."""
        until = self._database.clock.monotonic() + seconds_max
        held: set[str] = set()
        answers = []
        for message in messages:
            if message.partition in held:
                answer = Answer(SendResult.UNKNOWN, HELD, "a message before it is not delivered")
            elif self._database.clock.monotonic() >= until:
                answer = Answer(SendResult.UNKNOWN, LATE, "the messages before it took too long")
            else:
                answer = self._deliver(message)
            if answer.result is not SendResult.DELIVERED:
                held.add(message.partition)
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Does nothing: the connections belong to the ledger."""

    def _deliver(self, message: Message) -> Answer:
        consumers = self._consumers(message)
        if not consumers:
            wanted = message.consumer or message.name
            reason = f"this process has no consumer for {wanted}"
            pause = self._registry.settings.retry_seconds
            return Answer(SendResult.REFUSED, NO_CONSUMER, reason, pause, counts=False)
        if message.consumer is not None:
            partition = failed.partition_in(message.partition, message.consumer)
            message = msgspec.structs.replace(message, partition=partition)
        answers = [self._hand(consumer, message) for consumer in consumers]
        # A refusal counts as an attempt, so it comes before an outage.
        for result in (SendResult.REFUSED, SendResult.UNKNOWN):
            for answer in answers:
                if answer.result is result:
                    return answer
        return DELIVERED

    def _consumers(self, message: Message) -> list[Consumer]:
        if message.consumer is None:
            return self._registry.consumers.of(message.name)
        only = self._registry.consumers.get(message.consumer)
        return [] if only is None else [only]

    def _hand(self, consumer: Consumer, message: Message) -> Answer:
        settings = self._registry.settings
        handled = handle(self._database, self._registry, consumer, message)
        failure = handled.failure
        if failure is None:
            return DELIVERED
        if handled.result is Result.AGAIN:
            return _answer(SendResult.UNKNOWN, consumer, failure, settings.retry_seconds)
        if handled.result is Result.FAILED and message.attempt < settings.retries_max:
            pause = pause_seconds(settings, message.attempt)
            attempt = message.attempt + 1
            log_failed(consumer, message, failure, attempt=attempt, next_seconds=pause)
            return _answer(SendResult.REFUSED, consumer, failure, pause)
        return self._set_aside(consumer, message, failure)

    def _set_aside(self, consumer: Consumer, message: Message, failure: Failure) -> Answer:
        try:
            self._database.run(
                lambda tx: failed.put(
                    tx,
                    self._registry,
                    message,
                    consumer=consumer.name,
                    failure=failure,
                    attempts=message.attempt + 1,
                    origin=self._name,
                )
            )
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            trouble = Failure(error.code, error.message)
            return _answer(
                SendResult.UNKNOWN, consumer, trouble, self._registry.settings.retry_seconds
            )
        return DELIVERED


def _answer(result: SendResult, consumer: Consumer, failure: Failure, pause: float) -> Answer:
    reason = f"{consumer.name}: {failure.message or failure.code}"
    return Answer(result, failure.code, reason, retry_after_seconds=pause)

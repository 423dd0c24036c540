"""The local transport: straight to the consumers of the same ledger, without a broker.

A message is delivered when every consumer has dealt with it: handled it, now or before, or failed
for the last time, which puts it into the failed table for that consumer alone.
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

    - A consumer that has handled a message is recognised by its receipt and passed over.
    - A handler that fails is tried again after a pause that grows, so often as the settings say.
    - Behind a message that is not delivered, those of the same partition are held.
    - A message for which this process has no consumer is refused, and waits for one that has.
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
        """Answers after `seconds_max`, and the handler that runs then."""
        until = self._database.clock.monotonic() + seconds_max
        held: set[str] = set()
        answers = []
        for message in messages:
            if message.partition in held:
                answer = Answer(SendResult.UNKNOWN, HELD, "a message before it was not delivered")
            elif self._database.clock.monotonic() >= until:
                answer = Answer(SendResult.UNKNOWN, LATE, "those before it took all the time")
            else:
                answer = self._deliver(message)
            if answer.verdict is not SendResult.DELIVERED:
                held.add(message.partition)
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Nothing: the connections are the ledger's."""

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
        # A refusal counts as an attempt: it is told before what is nobody's doing.
        for verdict in (SendResult.REFUSED, SendResult.UNKNOWN):
            for answer in answers:
                if answer.verdict is verdict:
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


def _answer(verdict: SendResult, consumer: Consumer, failure: Failure, pause: float) -> Answer:
    reason = f"{consumer.name}: {failure.message or failure.code}"
    return Answer(verdict, failure.code, reason, retry_after_seconds=pause)

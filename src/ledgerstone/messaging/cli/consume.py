"""`ledgerstone inbox consume`: hand what a broker delivers to the consumers of an application.

Beside it messages that were retried are carried to them: those wait in the outbox.

The first Ctrl-C or SIGTERM: no more is received, handlers finish within the grace period, the rest
goes back to the broker. The second: the process ends, with exit code 130 if a handler still runs;
the broker takes its messages back, and the database what their handlers wrote.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Annotated

import msgspec
import typer
from rich.console import Group

from ledgerstone import __version__
from ledgerstone.console import logs, output
from ledgerstone.console.application import application_of, loaded
from ledgerstone.console.call import Call
from ledgerstone.console.output import Text
from ledgerstone.console.serving import LOOK_SECONDS, serve
from ledgerstone.engine.worker import SIGNALS, Worker
from ledgerstone.errors import BadInput, NotFound, Unsupported
from ledgerstone.ledger import Ledger
from ledgerstone.messaging import Message
from ledgerstone.messaging.cli.calls import ready
from ledgerstone.messaging.cli.carrying import consumers_table, relays_of
from ledgerstone.messaging.receiving import Receiver
from ledgerstone.messaging.routing import RETRY
from ledgerstone.messaging.subscription import Delivery, Subscription
from ledgerstone.settings import SubscriptionSettings
from ledgerstone.settings.messaging import masked

CONCURRENCY_MAX = 1000
STOPPING_SECONDS = 0.1
"""How often it is looked whether a second signal came, while handlers finish."""
STOP_SECONDS_MARGIN = 10.0
"""What stopping may take beyond the grace period."""
HURRY_SECONDS = 2.0
"""What ending may take after a second signal."""
EXIT_INTERRUPTED = 130

_log = logging.getLogger("ledgerstone.consume")


def consume(
    call: Call,
    *,
    name: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="The name of the subscription.")
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            min=1,
            max=CONCURRENCY_MAX,
            help="Handlers that run at once; otherwise as the settings say.",
        ),
    ] = None,
) -> None:
    """Receive messages and hand them to your consumers until Ctrl-C or SIGTERM.

    Example: ledgerstone inbox consume orders -A shop:ledger
    """
    application = application_of(call)
    with loaded(application) as ledger:
        output.on_database(ledger.settings.url_masked, tell=False)
        log = ledger.settings.log
        level = "DEBUG" if call.verbose else log.level
        logs.to_stderr(level=level, json=log.json, application=True)
        settings = _settings(ledger, name)
        if concurrency is not None:
            settings = msgspec.structs.replace(settings, concurrency=concurrency)
        _check_consumers(ledger, application)
        ready(ledger, *ledger.office.setup.tables)
        _announce(ledger, application, settings, json=call.json)
        receiving = _Receiving(ledger, name, settings)
        facts = serve(
            ledger,
            relays_of(ledger, [RETRY]),
            json=call.json,
            receiver=receiving.receiver,
            run=receiving.run,
        )
    if call.json:
        output.show_json(facts)


def _settings(ledger: Ledger, name: str) -> SubscriptionSettings:
    known = ledger.settings.messaging.subscriptions
    if name in known:
        return known[name]
    hint = f"there are {', '.join(known)}"
    if not known:
        hint = "name one in ledgerstone.toml, under [messaging.subscriptions.NAME]: url and queue"
    raise NotFound(f"there is no subscription {name!r}", hint=hint)


def _check_consumers(ledger: Ledger, application: str) -> None:
    if not ledger.office.consumers.all():
        hint = "decorate a function with @ledger.consumer(pattern), or import the module that does"
        raise BadInput(f"{application} has no consumers", hint=hint)


def _announce(
    ledger: Ledger, application: str, settings: SubscriptionSettings, *, json: bool
) -> None:
    console = output.console()
    consumers = ledger.office.consumers.all().values()
    where = f"the queue {settings.queue} of {masked(settings.url)}"
    if console.is_terminal and not json:
        title = Text(f"{application} receives from {where}, {settings.concurrency:,} at a time")
        console.print(Group(title, "", consumers_table(ledger), ""))
        return
    _log.info(
        "consume: ledgerstone %s on %s hands messages from %s to %s, %d at a time",
        *(
            __version__,
            ledger.settings.url_masked,
            where,
            ", ".join(consumer.name for consumer in consumers),
            settings.concurrency,
        ),
    )


class _Receiving:
    """A receiver that stops with the worker beside it."""

    def __init__(self, ledger: Ledger, name: str, settings: SubscriptionSettings) -> None:
        self._grace_seconds = ledger.settings.engine.grace_seconds
        self._subscription, parse = _subscription(name, settings)
        self._worker: Worker | None = None
        self._signals = 0
        # Not an event: a signal may come while this thread holds its lock.
        self._hurry: SimpleQueue[None] = SimpleQueue()
        self._stopper: threading.Thread | None = None
        self.receiver = Receiver(
            ledger.database,
            ledger.office,
            self._subscription,
            settings,
            name=name,
            parse=parse,
            on_failure=self._ask_to_stop,
        )

    def run(self, worker: Worker, look: Callable[[bool], None]) -> None:
        """Receive while the worker works; when one of them ends, so does the other."""
        self._worker = worker
        threading.Thread(target=self._end_in_a_hurry, daemon=True).start()
        before = {number: signal.signal(number, self._signalled) for number in SIGNALS}

        def look_and_stop(stopping: bool) -> None:
            if stopping:
                self._begin_to_stop()
            look(stopping)

        try:
            self.receiver.start()
            worker.run(look=look_and_stop, look_seconds=LOOK_SECONDS, signals=())
        finally:
            self._begin_to_stop()
            self._await_stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.receiver.failure is not None:
            raise self.receiver.failure

    def _ask_to_stop(self) -> None:
        if self._worker is not None:
            self._worker.ask_to_stop()

    def _signalled(self, _: int, __: FrameType | None) -> None:
        self._signals += 1
        self._ask_to_stop()
        if self._signals > 1:
            self._hurry.put(None)

    def _end_in_a_hurry(self) -> None:
        """After a second signal: a handler cannot be made to stop, a process can."""
        self._hurry.get()
        time.sleep(HURRY_SECONDS)
        _log.warning("ended while %d handlers ran", self.receiver.running)
        os._exit(EXIT_INTERRUPTED)

    def _begin_to_stop(self) -> None:
        """Let the handlers of both finish in the same grace period."""
        if self._stopper is None:
            self._stopper = threading.Thread(
                target=self.receiver.stop, args=(self._grace_seconds,), daemon=True
            )
            self._stopper.start()

    def _await_stop(self) -> None:
        assert self._stopper is not None
        looks = round((self._grace_seconds + STOP_SECONDS_MARGIN) / STOPPING_SECONDS)
        for _ in range(looks):
            if self._signals > 1 or not self._stopper.is_alive():
                break
            self._stopper.join(STOPPING_SECONDS)
        # What is still held goes back with the connection.
        self._subscription.close()


def _subscription(
    name: str, settings: SubscriptionSettings
) -> tuple[Subscription, Callable[[Delivery], Message]]:
    try:
        from ledgerstone.messaging.amqp.wire import message_of
        from ledgerstone.messaging.subscriptions.amqp import AmqpSubscription
    except ModuleNotFoundError as error:
        message = f"what receives from {name} needs {error.name}, which is not installed"
        raise Unsupported(message, hint="install ledgerstone[amqp]") from error
    return AmqpSubscription(name, settings), message_of

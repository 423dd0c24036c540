"""`ledgerstone inbox consume`: receives from a broker for the consumers of an application.

The process also runs the relay for retried messages, which wait in the outbox.

The first Ctrl-C or SIGTERM: the process stops receiving, handlers finish within the grace period,
and the broker requeues the rest. The second: handlers are told to stop, and their messages are
requeued.
"""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec
import typer
from rich.console import Group

from ledgerstone import __version__
from ledgerstone.console import logs, output
from ledgerstone.console.application import application_of, loaded
from ledgerstone.console.call import Call
from ledgerstone.console.output import Text
from ledgerstone.console.serving import serve
from ledgerstone.errors import BadInput, NotFound
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.cli.calls import ready
from ledgerstone.messaging.cli.carrying import consumers_table, relays_of
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.messaging.relay.relays import deliveries_of
from ledgerstone.settings import SubscriptionSettings
from ledgerstone.settings.messaging import masked

CONCURRENCY_MAX = 1000

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
            help="Concurrent handlers; default: as in the settings.",
        ),
    ] = None,
) -> None:
    """Receive messages and pass them to your consumers until Ctrl-C or SIGTERM.

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
        ready(ledger, *ledger.registry.setup.tables)
        _announce(ledger, application, settings, json=call.json)
        deliveries = deliveries_of(name, ledger.registry, ledger.database, settings)
        facts = serve(ledger, [*relays_of(ledger, [RETRY]), deliveries], json=call.json)
    if call.json:
        output.show_json(facts)


def _settings(ledger: Ledger, name: str) -> SubscriptionSettings:
    known = ledger.settings.messaging.subscriptions
    if name in known:
        return known[name]
    hint = f"there are {', '.join(known)}"
    if not known:
        hint = "add [messaging.subscriptions.NAME] with url and queue to ledgerstone.toml"
    raise NotFound(f"no subscription is named {name!r}", hint=hint)


def _check_consumers(ledger: Ledger, application: str) -> None:
    if not ledger.registry.consumers.all():
        hint = "decorate a function with @ledger.consumer(pattern), or import the module that does"
        raise BadInput(f"{application} has no consumers", hint=hint)


def _announce(
    ledger: Ledger, application: str, settings: SubscriptionSettings, *, json: bool
) -> None:
    console = output.console()
    consumers = ledger.registry.consumers.all().values()
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

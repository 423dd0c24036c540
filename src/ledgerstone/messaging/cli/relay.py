"""`ledgerstone outbox relay`: sends messages to their destinations until it is told to stop.

The first Ctrl-C or SIGTERM: the relay claims nothing more, and waits for answers of messages in
flight. The second: it gives everything back at once. It waits for an unreachable destination.
"""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType

from ledgerstone import __version__
from ledgerstone.console import logs, output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call
from ledgerstone.console.output import Text
from ledgerstone.console.serving import serve
from ledgerstone.errors import BadInput
from ledgerstone.ledger import Ledger
from ledgerstone.messaging import OrderedRelay
from ledgerstone.messaging.cli.carrying import (
    Relay,
    address,
    destinations_of,
    ready_to_carry,
    relays_of,
)

CONCURRENCY_MAX = 10_000

_log = logging.getLogger("ledgerstone.relay")

ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        min=1,
        max=CONCURRENCY_MAX,
        help="Concurrent batches of a destination, concurrent handlers of consumers;"
        " default: as in the settings.",
    ),
]


def relay(
    call: Call,
    *,
    destination: Annotated[
        list[str] | None,
        typer.Option(
            "--destination", metavar="NAME", help="A destination; repeat it for more. Default: all."
        ),
    ] = None,
    concurrency: ConcurrencyOption = None,
) -> None:
    """Send messages to their destinations until Ctrl-C or SIGTERM.

    To all destinations of the settings; with -A also to the consumers of your code.

    Example: ledgerstone outbox relay --destination broker --destination warehouse
    """
    with ledger_of(call, make=True, tell=False) as ledger:
        log = ledger.settings.log
        level = "DEBUG" if call.verbose else log.level
        logs.to_stderr(level=level, json=log.json, application=True)
        names = destinations_of(ledger, destination or [])
        if not names:
            hint = (
                "add [messaging.destinations.NAME] to ledgerstone.toml,"
                " or name code with consumers: -A shop:ledger"
            )
            raise BadInput("there is no destination to send messages to", hint=hint)
        limit(ledger, concurrency)
        ready_to_carry(ledger, names)
        relays = relays_of(ledger, names)
        _announce(ledger, relays, json=call.json)
        try:
            facts = serve(ledger, relays, json=call.json)
        finally:
            for each in relays:
                each.transport.close()
    if call.json:
        output.show_json(facts)


def limit(ledger: Ledger, concurrency: int | None) -> None:
    """Sets the concurrency of the workers of this ledger, if one is given."""
    if concurrency is not None:
        engine = msgspec.structs.replace(ledger.settings.engine, concurrency=concurrency)
        ledger.settings = msgspec.structs.replace(ledger.settings, engine=engine)


def _announce(ledger: Ledger, relays: list[Relay], *, json: bool) -> None:
    console = output.console()
    if console.is_terminal and not json:
        console.print(_table(ledger, relays))
        return
    where = [f"{each.queue} ({address(ledger, each.queue)})" for each in relays]
    _log.info(
        "relay: ledgerstone %s on %s sends messages to %s",
        *(__version__, ledger.settings.url_masked, ", ".join(where)),
    )


def _table(ledger: Ledger, relays: list[Relay]) -> RenderableType:
    table = output.table("Destinations", "name", "where", "order", "when refused")
    for each in relays:
        ordered = isinstance(each, OrderedRelay)
        policy = ledger.registry.routes.destinations[each.queue].on_failure
        table.add_row(
            Text(each.queue, "bold"),
            Text(address(ledger, each.queue)),
            "by partition" if ordered else "any",
            policy,
        )
    return Group(table, "")

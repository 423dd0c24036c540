"""What several commands of protocols take."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgerstone.ledger import Ledger
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.room import PROTOCOLS

NameArgument = Annotated[
    str, typer.Argument(metavar="[NAME]", help="The protocol; not needed where there is one.")
]


def registry_of(ledger: Ledger) -> Registry:
    """The protocols of a ledger."""
    return ledger.rooms.state(PROTOCOLS)

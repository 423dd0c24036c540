"""The room of signing, as a ledger takes it in: it keeps nothing in the ledger's database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledgerstone.room import Check, CheckStatus, Opened, Room
from ledgerstone.signing import FAILPOINTS
from ledgerstone.signing.folder import store_folder
from ledgerstone.signing.read import status
from ledgerstone.signing.read.status import SigningFacts


def _facts(opened: Opened[Any], _: object) -> SigningFacts | None:
    return status.facts_of(opened.settings.signing)


def _checks(opened: Opened[Any]) -> Iterator[Check]:
    """The store, if there is one, is whole, private and looked after."""
    settings = opened.settings.signing
    found = status.examine(settings)
    if found is None:
        return
    if not found:
        yield Check("signing", CheckStatus.OK, f"{store_folder(settings)} is whole")
    for each in found:
        verdict = CheckStatus.PROBLEM if each.grave else CheckStatus.WARNING
        yield Check("signing", verdict, each.found, each.todo)


SIGNING: Room[Any, Any] = Room(
    name="signing",
    status={"signing": _facts},
    doctor={"signing": _checks},
    failpoints=FAILPOINTS,
    cli={"signing": "ledgerstone.signing.cli.commands:app"},
)

"""The protocols of a ledger, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, false, or_
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.engine.backoff import Backoff
from ledgerstone.errors import BadInput, NotFound
from ledgerstone.protocols.protocol import Protocol, load
from ledgerstone.settings.protocols import ProtocolSettings, Retention

if TYPE_CHECKING:
    from ledgerstone.protocols.commands import SliceKeeper

RETRY_MULTIPLIER = 2.0


class Registry:
    """What a ledger knows of its protocols."""

    def __init__(self, settings: ProtocolSettings, protocols: Iterable[Protocol] = ()) -> None:
        self.settings = settings
        self.installed: set[str] = set()
        self.keep_slice: SliceKeeper | None = None
        self._protocols: dict[str, Protocol] = {}
        for folder in settings.folders:
            self.add(load(Path(folder)))
        for protocol in protocols:
            self.add(protocol)

    def __iter__(self) -> Iterator[Protocol]:
        return iter(list(self._protocols.values()))

    def __len__(self) -> int:
        return len(self._protocols)

    def add(self, protocol: Protocol) -> None:
        """From now on the ledger runs this protocol."""
        known = self._protocols.setdefault(protocol.name, protocol)
        if known is not protocol:
            raise BadInput(f"two protocols are called {protocol.name}")

    def found(self, name: str) -> Protocol:
        """The protocol of this name; without a name the only one there is."""
        if not name and len(self._protocols) == 1:
            return next(iter(self._protocols.values()))
        try:
            return self._protocols[name]
        except KeyError:
            named = ", ".join(sorted(self._protocols)) or "none"
            message = f"this ledger has no protocol {name!r}"
            raise NotFound(message, hint=f"its protocols: {named}") from None

    def retention(self, protocol: Protocol) -> Retention:
        """How long its events are kept: as the settings say, otherwise as it says itself."""
        return self.settings.retention.get(protocol.name, protocol.retention)

    def has(self, column: Column[str]) -> ColumnElement[bool]:
        """The items of its protocols; those that name none belong to the only one."""
        names = sorted(self._protocols)
        return of_names(column, ["", *names] if len(names) == 1 else names)

    @property
    def backoff(self) -> Backoff:
        """How long a failed item waits."""
        settings = self.settings
        return Backoff(
            seconds=settings.retry_seconds,
            multiplier=RETRY_MULTIPLIER,
            seconds_max=settings.retry_seconds_max,
            jitter=0.0,
        )


def of_names(column: Column[str], names: Iterable[str]) -> ColumnElement[bool]:
    """The column holds one of these names."""
    return or_(false(), *[column == name for name in names])

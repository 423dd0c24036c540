"""Rooms by their names: those that this process has opened, and those that are installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from ledgerstone.errors import SettingsError

GROUP = "ledgerstone.rooms"
"""The entry points by which installed distributions offer rooms."""


class Named(Protocol):
    """The part of a room that the settings know: its name, its section, its commands."""

    @property
    def name(self) -> str: ...

    @property
    def cli(self) -> Mapping[str, str]: ...

    @property
    def settings(self) -> type[msgspec.Struct] | None: ...


_opened: dict[str, Named] = {}


def remember(room: Named) -> None:
    """This process has a room of this name, whether or not it is installed."""
    _opened[room.name] = room


def rooms_of(names: Iterable[str]) -> list[Named]:
    """The rooms of these names; SettingsError for what is neither opened nor installed."""
    return [_opened.get(name) or _installed(name) for name in names]


def _installed(name: str) -> Named:
    found = entry_points(group=GROUP)
    for each in found:
        if each.name == name:
            room: Named = each.load()
            return room
    known = ", ".join(sorted(each.name for each in found)) or "none"
    raise SettingsError([f"rooms: no room {name!r} is installed; installed: {known}"])

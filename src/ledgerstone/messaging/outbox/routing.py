"""Routing: the destinations of a message, by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from ledgerstone.errors import SettingsError
from ledgerstone.messaging.tables import QUEUE_CHARS_MAX
from ledgerstone.settings import DestinationSettings, MessagingSettings
from ledgerstone.settings.messaging import LOCAL

RETRY = "retry"
"""The destination of retried messages of consumers. Routes must not name it."""
ROUTES_SEEN_MAX = 4096

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_PATTERN = re.compile(r"\*|[a-z0-9*]+(\.[a-z0-9*]+)*")


class Routes:
    """The destinations by name, and the routing of messages.

    - A pattern is a message name in which `*` matches any characters; `*` alone matches all names.
    - Every matching pattern counts. A name that no pattern matches is routed to `local`.
    - Raises SettingsError with all problems if the settings are invalid.
    """

    def __init__(self, settings: MessagingSettings) -> None:
        problems = [*_destination_problems(settings), *_route_problems(settings)]
        if problems:
            raise SettingsError(problems)
        given = settings.destinations
        self.destinations: Mapping[str, DestinationSettings] = {
            LOCAL: given.get(LOCAL, DestinationSettings()),
            RETRY: DestinationSettings(),
            **given,
        }
        self._patterns = [
            (re.compile(_expression(pattern)), tuple(names))
            for pattern, names in settings.routes.items()
        ]
        self.of = lru_cache(maxsize=ROUTES_SEEN_MAX)(self._of)

    def _of(self, name: str) -> tuple[str, ...]:
        """The destinations of a message, in the order of the settings, each once."""
        found: dict[str, None] = {}
        for pattern, names in self._patterns:
            if pattern.fullmatch(name):
                found.update(dict.fromkeys(names))
        return tuple(found) or (LOCAL,)


def _expression(pattern: str) -> str:
    return ".*".join(re.escape(part) for part in pattern.split("*"))


def _destination_problems(settings: MessagingSettings) -> list[str]:
    problems = []
    for name, destination in settings.destinations.items():
        where = f"messaging.destinations.{name}"
        if not _NAME.fullmatch(name) or len(name) > QUEUE_CHARS_MAX:
            allowed = f"lowercase letters, digits, _ and -, at most {QUEUE_CHARS_MAX} characters"
            problems.append(f"{where}: invalid name; allowed: {allowed}")
        if name == RETRY:
            problems.append(f"{where}: reserved name; allowed: another name")
        if (name == LOCAL) != (destination.url == "local:"):
            problems.append(
                f"{where}.url: only the destination {LOCAL!r} may use local:;"
                " allowed: the URL of a broker or webhook"
            )
    return problems


def _route_problems(settings: MessagingSettings) -> list[str]:
    problems = []
    known = {*settings.destinations, LOCAL}
    for pattern, names in settings.routes.items():
        where = f"messaging.routes.{pattern!r}"
        if not _PATTERN.fullmatch(pattern):
            problems.append(f"{where}: invalid pattern; allowed: order.* or *.placed or *")
        problems.extend(
            f"{where}: no destination is named {name!r}; allowed: {', '.join(sorted(known))}"
            for name in names
            if name not in known
        )
        if not names:
            problems.append(f"{where}: no destination; allowed: at least one")
    return problems

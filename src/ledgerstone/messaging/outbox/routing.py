"""Routing: which destinations a message goes to, by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from ledgerstone.errors import SettingsError
from ledgerstone.messaging.tables import QUEUE_CHARS_MAX
from ledgerstone.settings import DestinationSettings, MessagingSettings
from ledgerstone.settings.messaging import LOCAL

RETRY = "retry"
"""Where retried messages of consumers wait: never a destination that one can route to."""
ROUTES_SEEN_MAX = 4096

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_PATTERN = re.compile(r"\*|[a-z0-9*]+(\.[a-z0-9*]+)*")


class Routes:
    """Destinations by name, and which of them a message goes to.

    - A pattern is a name of a message in which `*` stands for any characters; `*` alone is all.
    - All patterns that match count; what matches none goes to `local`.
    - Settings that cannot be meant are refused here, all together.
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
            allowed = f"small letters, digits, _ and -, at most {QUEUE_CHARS_MAX} of them"
            problems.append(f"{where}: this name is not allowed; allowed: {allowed}")
        if name == RETRY:
            problems.append(f"{where}: this name is taken; allowed: another name")
        if (name == LOCAL) != (destination.url == "local:"):
            problems.append(
                f"{where}.url: the consumers of this ledger are the destination {LOCAL!r};"
                " allowed: local: there and nowhere else"
            )
    return problems


def _route_problems(settings: MessagingSettings) -> list[str]:
    problems = []
    known = {*settings.destinations, LOCAL}
    for pattern, names in settings.routes.items():
        where = f"messaging.routes.{pattern!r}"
        if not _PATTERN.fullmatch(pattern):
            problems.append(f"{where}: no pattern of names; allowed: order.* or *.placed or *")
        problems.extend(
            f"{where}: there is no destination {name!r}; allowed: {', '.join(sorted(known))}"
            for name in names
            if name not in known
        )
        if not names:
            problems.append(f"{where}: leads nowhere; allowed: at least one destination")
    return problems

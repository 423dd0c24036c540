"""Rooms: a kind of work with its tables, calls, sources and commands, declared as one value.

    ACME = Room(
        name="acme",
        open=lambda settings: settings.section("acme", AcmeSettings),
        calls=Visits,
        migrations="acme.migrations",
        …
    )

    ledger = Ledger(url, rooms=[ACME])
    with ledger.transaction() as tx:
        tx.room(ACME).enter("order-7")

A ledger has a room if it is listed: in `Ledger(rooms=[…])`, or in the settings as `rooms =
["acme"]`, the name of an entry point in the group `ledgerstone.rooms`. Installing a package with a
room does not add the room to a ledger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from ledgerstone import failpoints
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source
from ledgerstone.errors import BadInput, LedgerstoneError
from ledgerstone.settings import Settings
from ledgerstone.settings.registered import remember
from ledgerstone.store.database import Database
from ledgerstone.store.rooms import RowSecurity, StoredRoom
from ledgerstone.store.transaction import Transaction

Calls = TypeVar("Calls")
State = TypeVar("State")

NAME_CHARS_MAX = 24
"""The name is part of the names of revisions and of the version table."""
NO_RULES = RowSecurity()
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class CheckStatus(Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """One check of `doctor`: its name, its result, what was found, and what to do."""

    name: str
    verdict: CheckStatus
    found: str
    todo: str | None = None


def refused(name: str, error: LedgerstoneError) -> Check:
    """The check `name`, which failed with this error."""
    return Check(name, CheckStatus.PROBLEM, " ".join(error.message.split()), error.hint)


def counted(count: int, most: int) -> str:
    """A count that stops at `most`: `10,000+` if there may be more."""
    return f"{count:,}+" if count >= most else f"{count:,}"


@dataclass(frozen=True, kw_only=True)
class Opened(Generic[State]):
    """A room on a database: its state outside of transactions, the settings and the database."""

    state: State
    settings: Settings
    database: Database[Any]


def _no_calls(_tx: Transaction, _state: Any) -> Any:
    """No calls on a transaction."""


def _no_state(_settings: Settings) -> Any:
    """No state outside of transactions."""


def _none(*_: Any) -> Sequence[Any]:
    return ()


def _never(*_: Any) -> bool:
    return False


def _always(_: Settings) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Room(Generic[Calls, State]):
    """The declaration of a room; only the name is required.

    `ledgerstone.testing.contracts.room` tests what these clauses promise.

    - `enabled`: whether a ledger with these settings has the room.
    - `open` makes the state of the room in a ledger, outside of transactions.
    - `calls` makes the result of `tx.room(ROOM)` from a transaction and the state.
    - `tables` are the names of its tables. `migrations` is the package of its revisions, which make
      these tables as they are declared, and no other. They lead there from each revision, and
      a second run changes nothing. `migrate --sql` prints the same. A table of another program with
      one of these names is refused by name.
    - `settings` is the class of its settings section, which has the name of the room. Each setting
      has a default and a description; an unknown one is refused.
    - `sources` are the default sources of a worker. Each has a name of its own and keeps the source
      contract. `duties` run beside these sources or the given ones, on an empty ledger, too;
      `begin` is called when a worker is made.
    - `status` are functions for `ledgerstone status`, by name; the facts become JSON. A function
      gets no transaction if the schema is not up to date, and returns None for unknown facts.
    - `doctor` are checks, by name; they find no problem on an empty or healthy ledger. A warning or
      problem says what to do. Checks of a room without tables run without a database.
    - `waiting`: whether something waits for a worker.
    - `security` are the rules for row-level security; they name tables of the room alone.
    - `failpoints` are the names of its failpoints, known from then on.
    - `history` are its append-only tables; a row of them cannot be removed.
    - `cli` are its command groups: a name and `module:attribute`, imported when called. Each shows
      its help.
    """

    name: str
    enabled: Callable[[Settings], bool] = _always
    open: Callable[[Settings], State] = _no_state
    calls: Callable[[Any, State], Calls] = _no_calls
    tables: tuple[str, ...] = ()
    migrations: str | None = None
    settings: type[msgspec.Struct] | None = None
    sources: Callable[[Opened[State]], Sequence[Source]] = _none
    duties: Callable[[Opened[State], Sequence[Source]], Sequence[Duty]] = _none
    begin: Callable[[Opened[State]], object] = _none
    status: Mapping[str, Callable[[Opened[State], Any], object]] = field(default_factory=dict)
    doctor: Mapping[str, Callable[[Opened[State]], Iterable[Check]]] = field(default_factory=dict)
    waiting: Callable[[Opened[State], Any], bool] = _never
    security: RowSecurity = NO_RULES
    failpoints: frozenset[str] = frozenset()
    history: tuple[str, ...] = ()
    cli: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.match(self.name) or len(self.name) > NAME_CHARS_MAX:
            message = f"a room cannot be called {self.name!r}"
            hint = f"use a-z, 0-9 and _, a letter first, and at most {NAME_CHARS_MAX} characters"
            raise BadInput(message, hint=hint)
        failpoints.declare(self.failpoints)

    @property
    def stored(self) -> StoredRoom:
        """The part of it that the store uses."""
        return StoredRoom(
            name=self.name,
            migrations=self.migrations,
            tables=self.tables,
            security=self.security,
        )


class Rooms:
    """The rooms of one ledger, in order, each with its state."""

    def __init__(self, rooms: Sequence[Room[Any, Any]], settings: Settings) -> None:
        names = [room.name for room in rooms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadInput(f"two rooms are called {twice[0]}", hint="list each room once")
        for room in rooms:
            remember(room)
        self._settings = settings
        self._rooms = tuple(room for room in rooms if room.enabled(settings))
        self._states: dict[str, Any] = {room.name: room.open(settings) for room in self._rooms}

    def __iter__(self) -> Iterator[Room[Any, Any]]:
        return iter(self._rooms)

    @property
    def stored(self) -> list[StoredRoom]:
        """The parts of them that the store uses."""
        return [room.stored for room in self._rooms]

    def state(self, room: Room[Any, State]) -> State:
        """The state of a room; BadInput if the ledger does not have the room."""
        try:
            state: State = self._states[room.name]
        except KeyError:
            message = f"this ledger has no room {room.name}"
            raise BadInput(message, hint="list it: Ledger(url, rooms=[…])") from None
        return state

    def opened(self, room: Room[Any, State], database: Database[Any]) -> Opened[State]:
        """The room on a database."""
        return Opened(state=self.state(room), settings=self._settings, database=database)

"""A room: one value that says what a kind of work brings to a ledger.

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

A room is in a ledger if it is listed: `Ledger(rooms=[…])`, or `rooms = ["acme"]` in the settings,
which looks the name up among the entry points `ledgerstone.rooms` of what is installed. That a room
is installed changes nothing by itself.
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
"""The name is a part of the names of revisions and of a version table."""
NO_RULES = RowSecurity()
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class CheckStatus(Enum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """One thing that `doctor` looked at: how it is, what was found, and what to do."""

    name: str
    verdict: CheckStatus
    found: str
    todo: str | None = None


def refused(name: str, error: LedgerstoneError) -> Check:
    """What could not be looked at, and why."""
    return Check(name, CheckStatus.PROBLEM, " ".join(error.message.split()), error.hint)


def counted(count: int, most: int) -> str:
    """A count that stops at a most: 10,000+ where there may be more."""
    return f"{count:,}+" if count >= most else f"{count:,}"


@dataclass(frozen=True, kw_only=True)
class Opened(Generic[State]):
    """A room in a ledger: what it keeps there outside of transactions, and where."""

    state: State
    settings: Settings
    database: Database[Any]


def _no_calls(_tx: Transaction, _state: Any) -> Any:
    """The room has no calls on a transaction."""


def _no_state(_settings: Settings) -> Any:
    """The room keeps nothing outside of transactions."""


def _none(*_: Any) -> Sequence[Any]:
    return ()


def _never(*_: Any) -> bool:
    return False


def _always(_: Settings) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Room(Generic[Calls, State]):
    """What a kind of work brings; everything but the name may be left out.

    - `enabled` says whether a ledger with these settings has the room.
    - `open` makes what a ledger keeps of the room outside of transactions: its state.
    - `calls` makes what `tx.room(ROOM)` answers, of a transaction and the state.
    - `tables` are the names of its tables; `migrations` is the package of its revisions.
    - `settings` is the class of its section, which has the name of the room.
    - `sources` are claimed by a worker that was not told what to work on; `duties` are done beside
      these sources or the given ones; `begin` is called when a worker is made.
    - `status` are its facts, by the name under which `status` shows them. A function gets no
      transaction where the schema is not up to date, and answers None for what it cannot tell.
    - `doctor` are its checks, by name. Those of a room without tables need no database.
    - `waiting` says whether something waits for a worker.
    - `security` says who may see its rows where organisations are kept apart.
    - `failpoints` are the places of its code where a test may end the process.
    - `history` are its tables that only grow.
    - `cli` are its groups of commands: a name, and `module:attribute`, loaded when it is called.
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
        """What the store knows of it."""
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
        """What the store knows of them."""
        return [room.stored for room in self._rooms]

    def state(self, room: Room[Any, State]) -> State:
        """What the ledger keeps of a room; BadInput if it does not have the room."""
        try:
            state: State = self._states[room.name]
        except KeyError:
            message = f"this ledger has no room {room.name}"
            raise BadInput(message, hint="list it: Ledger(url, rooms=[…])") from None
        return state

    def opened(self, room: Room[Any, State], database: Database[Any]) -> Opened[State]:
        """The room on a database."""
        return Opened(state=self.state(room), settings=self._settings, database=database)

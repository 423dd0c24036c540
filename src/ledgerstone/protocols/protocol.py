"""A protocol, declared: its tables, projectors, commands and jobs.

groups/
__init__.py      protocol = Protocol("groups", folder=Path(__file__).parent), handlers
schema.sql       its tables, with INDEX lines
tests/*.json     given, then

@protocol.projector("message")
def message(db: Projecting, event: Envelope) -> None:
if not db.exists("SELECT 1 FROM member WHERE id = :id", id=event.data["author"]):
raise Blocked(("member", event.data["author"]))
db.insert("message", event_id=event.event_id, text=event.data["text"])

@protocol.command("message.create")
def create(db: Reading, *, author: str, text: str) -> Result:
return Result(envelopes=[Envelope(type="message", data={"author": author, "text": text})])
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ledgerstone.errors import BadInput, NotFound
from ledgerstone.protocols.connection import Projecting, Reading
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.results import Result
from ledgerstone.protocols.row_values import Check, checks_of
from ledgerstone.protocols.schema import Schema
from ledgerstone.protocols.tables import NAME_CHARS_MAX
from ledgerstone.settings.protocols import Retention
from ledgerstone.store.sql.names import check_name

F = TypeVar("F", bound=Callable[..., Any])
Projector = Callable[[Projecting, Envelope], None]
Decoder = Callable[[Reading, bytes], Envelope | None]
Identify = Callable[[Envelope], str | None]
Sender = Callable[[str, bytes], None]
ATTRIBUTE = "protocol"
SCHEMA_FILE = "schema.sql"
TESTS_FOLDER = "tests"
KEEP_EVERYTHING = Retention()


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command; one that `manages` its transactions is given what begins them."""

    name: str
    call: Callable[..., Result]
    manages: bool = False
    every_seconds: float | None = None
    """For a job: its pause."""

    def bound(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters, if the function takes them."""
        try:
            inspect.signature(self.call).bind(None, **params)
        except TypeError as error:
            raise BadInput(f"{self.name}: {error}", hint="give what the command takes") from None
        return dict(params)


class Protocol:
    """What the events of a protocol mean.

    - `folder` holds its `schema.sql` and `tests`; a protocol without tables needs none.
    - `identify` makes the identity of an event that brings none; None: its content is it.
    - `retention`: how long its events are kept; the settings of a ledger may say otherwise.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: Path | None = None,
        schema: str | None = None,
        identify: Identify | None = None,
        retention: Retention = KEEP_EVERYTHING,
    ) -> None:
        check_name(name, "the name of a protocol", chars_max=NAME_CHARS_MAX)
        self.name = name
        self.folder = folder
        self.identify = identify
        self.retention = retention
        self.projectors: dict[str, Projector | None] = {}
        self.commands: dict[str, Command] = {}
        self.decode: Decoder | None = None
        self.send: Sender | None = None
        self._schema = Schema.parse(schema if schema is not None else self._read(), name)

    def __repr__(self) -> str:
        return f"Protocol({self.name!r})"

    @property
    def schema(self) -> Schema:
        """Its tables."""
        return self._schema

    @cached_property
    def tables(self) -> frozenset[str]:
        """The names of its tables, in lower case."""
        return frozenset(each.name.lower() for each in self._schema.tables)

    @cached_property
    def checks(self) -> Mapping[str, Mapping[str, Check]]:
        """The checks of the values of its tables, by their names in lower case."""
        return {each.name.lower(): checks_of(each) for each in self._schema.tables}

    @property
    def jobs(self) -> list[Command]:
        """Its commands that come by themselves."""
        return [each for each in self.commands.values() if each.every_seconds is not None]

    def projector(self, *types: str) -> Callable[[F], F]:
        """Make a function, `f(db, event)`, what events of these types do to the tables.

        It is idempotent, and its outcome does not depend on the order of independent events.
        """

        def decorate(call: F) -> F:
            for each in types:
                self._add_type(each, call)
            return call

        return decorate

    def keeps(self, *types: str) -> None:
        """Events of these types are kept in the log, and change no table."""
        for each in types:
            self._add_type(each, None)

    def command(self, name: str, *, manages_transactions: bool = False) -> Callable[[F], F]:
        """Make a function, `f(db, **params)`, a command of this name; it answers a `Result`.

        One that manages its transactions is given a `Transactions` in place of `db`.
        """
        return self._adding(name, manages=manages_transactions)

    def job(
        self, name: str, *, every_seconds: float, manages_transactions: bool = False
    ) -> Callable[[F], F]:
        """Make a function a command that the tick runs so often; it takes no parameters."""
        if every_seconds <= 0:
            raise BadInput(f"the pause of the job {name} is more than 0 seconds")
        return self._adding(name, manages=manages_transactions, every_seconds=every_seconds)

    def decoder(self, call: Decoder) -> Decoder:
        """Make a function what reads the bytes of an item of `incoming`.

        It answers an envelope, or None for what is not for us; Blocked says what it lacks.
        """
        self.decode = call
        return call

    def sender(self, call: Sender) -> Sender:
        """Make a function, `f(address, blob)`, what sends an item of `outgoing`."""
        self.send = call
        return call

    def found(self, command: str) -> Command:
        """The command of this name; NotFound names those that there are."""
        try:
            return self.commands[command]
        except KeyError:
            named = ", ".join(sorted(self.commands)) or "none"
            message = f"the protocol {self.name} has no command {command!r}"
            raise NotFound(message, hint=f"its commands: {named}") from None

    def _adding(self, name: str, **options: Any) -> Callable[[F], F]:
        check_name(name, "the name of a command", chars_max=NAME_CHARS_MAX)
        if name in self.commands:
            raise BadInput(f"the protocol {self.name} has two commands {name}")

        def decorate(call: F) -> F:
            self.commands[name] = Command(name=name, call=call, **options)
            return call

        return decorate

    def _add_type(self, name: str, call: Projector | None) -> None:
        check_name(name, "the type of an event", chars_max=NAME_CHARS_MAX)
        if name in self.projectors:
            raise BadInput(f"the protocol {self.name} has two projectors for {name}")
        self.projectors[name] = call

    def _read(self) -> str:
        file = self.folder / SCHEMA_FILE if self.folder is not None else None
        if file is None or not file.exists():
            return ""
        return file.read_text(encoding="utf-8")


def load(folder: Path) -> Protocol:
    """The protocol of a folder: its `__init__.py` has a `protocol`."""
    file = folder.resolve() / "__init__.py"
    if not file.is_file():
        hint = "a protocol is a folder with an __init__.py that has `protocol = Protocol(…)`"
        raise BadInput(f"{folder} is no protocol", hint=hint)
    # Its name tells it from a module of the same name elsewhere.
    name = f"ledgerstone_protocol_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=[str(file.parent)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, Exception):
                raise BadInput(f"the protocol in {folder} cannot be loaded: {error}") from error
            raise
    found = getattr(module, ATTRIBUTE, None)
    if not isinstance(found, Protocol):
        raise BadInput(f"{file} has no `{ATTRIBUTE} = Protocol(…)`")
    return found

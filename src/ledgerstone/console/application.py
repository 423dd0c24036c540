"""The application of a call: the ledger that its code made, and the database of those without."""

from __future__ import annotations

import getpass
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ledgerstone.console import output
from ledgerstone.console.database import must_exist
from ledgerstone.errors import BadInput, LedgerstoneError
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings

if TYPE_CHECKING:
    from ledgerstone.console.call import Call

ByOption = Annotated[
    str | None,
    typer.Option("--by", metavar="WHO", help="The operator, for the record. Default: your login."),
]


def loaded(application: str) -> Ledger:
    """The ledger that `module:attribute` names; BadInput that says what is wrong with it."""
    name, _, attribute = application.partition(":")
    if not name or not attribute:
        raise BadInput(
            f"-A names a module and its ledger, not {application!r}", hint="as in -A shop:ledger"
        )
    module = _imported(name)
    try:
        found = attrgetter(attribute)(module)
    except AttributeError as error:
        hint = _ledgers_of(module)
        raise BadInput(f"the module {name} has no {attribute!r}", hint=hint) from error
    if not isinstance(found, Ledger):
        kind = type(found).__name__
        message = f"{application} is of type {kind}, not a Ledger"
        raise BadInput(message, hint=_ledgers_of(module))
    return found


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except LedgerstoneError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        message = f"there is no module {error.name}"
        hint = f"call it in the folder that {error.name} lies in, or install it"
        raise BadInput(message, hint=hint) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> BadInput:
    message = f"the module {name} could not be imported: {type(error).__name__}: {error}"
    return BadInput(message, hint="-v shows where")


def _ledgers_of(module: ModuleType) -> str:
    found = [name for name, value in vars(module).items() if isinstance(value, Ledger)]
    if found:
        return f"it has: {', '.join(f'-A {module.__name__}:{name}' for name in found)}"
    return "make one at the top of the module: ledger = Ledger()"


@contextmanager
def ledger_of(call: Call, *, make: bool = False, tell: bool = True) -> Iterator[Ledger]:
    """The application's ledger, or one that knows no job, on the database of the call.

    - Without an application nothing is migrated and no file is made, unless `make` says so.
    - `tell`: the command does not say by itself which database that is.
    """
    if call.application is not None:
        no_database(call)
        with loaded(call.application) as ledger:
            output.on_database(ledger.settings.url_masked, tell=tell)
            yield ledger
        return
    settings = call.settings()
    output.on_database(settings.url_masked, tell=tell)
    if not make:
        never = msgspec.structs.replace(settings.store, auto_migrate="never")
        settings = msgspec.structs.replace(settings, store=never)
    with Ledger(settings=settings) as ledger:
        if not make:
            must_exist(ledger.database)
        yield ledger


def application_of(call: Call) -> str:
    """The application of a call that cannot do without; BadParameter if none was given."""
    if call.application is None:
        raise typer.BadParameter("-A is missing: it names your code, as in -A shop:ledger")
    no_database(call)
    return call.application


def settings_of(call: Call) -> Settings:
    """The settings of the application's ledger."""
    with loaded(application_of(call)) as ledger:
        return ledger.settings


def who(given: str | None) -> str | None:
    """The operator: the name that was given, otherwise the login, if the system knows it."""
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def no_database(call: Call) -> None:
    """Refuse a database beside an application: its ledger has one."""
    if call.url is not None or call.config is not None:
        raise typer.BadParameter(
            "-A names a ledger, which has its database: leave --url and --config out"
        )

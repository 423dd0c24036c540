"""The store of a call: where it lies, and how it is opened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ledgerstone.console.call import Call
from ledgerstone.errors import (
    EventReplayed,
    LedgerstoneError,
    MoveNotAllowed,
    NotAllowedNow,
    NotAMember,
    NotFound,
    RequestExpired,
    StoreLocked,
    ThresholdNotMet,
    VoteChanged,
)
from ledgerstone.settings import SigningSettings
from ledgerstone.signing import check_extra
from ledgerstone.signing.folder import store_folder

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

LOCKED_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses before a store that is locked is tried again: a worker or a command has it for moments."""

_STANDING = "`ledgerstone signing request show REQUEST` shows where it stands"
HINTS: dict[type[LedgerstoneError], str] = {
    NotFound: "`ledgerstone signing request list`, `event list`, `group list` show what there is",
    NotAMember: "`ledgerstone signing group show GROUP` shows the members and their keys",
    EventReplayed: "`ledgerstone signing event list` and `request list` show the one before",
    VoteChanged: "`ledgerstone signing audit REQUEST` shows the votes, and this attempt",
    MoveNotAllowed: _STANDING,
    NotAllowedNow: _STANDING,
    ThresholdNotMet: "`ledgerstone signing sign REQUEST` adds the signatures of a member",
    RequestExpired: "`ledgerstone signing propose` begins another request for its event",
}
"""The next step for the user, where the store does not name it."""

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The data folder; otherwise signing.data_dir, KASPA_DATA_DIR, or .igra.",
    ),
]


def settings_of(call: Call, data: Path | None) -> SigningSettings:
    """The settings of signing: what the call says before environment, file and defaults."""
    settings = call.settings().signing
    if data is None:
        return settings
    return msgspec.structs.replace(settings, data_dir=str(data))


@contextmanager
def signing_of(call: Call, data: Path | None, *, make: bool = False) -> Iterator[Signing]:
    """The store of the call, open; NotFound if there is none, unless `make` says to make one."""
    settings = settings_of(call, data)
    check_extra()
    if not make:
        _must_exist(store_folder(settings))
    with _hinted(), _opened(settings) as signing:
        yield signing


def _opened(settings: SigningSettings) -> Signing:
    """The store, waited for a little: a worker or another command has it for moments only."""
    # Here and not above: `ledgerstone --help` loads every group of commands.
    from ledgerstone.signing.signing import Signing

    for pause in LOCKED_SECONDS:
        try:
            return Signing(settings=settings)
        except StoreLocked:
            time.sleep(pause)
    try:
        return Signing(settings=settings)
    except StoreLocked as error:
        message = f"another process has the store in {store_folder(settings)} open"
        hint = "stop that process, or ask it instead; commands that only read work beside it"
        raise StoreLocked(message, hint=hint) from error


@contextmanager
def reading_of(call: Call, data: Path | None) -> Iterator[Signing]:
    """The store of the call for reading, beside whoever has it open; NotFound if there is none."""
    settings = settings_of(call, data)
    check_extra()
    from ledgerstone.signing.signing import Signing

    _must_exist(store_folder(settings))
    with _hinted(), Signing(settings=settings, read_only=True) as signing:
        yield signing


@contextmanager
def _hinted() -> Iterator[None]:
    """Let a refusal of the store name the command that helps."""
    try:
        yield
    except LedgerstoneError as error:
        error.hint = error.hint or HINTS.get(type(error))
        raise


def _must_exist(folder: Path) -> None:
    from ledgerstone.signing.rocksdb import exists

    if not exists(folder):
        hint = "name its data folder with --data; `ledgerstone signing group new` makes a store"
        raise NotFound(f"there is no store of signing in {folder}", hint=hint)

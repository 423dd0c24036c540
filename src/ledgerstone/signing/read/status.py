"""Signing at a glance, for `status` and `doctor`: read beside whoever has the store open."""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING

import msgspec

from ledgerstone.errors import LedgerstoneError
from ledgerstone.settings import SigningSettings
from ledgerstone.signing import check_extra
from ledgerstone.signing.folder import MIGRATIONS_VARIABLE, store_folder
from ledgerstone.signing.keys import KINDS, Family

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

COUNTED_MAX = 10_000
"""Nothing is counted further than this."""
READ_BYTES_MAX = 128 * 1024 * 1024
"""A doctor reads every row of a store that is no larger."""
LATE_NANOS = 60_000_000_000
"""A request that should have expired so long ago was not swept."""
MIGRATE = (
    f"set signing.migrate or {MIGRATIONS_VARIABLE}=true, and open the store for writing; a row that"
    " stays has another value in its own family: `ledgerstone signing export` shows both"
)


class SigningFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The store of signing; `trouble` says why it cannot be read, and then there is nothing else.

    A number that is `counted_max` says that there are at least so many.
    """

    folder: str
    open_requests: int = 0
    """Requests that are pending or approved."""
    overdue: int = 0
    """Requests whose time ran out more than a minute ago, and that nobody has expired."""
    unpublished: int = 0
    """Ends of requests that the ledger has not confirmed, where they are published."""
    paid_today_sompi: int = 0
    reserved_sompi: int = 0
    counted_max: int = COUNTED_MAX
    trouble: str | None = None


class SigningFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with the store; `grave` if it is more than a warning."""

    found: str
    todo: str | None
    grave: bool = True


def facts_of(settings: SigningSettings) -> SigningFacts | None:
    """The facts of the store; None if there is none."""
    folder = store_folder(settings)
    if not folder.exists():
        return None
    try:
        return _read(settings)
    except LedgerstoneError as error:
        return SigningFacts(folder=str(folder), trouble=f"{error.code}: {error.message}")


def _read(settings: SigningSettings) -> SigningFacts:
    check_extra()
    from ledgerstone.signing.signing import Signing

    with Signing(settings=settings, read_only=True) as signing:
        late = max(0, time.time_ns() - LATE_NANOS)
        return SigningFacts(
            folder=str(signing.store.folder),
            open_requests=len(signing.list_due(rows_max=COUNTED_MAX)),
            overdue=len(signing.list_due(before_nanos=late, rows_max=COUNTED_MAX)),
            unpublished=len(signing.list_outgoing(rows_max=COUNTED_MAX)) if settings.publish else 0,
            paid_today_sompi=signing.volume_today(),
            reserved_sompi=signing.reserved_volume(),
        )


def examine(settings: SigningSettings) -> list[SigningFinding] | None:
    """The findings about the store, read row by row if it is small; None if there is no store."""
    folder = store_folder(settings)
    if not folder.exists():
        return None
    try:
        return [*_findings(settings)]
    except LedgerstoneError as error:
        return [SigningFinding(found=" ".join(error.message.split()), todo=error.hint)]


def _findings(settings: SigningSettings) -> list[SigningFinding]:
    check_extra()
    from ledgerstone.signing.signing import Signing
    from ledgerstone.signing.upkeep import count_rows

    found: list[SigningFinding] = []
    folder = store_folder(settings)
    with Signing(settings=settings, read_only=True) as signing:
        health = signing.health_check()
        todo = "stop what uses it, and `ledgerstone signing restore` a checkpoint or backup"
        found += [SigningFinding(found=problem, todo=todo) for problem in health.problems]
        if not found and sum(signing.store.database.file_bytes().values()) <= READ_BYTES_MAX:
            count_rows(signing.store.database)
        left = _left_behind(signing)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        told = f"{folder} has mode {mode:03o}: others can get at it"
        found.append(SigningFinding(found=told, todo=f"chmod 700 {folder}", grave=False))
    if left:
        named = ", ".join(dict.fromkeys(left))
        told = f"the default family holds rows of {named}: nothing looks for them there"
        found.append(SigningFinding(found=told, todo=MIGRATE, grave=False))
    facts = _read(settings)
    if facts.overdue:
        told = f"{facts.overdue:,} requests ran out of time and are not expired"
        todo = "run `ledgerstone up`, or `ledgerstone signing expire`"
        found.append(SigningFinding(found=told, todo=todo, grave=False))
    return found


def _left_behind(signing: Signing) -> list[str]:
    """The families of rows that a migration would move: the original had only one at first."""
    return [
        kind.family.value
        for kind in KINDS
        if kind.family is not Family.DEFAULT
        and signing.store.page(Family.DEFAULT, kind.prefix, rows_max=1).rows
    ]

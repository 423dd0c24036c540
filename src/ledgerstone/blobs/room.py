"""The room of files, as a ledger takes it in."""

from __future__ import annotations

from pathlib import Path

from ledgerstone.blobs import expiry
from ledgerstone.blobs.blobs import Blobs, BlobsState
from ledgerstone.blobs.read import checks
from ledgerstone.blobs.read.status import BlobFacts, facts_of
from ledgerstone.blobs.tables import tables
from ledgerstone.engine.duties import Duty
from ledgerstone.errors import SettingsError
from ledgerstone.room import Opened, Room
from ledgerstone.settings import Settings
from ledgerstone.store.rooms import RowSecurity
from ledgerstone.store.schema.columns import names_in
from ledgerstone.store.transaction import Transaction

FILE_URL = "sqlite:///"


def _open(settings: Settings) -> BlobsState:
    return BlobsState(settings.blobs, _folder(settings))


def _folder(settings: Settings) -> Path | None:
    """The folder of files outside the database; None where none can be or is to be."""
    if settings.blobs.folder is not None:
        return Path(settings.blobs.folder)
    file = settings.url.removeprefix(FILE_URL).partition("?")[0]
    if settings.url.startswith(FILE_URL) and file:
        return Path(f"{file}.blobs")
    if settings.blobs.disk_bytes_min is not None:
        problem = "blobs.folder: the database has no file, so name a folder for large files"
        raise SettingsError([problem])
    return None


def _facts(_: object, tx: Transaction | None) -> BlobFacts | None:
    return None if tx is None else facts_of(tx)


def _duties(opened: Opened[BlobsState], _: object) -> list[Duty]:
    return [expiry.duty(opened.state)]


BLOBS: Room[Blobs, BlobsState] = Room(
    name="blobs",
    enabled=lambda settings: settings.blobs.enabled,
    open=_open,
    calls=Blobs,
    tables=names_in(tables),
    migrations="ledgerstone.blobs.migrations",
    duties=_duties,
    status={"blobs": _facts},
    doctor={"blobs": checks.blobs},
    # Files belong to no organisation.
    security=RowSecurity(refused=names_in(tables)),
    failpoints=frozenset({"blobs.assembled", "blobs.intended", "blobs.renamed"}),
    cli={"blobs": "ledgerstone.blobs.cli.commands:app"},
)

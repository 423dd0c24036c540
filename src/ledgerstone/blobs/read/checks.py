"""Whether files are as they should be, for `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ledgerstone.blobs.blobs import BlobsState
from ledgerstone.blobs.read.status import facts_of
from ledgerstone.room import Check, CheckStatus, Opened, counted
from ledgerstone.store.schema import revisions

PACKET = "max_allowed_packet"
PACKET_SLICES = 2
"""A byte of a slice may be two in the packet of a statement."""


def blobs(opened: Opened[BlobsState]) -> Iterator[Check]:
    """Expired uploads that nobody removes, slices that the server refuses, and the folder."""
    database, state = opened.database, opened.state
    with database.reading() as tx:
        if not revisions.look(tx.connection, database.namespace, database.rooms).up_to_date:
            return
        facts, server = facts_of(tx), database.dialect.describe(tx.connection)
    words = f"{counted(facts.completed, facts.counted_max)} files, {facts.uploading} uploads"
    if facts.expired:
        todo = "start a worker, which removes them, or call `ledgerstone blobs gc`"
        found = f"{words}; {facts.expired} expired and not removed yet"
        yield Check("files", CheckStatus.WARNING, found, todo)
    else:
        yield Check("files", CheckStatus.OK, words)
    yield from _packet(state, server.get(PACKET))
    yield from _folder(state, facts.on_disk)


def _packet(state: BlobsState, most: Any) -> Iterator[Check]:
    needed = state.settings.slice_bytes * PACKET_SLICES
    if most is not None and int(most) <= needed:
        found = f"{PACKET} is {most}: a slice of {state.settings.slice_bytes} may need {needed}"
        todo = f"raise {PACKET} of the server, or lower blobs.slice_bytes"
        yield Check("slices", CheckStatus.PROBLEM, found, todo)


def _folder(state: BlobsState, on_disk: int) -> Iterator[Check]:
    home, name = state.folder, "folder of files"
    if home is None or not home.exists():
        if on_disk:
            todo = "mount or restore the folder, or correct blobs.folder"
            found = f"{home or 'the folder'} is not there, and {on_disk} files lie in it"
            yield Check(name, CheckStatus.PROBLEM, found, todo)
    elif os.access(home, os.R_OK | os.W_OK | os.X_OK) and home.is_dir():
        yield Check(name, CheckStatus.OK, f"{home} can be read and written")
    else:
        todo = "give this user the folder, or correct blobs.folder"
        yield Check(name, CheckStatus.PROBLEM, f"{home} cannot be used", todo)

"""The section of the settings that belongs to files: their slices, limits, and where they lie."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class BlobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How files are kept."""

    enabled: Annotated[
        bool,
        Meta(description="Whether the ledger has the room, its tables included."),
    ] = True
    slice_bytes: Annotated[
        int, Meta(ge=1024, le=4_194_304, description="The size of a slice of a new file.")
    ] = 262_144
    blob_bytes_max: Annotated[
        int, Meta(ge=1, le=1_099_511_627_776, description="The largest file that is accepted.")
    ] = 10_737_418_240
    upload_hours: Annotated[
        float,
        Meta(ge=0.01, le=87_600, description="How long an upload lives after a slice."),
    ] = 24.0
    disk_bytes_min: Annotated[
        Annotated[int, Meta(ge=0, le=1_099_511_627_776)] | None,
        Meta(
            description="From which size on a complete file is kept in the folder, and not in the"
            " database; none means never."
        ),
    ] = None
    folder: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Where files outside the database lie; none means beside the file of SQLite"
            " (`ledger.db.blobs`); with a server it has to be named."
        ),
    ] = None

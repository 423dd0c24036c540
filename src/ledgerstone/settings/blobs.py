"""The section of the settings that belongs to files: their slices, limits, and where they lie."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

UPLOAD_TOKEN_CHARS_MIN = 16


class BlobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How files are kept, and where uploads are taken; the token does not appear in `repr`."""

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
    upload_token: Annotated[
        Annotated[str, Meta(pattern=rf"^[!-~]{{{UPLOAD_TOKEN_CHARS_MIN},}}\Z")] | None,
        Meta(
            description="What a client sends as `Authorization: Bearer …` to upload by HTTP to"
            " `ledgerstone up`; none means that it takes no uploads.",
            extra={
                "allowed": f"printable ASCII without spaces, at least {UPLOAD_TOKEN_CHARS_MIN}",
                "secret": True,
            },
        ),
    ] = None
    upload_host: Annotated[
        str,
        Meta(
            min_length=1,
            description="The address at which `up` takes uploads, without TLS: put a proxy that has"
            " it before any other than this one.",
        ),
    ] = "127.0.0.1"
    upload_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Its port; 0 takes a free one, and `up` says it.")
    ] = 8137

    def __rich_repr__(self) -> list[tuple[str, object]]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.upload_token is not None:
            fields["upload_token"] = "***"  # noqa: S105 - in its place
        return list(fields.items())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"

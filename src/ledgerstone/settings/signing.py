"""The section of the settings that belongs to signing: where its store lies, and its limits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class SigningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the records of signing are kept, and how."""

    data_dir: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="The folder that holds the folder `threshold-signing`; none means that of"
            " `KASPA_DATA_DIR`, or `.igra` in the working directory."
        ),
    ] = None
    migrate: Annotated[
        bool | None,
        Meta(
            description="Whether opening moves rows of the default column family into their own;"
            " none means what `KASPA_IGRA_ENABLE_MIGRATIONS` says."
        ),
    ] = None
    lock_timeout_seconds: Annotated[
        float,
        Meta(ge=0.001, le=30, description="How long a transaction waits for a key of another one."),
    ] = 5.0
    transaction_tries_max: Annotated[
        int,
        Meta(ge=1, le=100, description="Tries of a transaction that meets another one."),
    ] = 5
    value_bytes_max: Annotated[
        int, Meta(ge=1024, le=268_435_456, description="The largest value that is stored.")
    ] = 16_777_216
    work_seconds: Annotated[
        Annotated[float, Meta(ge=0.5, le=86_400)] | None,
        Meta(
            description="How often `up` and `work` look after the store, if there is one: they"
            " expire requests, forget seen messages, and do what the next three settings say; none"
            " means never."
        ),
    ] = 10.0
    publish: Annotated[
        bool,
        Meta(
            description="Whether finalized and rejected requests are published to the outbox; an"
            " archived request is then kept until it is."
        ),
    ] = False
    archive_days: Annotated[
        Annotated[int, Meta(ge=0, le=36_500)] | None,
        Meta(description="Days after its end at which a request is archived; none means never."),
    ] = None
    delete_days: Annotated[
        Annotated[int, Meta(ge=0, le=36_500)] | None,
        Meta(
            description="Days after its end at which an archived request is deleted, with its"
            " votes, inputs, signatures and trail; none means never."
        ),
    ] = None
    rocksdb_library: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The file of RocksDB's library; none means that of the system."),
    ] = None

"""The section of the settings that belongs to protocols."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the content of a protocol's events is kept; without `keep_days` for ever."""

    keep_days: Annotated[
        Annotated[float, Meta(ge=0, le=36_500)] | None,
        Meta(
            description="How long the content of events is kept behind a snapshot of the"
            " protocol's tables; without it everything is kept."
        ),
    ] = None
    snapshot_days: Annotated[
        float,
        Meta(ge=0.001, le=366, description="How often a snapshot is made, where events came in."),
    ] = 1.0


class ProtocolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which protocols a ledger runs, and how."""

    enabled: Annotated[
        bool,
        Meta(description="Whether the ledger has the room, its tables included."),
    ] = True
    folders: Annotated[
        list[str],
        Meta(description="The folders of the protocols that the ledger runs."),
    ] = []
    attempts_max: Annotated[
        int,
        Meta(ge=1, le=1000, description="Attempts after which an item is parked."),
    ] = 5
    retry_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="The wait after a first failure; it doubles each time."),
    ] = 1.0
    retry_seconds_max: Annotated[
        float, Meta(ge=0, le=86_400, description="The longest wait after a failure.")
    ] = 1024.0
    tick_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="How often a worker looks for jobs that are due.")
    ] = 1.0
    tick_lease_seconds: Annotated[
        float,
        Meta(ge=1, le=3600, description="How long a tick keeps others out without a sign of life."),
    ] = 60.0
    keep_keys_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36_500,
            description="How long the key of a command, and a refused settlement, is remembered.",
        ),
    ] = 30.0
    retention: Annotated[
        dict[str, Retention],
        Meta(description="By the name of a protocol, in place of what it declares itself."),
    ] = {}

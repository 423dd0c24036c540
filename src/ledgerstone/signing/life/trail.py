"""The trail of a request: every move, vote, signature and refusal, in order."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import ContextKey, TrailKey, request_prefix
from ledgerstone.signing.life import records
from ledgerstone.signing.values import U32, U64, GroupId, PeerId, RequestId, SigningRequest

DETAIL_CHARS_MAX = 500


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """The record that Ledgerstone keeps of a request beside the documented structure."""

    group_id: GroupId
    created_at_nanos: U64
    reserved_sompi: U64 = 0
    """The amount that its approval reserved of the volume; nothing before and after."""
    entries: U32 = 0
    """How many entries its trail has."""
    refusals: U32 = 0
    """How many votes were refused because the member had voted otherwise."""
    finished_at_nanos: U64 = 0
    """When it was finalized, rejected, expired or aborted, by our clock; 0 before."""


class Created(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request was inserted."""


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request moved from one state to another."""

    before: str
    after: str


class Voted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A member voted."""

    accept: bool


class VoteRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A member tried to change its vote."""

    accept: bool


class Signed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A member signed an input."""

    input_index: U32


Happened = Created | Moved | Voted | VoteRefused | Signed


class TrailEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry; `at_nanos` is by our clock, `actor` is a peer or empty for the service itself."""

    at_nanos: U64
    actor: PeerId
    happened: Happened
    detail: str = ""


def append(
    tx: Transaction,
    request: SigningRequest,
    context: RequestContext,
    entry: TrailEntry,
) -> RequestContext:
    """Write an entry and the context; the caller holds the lock of the request."""
    key = TrailKey(request_id=request.request_id, number=context.entries)
    short = msgspec.structs.replace(entry, detail=entry.detail[:DETAIL_CHARS_MAX])
    records.save(tx, key, short)
    after = msgspec.structs.replace(context, entries=context.entries + 1)
    records.save(tx, ContextKey(request_id=request.request_id), after)
    return after


def entries(reader: Reader, request_id: RequestId) -> Iterator[TrailEntry]:
    """The trail of a request, oldest first."""
    prefix = request_prefix(TrailKey, request_id)
    return records.scan(reader, TrailEntry, TrailKey.family, prefix)

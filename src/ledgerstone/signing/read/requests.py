"""A page of requests with what a person asks of each: votes, missing signatures, time left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ledgerstone.signing.access import Reader
from ledgerstone.signing.groups import roster
from ledgerstone.signing.keys import GroupKey
from ledgerstone.signing.life import records
from ledgerstone.signing.life.acks import list_signer_acks
from ledgerstone.signing.life.requests import find_context
from ledgerstone.signing.life.signatures import signatures_missing
from ledgerstone.signing.quorum import Votes, count_votes
from ledgerstone.signing.reading import list_requests
from ledgerstone.signing.states import FINISHED, Status
from ledgerstone.signing.values import GroupConfig, GroupId, SigningRequest

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

NANOS_PER_SECOND = 1_000_000_000


class RequestStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request stands.

    - `group_id` and `votes` are None of a request of another program that nobody has adopted.
    - `missing` says how many signatures each input still needs, while the request is open.
    - `ready`: every input of an approved request has its signatures.
    - `seconds_left` is None after the end, and negative if nobody has expired the request yet.
    """

    request: SigningRequest
    group_id: GroupId | None
    votes: Votes | None
    missing: dict[int, int]
    ready: bool
    seconds_left: int | None


class StandingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests by their ids; `after` is the cursor of the next page, if any."""

    requests: list[RequestStanding]
    after: bytes | None


def standing_requests(
    signing: Signing,
    *,
    status: Status | None = None,
    archived: bool = False,
    after: bytes | None = None,
    rows_max: int,
) -> StandingPage:
    """Active or archived requests in a state (none: in any), as they stand at one moment."""
    now_nanos = signing.clock()
    with signing.store.view() as view:
        page = list_requests(view, status=status, archived=archived, after=after, rows_max=rows_max)
        return StandingPage(
            requests=[_standing(view, each, now_nanos) for each in page.requests],
            after=page.after,
        )


def _standing(reader: Reader, request: SigningRequest, now_nanos: int) -> RequestStanding:
    request_id = request.request_id
    is_open = request.decision.status not in FINISHED
    context = find_context(reader, request_id)
    group = None
    if context is not None:
        group = records.find(reader, GroupConfig, GroupKey(group_id=context.group_id))
    votes, missing, ready = None, dict[int, int](), False
    if group is not None:
        acks = list_signer_acks(reader, request_id)
        votes = count_votes(roster(group), group.threshold_m, acks)
    if group is not None and is_open:
        found = signatures_missing(reader, request_id, group)
        missing, ready = found or {}, found is None
    left = (request.expires_at_nanos - now_nanos) // NANOS_PER_SECOND
    return RequestStanding(
        request=request,
        group_id=None if context is None else context.group_id,
        votes=votes,
        missing=missing,
        ready=ready,
        seconds_left=left if is_open else None,
    )

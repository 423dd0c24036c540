"""Pages of groups, events and requests."""

from __future__ import annotations

from typing import NamedTuple

from ledgerstone.errors import BadInput
from ledgerstone.signing.access import Reader
from ledgerstone.signing.keys import (
    ArchivedRequestKey,
    EventKey,
    GroupKey,
    RequestKey,
)
from ledgerstone.signing.life import records
from ledgerstone.signing.states import Status
from ledgerstone.signing.store import PAGE_ROWS_MAX
from ledgerstone.signing.values import (
    EventHash,
    GroupConfig,
    GroupId,
    SigningEvent,
    SigningRequest,
)

STEP_ROWS = 200
LOOKED_AT_MAX = 10_000


class GroupPage(NamedTuple):
    """Some groups by their ids; `after` is the cursor of the next page, if any."""

    groups: dict[GroupId, GroupConfig]
    after: bytes | None


class EventPage(NamedTuple):
    """Some events by their hashes; `after` is the cursor of the next page, if any."""

    events: dict[EventHash, SigningEvent]
    after: bytes | None


class RequestPage(NamedTuple):
    """Some requests; `after` is the cursor of the next page, if any."""

    requests: list[SigningRequest]
    after: bytes | None


def list_group_configs(reader: Reader, *, after: bytes | None, rows_max: int) -> GroupPage:
    """The next groups, by their ids."""
    page = reader.page(GroupKey.family, GroupKey.prefix, after=after, rows_max=rows_max)
    groups = {
        GroupId(key.removeprefix(GroupKey.prefix)): records.decoded(GroupConfig, key, value)
        for key, value in page.rows
    }
    return GroupPage(groups, page.after)


def list_events(reader: Reader, *, after: bytes | None, rows_max: int) -> EventPage:
    """The next events, by their hashes."""
    page = reader.page(EventKey.family, EventKey.prefix, after=after, rows_max=rows_max)
    events = {
        EventHash(key.removeprefix(EventKey.prefix)): records.decoded(SigningEvent, key, value)
        for key, value in page.rows
    }
    return EventPage(events, page.after)


def list_requests(
    reader: Reader, *, status: Status | None, archived: bool, after: bytes | None, rows_max: int
) -> RequestPage:
    """The next active or archived requests in a state (none: in any), by their ids.

    A page is empty only if no such request is left, and the last page has no cursor. So the search
    goes on behind the page, at most `LOOKED_AT_MAX` requests once it has found one.
    """
    if not 1 <= rows_max <= PAGE_ROWS_MAX:
        raise BadInput(f"a page has 1 to {PAGE_ROWS_MAX} rows, not {rows_max}")
    kind = ArchivedRequestKey if archived else RequestKey
    found: list[SigningRequest] = []
    last = after
    looked_at = 0
    # One more than the page has, to know whether there is a next page.
    rows_looked_at = max(rows_max + 1, STEP_ROWS)
    while True:
        page = reader.page(
            kind.family, kind.prefix, after=after, rows_max=min(rows_looked_at, PAGE_ROWS_MAX)
        )
        for key, value in page.rows:
            request = records.decoded(SigningRequest, key, value)
            if status is not None and request.decision.status is not status:
                continue
            if len(found) == rows_max:
                return RequestPage(found, last)
            found.append(request)
            last = key
        after = page.after
        looked_at += len(page.rows)
        if after is None or (found and looked_at >= LOOKED_AT_MAX):
            return RequestPage(found, after)

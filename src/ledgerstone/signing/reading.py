"""Pages of groups, events and requests."""

from __future__ import annotations

from typing import NamedTuple

from ledgerstone.signing.access import Reader
from ledgerstone.signing.keys import (
    ArchivedRequestKey,
    EventKey,
    GroupKey,
    RequestKey,
)
from ledgerstone.signing.life import records
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    EventHash,
    GroupConfig,
    GroupId,
    SigningEvent,
    SigningRequest,
)


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
    """The requests in a state (none: in any) among the next `rows_max` active or archived ones."""
    kind = ArchivedRequestKey if archived else RequestKey
    page = reader.page(kind.family, kind.prefix, after=after, rows_max=rows_max)
    found = [records.decoded(SigningRequest, key, value) for key, value in page.rows]
    wanted = [each for each in found if status is None or each.decision.status is status]
    return RequestPage(wanted, page.after)

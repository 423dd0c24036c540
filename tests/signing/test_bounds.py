"""What is exactly at a limit, and what two do at the same moment."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from ledgerstone.errors import BadInput, EventReplayed, TooLarge
from ledgerstone.signing.groups import check_group
from ledgerstone.signing.keys import SignatureKey, request_prefix
from ledgerstone.signing.life import acks, events, records, seen
from ledgerstone.signing.life.archive import archive_request
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import GroupPolicy, Rejected, RequestId, SessionId, Stored
from tests.harness.threads import aside, still_waits
from tests.signing.people import NOW, group, payment, peer
from tests.signing.world import Worlds

SESSION = SessionId(b"s" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"event_id": "x" * events.EVENT_ID_BYTES_MAX},
        {"metadata": {f"{n:02}": "" for n in range(events.METADATA_ENTRIES_MAX)}},
        {"metadata": {"n" * events.METADATA_NAME_BYTES_MAX: ""}},
        {"metadata": {"n": "v" * events.METADATA_VALUE_BYTES_MAX}},
        {"metadata": {f"{n:02}": "v" * 1022 for n in range(16)}},
        {"signature": bytes(events.SIGNATURE_BYTES_MAX)},
    ],
    ids=["id", "entries", "name", "value", "metadata", "signature"],
)
def test_an_event_at_its_limit(worlds: Worlds, change: dict[str, Any]) -> None:
    """An event that is as large as it may be is accepted."""
    assert worlds().event(payment(**change)).stored is Stored.NEW


def test_names_of_metadata_count(worlds: Worlds) -> None:
    """The names of metadata count like its values."""
    large = {f"{n:02}" + "n" * 50: "v" * 1000 for n in range(16)}

    with pytest.raises(TooLarge, match="metadata of at most"):
        worlds().event(payment(metadata=large))


def test_a_reason_is_measured_in_bytes(worlds: Worlds) -> None:
    """A reason of few characters may have too many bytes."""
    world = worlds()
    request = world.propose()

    with pytest.raises(TooLarge, match="a reason has at most"):
        world.vote(request, 1, accept=False, reason="é" * (acks.REASON_BYTES_MAX // 2 + 1))

    world.vote(request, 1, accept=False, reason="é" * (acks.REASON_BYTES_MAX // 2))


def test_the_reasons_of_many(worlds: Worlds) -> None:
    """The reason of a rejection is bounded, however many members gave long ones."""
    world = worlds(3, 5)
    request = world.propose()

    votes = [
        world.vote(request, n, accept=False, reason=str(n) * acks.REASON_BYTES_MAX)
        for n in (1, 2, 3)
    ]

    assert votes[-1].decision == Rejected(reason="1" * acks.REASON_BYTES_MAX)


def test_a_group_of_one_amount() -> None:
    """The least amount may be the largest one."""
    policy = GroupPolicy(min_amount_sompi=7, max_amount_sompi=7)

    assert check_group(msgspec.structs.replace(group(2, 3), policy=policy))


def test_two_peers_of_one_key() -> None:
    """A member key that two peers name is refused: one member would vote twice."""
    config = group(2, 3)
    extra = dict(config.group_metadata.extra)
    extra["peer:another"] = next(iter(extra.values()))
    metadata = msgspec.structs.replace(config.group_metadata, extra=extra)

    with pytest.raises(BadInput, match="exactly one peer"):
        check_group(msgspec.structs.replace(config, group_metadata=metadata))


def test_one_id_for_two_events_at_once(worlds: Worlds) -> None:
    """An event waits for another one of its id that is being accepted, and is refused then."""
    world = worlds()

    def second() -> object:
        try:
            return world.event(payment(timestamp_nanos=NOW + 1)).stored
        except EventReplayed:
            return EventReplayed

    with ExitStack() as beside, world.store.transaction() as tx:
        events.insert_event(tx, payment())
        other = beside.enter_context(aside(second))
        still_waits(other)

    assert other.result() is EventReplayed


def test_one_message_at_once(worlds: Worlds) -> None:
    """A message that another transaction is marking is not seen for the first time."""
    world = worlds()

    def second() -> bool:
        return world.signing.mark_seen_message(peer(1), SESSION, 1)

    with ExitStack() as beside, world.store.transaction() as tx:
        first = seen.mark_seen_message(tx, peer(1), SESSION, 1, now_nanos=NOW)
        other = beside.enter_context(aside(second))
        still_waits(other)

    assert (first, other.result()) == (True, False)


def test_archived_at_the_moment(worlds: Worlds) -> None:
    """What ended before a moment is archived, and what ended at it is not yet."""
    world = worlds()
    world.abort(world.propose())

    with world.store.transaction() as tx:
        archived = [
            archive_request(tx, RequestId("r1"), before_nanos=moment) for moment in (NOW, NOW + 1)
        ]

    assert archived == [False, True]


def test_a_paid_event_without_its_signatures(worlds: Worlds) -> None:
    """An event that was paid is spent, also if its signatures are not there any more."""
    world = worlds()
    request = world.signed()
    world.finalize(request)
    with world.store.transaction() as tx:
        for key, _ in records.rows(tx, SignatureKey.family, request_prefix(SignatureKey, request)):
            tx.delete(SignatureKey.family, key)
    world.signing.archive_old_requests(NOW + 1)

    with pytest.raises(EventReplayed, match="had the request"):
        world.event(payment())


def test_requests_in_a_state(worlds: Worlds) -> None:
    """A list of the requests in a state has no others."""
    world = worlds()
    world.abort(world.propose("r1", payment(1)))
    world.propose("r2", payment(2))
    world.approved("r3", payment(3))

    listed = {
        status: [each.request_id for each in world.signing.list_requests(status=status).requests]
        for status in (None, Status.PENDING, Status.APPROVED, Status.ABORTED, Status.EXPIRED)
    }

    assert listed == {
        None: ["r1", "r2", "r3"],
        Status.PENDING: ["r2"],
        Status.APPROVED: ["r3"],
        Status.ABORTED: ["r1"],
        Status.EXPIRED: [],
    }

"""The audit report of a request."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone.errors import NotFound
from ledgerstone.signing.keys import RequestKey
from ledgerstone.signing.life import audit, records
from ledgerstone.signing.life.trail import Created, Moved, Signed, Voted
from ledgerstone.signing.values import RequestId
from tests.signing.people import payment
from tests.signing.world import Worlds

GONE = RequestId("gone")


def test_everything(worlds: Worlds) -> None:
    """The report holds every part of a request, and what is on record of it."""
    world = worlds()
    request = world.signed()
    world.vote(request, 3, accept=False, reason="late")
    world.finalize(request)

    with world.store.transaction() as tx:
        report = audit.audit_request(tx, request)

    assert report.event == payment()
    assert report.group == world.config
    assert report.proposal is not None
    assert (len(report.inputs), len(report.acks), len(report.signatures)) == (2, 3, 4)
    assert report.missing == {}
    assert report.votes is not None
    assert (report.votes.accepts, report.votes.rejects) == (2, 1)
    assert [type(entry.happened) for entry in report.trail] == [
        Created,
        Voted,
        Voted,
        Moved,
        *[Signed] * 4,
        Voted,
        Moved,
    ]
    document = msgspec.json.decode(report.as_json())
    assert document["request"]["final_tx_id"] == "66" * 32
    assert document["request"]["decision"] == {"type": "Finalized"}
    assert document["proposal"]["kpsbt_blob"] == b"kpsbt".hex()


def test_parts_that_are_missing(worlds: Worlds) -> None:
    """A request of another program has a report, too; an unknown one is NotFound."""
    world = worlds()
    request = world.new_request("r1", payment())
    with world.store.transaction() as tx:
        records.save(tx, RequestKey(request_id=request.request_id), request)
        report = audit.audit_request(tx, request.request_id)
        with pytest.raises(NotFound):
            audit.audit_request(tx, GONE)

    assert report.request == request
    assert (report.context, report.group, report.event, report.votes) == (None,) * 4
    assert msgspec.json.decode(report.as_json())["trail"] == []

"""The façade: opened from a folder or settings, each documented operation under its name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ledgerstone import signing as room
from ledgerstone.errors import (
    BadInput,
    EnvelopeRefused,
    KeyConflict,
    LibraryMissing,
    Malformed,
    MessageReplayed,
    MoveNotAllowed,
    NotAllowedNow,
    NotFound,
    RequestExpired,
    StoreBusy,
    StoreCorrupt,
    StoreLocked,
    VoteChanged,
)
from ledgerstone.settings import Settings, SigningSettings
from ledgerstone.signing import Signing, upkeep
from ledgerstone.signing.app_config import AppConfig
from ledgerstone.signing.keys import AckKey, Family, RequestKey
from ledgerstone.signing.life import records
from ledgerstone.signing.life.trail import VoteRefused
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    Aborted,
    Approved,
    Expired,
    Finalized,
    Pending,
    Rejected,
    RequestDecision,
    SessionId,
    SignerAckRecord,
    Stored,
)
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.signing.people import DAY, KAS, NOW, payment, peer
from tests.signing.test_app_config import QUICK
from tests.signing.test_envelope import SECOND, Clock, checks, sealed
from tests.signing.world import MINUTE, TEMPLATE, Worlds, an_input

DOCUMENTED = """
    upsert_group_config get_group_config insert_event get_event insert_request get_request
    update_request_decision update_request_final_tx update_request_final_tx_score insert_proposal
    get_proposal insert_request_input list_request_inputs insert_signer_ack list_signer_acks
    insert_partial_sig list_partial_sigs get_volume_since mark_seen_message cleanup_seen_messages
    begin_batch archive_old_requests delete_old_archives compact health_check create_checkpoint
"""


def test_every_documented_operation() -> None:
    """Each has a method of its name."""
    assert [name for name in DOCUMENTED.split() if not callable(getattr(Signing, name))] == []


def test_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, the settings' section, all settings, and the environment."""
    section = SigningSettings(data_dir=str(tmp_path / "a"))
    monkeypatch.setenv("KASPA_DATA_DIR", str(tmp_path / "c"))

    with (
        Signing(tmp_path / "direct") as first,
        Signing(settings=section) as second,
        Signing(settings=Settings(signing=SigningSettings(data_dir=str(tmp_path / "b")))) as third,
        Signing() as fourth,
    ):
        folders = [each.store.folder for each in (first, second, third, fourth)]
        with pytest.raises(StoreLocked):
            Signing(tmp_path / "direct")
        assert abs(first.clock() - time.time_ns()) < WAIT_SECONDS_MAX * SECOND

    places = ["direct", *(f"{name}/threshold-signing" for name in "abc")]
    assert folders == [tmp_path / place for place in places]


def test_without_the_extra() -> None:
    """The error names the extra to install."""
    code = (
        "import sys; sys.modules['coincurve'] = None\n"
        "from ledgerstone.errors import Unsupported\n"
        "try:\n"
        "    from ledgerstone.signing import Signing\n"
        "except Unsupported as error:\n"
        "    print(error.hint)\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=True,
    )

    assert ended.stdout.strip() == "install ledgerstone[signing]"
    with pytest.raises(AttributeError):
        _ = room.nothing


def test_without_the_library(tmp_path: Path) -> None:
    """The error names the package of RocksDB."""
    settings = SigningSettings(rocksdb_library="librocksdb-of-nobody.so")

    with pytest.raises(LibraryMissing) as raised:
        Signing(tmp_path, settings=settings)

    assert "librocksdb7.8" in (raised.value.hint or "")


def test_all_or_nothing(worlds: Worlds) -> None:
    """A proposal with one input that cannot be stored stores nothing of it."""
    world = worlds()
    before = world.rows()
    wrong = msgspec.structs.replace(an_input("r1", 0), input_index=1000)

    with pytest.raises(BadInput):
        world.signing.propose(
            world.new_request("r1", payment(), inputs=1),
            group_id=world.group_id,
            event=payment(),
            inputs=[an_input("r1", 0), wrong],
            kpsbt_blob=b"kpsbt",
        )

    assert world.rows() == before


def test_part_by_part(worlds: Worlds) -> None:
    """A request can be built by the documented calls, one after the other."""
    world = worlds()
    signing = world.signing
    event_hash = signing.insert_event(payment()).event_hash
    request = world.new_request("r1", payment())
    world.request(request)
    for index in (0, 1):
        signing.insert_request_input(request.request_id, an_input("r1", index))

    review = signing.review_request(request.request_id)

    assert signing.get_event(event_hash) == payment()
    assert signing.get_request(request.request_id) == request
    assert signing.get_group_config(world.group_id) == world.config
    assert [each.input_index for each in signing.list_request_inputs(request.request_id)] == [0, 1]
    assert review.reason == ""
    assert signing.missing_signatures(request.request_id) == {0: 2, 1: 2}
    with pytest.raises(NotFound):
        signing.get_proposal(request.request_id)


def test_a_changed_vote_is_on_record(worlds: Worlds) -> None:
    """It raises, the first vote stands, and the trail shows the attempt."""
    world = worlds()
    name = world.propose()
    world.vote(name, 1)

    with pytest.raises(VoteChanged):
        world.vote(name, 1, accept=False, reason="\x1b[2J")

    report = world.signing.audit_request(name)
    assert report.trail[-1].happened == VoteRefused(accept=False)
    assert world.signing.list_signer_acks(name)[0].accept is True
    text = report.as_text()
    assert "peer-1  tried to change its vote to reject: \\x1b[2J" in text
    assert "\x1b" not in text


def test_the_readable_report(worlds: Worlds) -> None:
    """It tells every part of a request, a fact a line."""
    world = worlds()
    name = world.signed()
    world.finalize(name)
    world.signing.update_request_final_tx_score(name, 77)

    lines = world.signing.audit_request(name).as_text().splitlines()

    assert lines[0] == "request      r1"
    assert "state        finalized" in lines
    assert f"transaction  {'66' * 32}, accepted at blue score 77" in lines
    assert "votes        2 accept, 0 reject, 2 of 3 needed" in lines
    assert "     signed by peer-1, peer-2" in lines
    assert any(line.endswith("peer-1  approved to finalized: " + "66" * 32) for line in lines)
    assert any(line.startswith("  2024-10-04T12:00:00.000000000Z") for line in lines)


def test_pages(worlds: Worlds) -> None:
    """Groups, events and requests are listed page by page, requests also by their state."""
    world = worlds()
    for number in range(3):
        world.propose(f"r{number}", payment(number))
    world.abort(world.signing.list_requests().requests[1].request_id)

    first = world.signing.list_requests(rows_max=2)
    second = world.signing.list_requests(after=first.after, rows_max=2)
    pending = world.signing.list_requests(status=Status.PENDING)

    assert [each.request_id for each in first.requests + second.requests] == ["r0", "r1", "r2"]
    assert [each.request_id for each in pending.requests] == ["r0", "r2"]
    assert world.signing.list_group_configs().groups == {world.group_id: world.config}
    events = world.signing.list_events(rows_max=2)
    assert len(events.events) == 2
    assert len(world.signing.list_events(after=events.after).events) == 1


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        (Approved(), MoveNotAllowed),
        (Rejected(reason="no"), MoveNotAllowed),
        (Expired(), NotAllowedNow),
        (Finalized(), MoveNotAllowed),
        (Aborted(reason="x"), None),
        (Pending(), None),
    ],
)
def test_decisions_need_their_facts(
    worlds: Worlds, decision: RequestDecision, error: type[Exception] | None
) -> None:
    """A pending request without votes and within its time can be aborted, and nothing else."""
    world = worlds()
    name = world.propose()

    if error is not None:
        with pytest.raises(error):
            world.signing.update_request_decision(name, decision)
        assert world.decision(name) == Pending()
    else:
        same = isinstance(decision, Pending)
        told = world.signing.update_request_decision(name, decision)
        assert told is (Stored.SAME if same else Stored.NEW)
        assert world.decision(name) == decision


@pytest.mark.parametrize("accept", [True, False])
def test_votes_that_were_never_counted(worlds: Worlds, accept: bool) -> None:
    """A request of another program is decided by its stored votes when that is asked for."""
    world = worlds()
    name = world.propose()
    ack = SignerAckRecord(signer_peer_id=peer(1), accept=accept, timestamp_nanos=NOW)
    with world.store.transaction() as tx:
        for number in (1, 2):
            stored = msgspec.structs.replace(ack, signer_peer_id=peer(number))
            records.save(tx, AckKey(request_id=name, peer_id=peer(number)), stored)
    wanted: RequestDecision = Approved() if accept else Rejected(reason="")

    world.now += MINUTE
    with pytest.raises(RequestExpired):
        world.signing.update_request_decision(name, wanted)
    world.now -= MINUTE
    assert world.signing.update_request_decision(name, wanted) is Stored.NEW

    assert world.decision(name).status is wanted.status
    assert world.signing.reserved_volume() == (10 * KAS if accept else 0)


def test_an_expiry_that_is_asked_for(worlds: Worlds) -> None:
    """After its time a request is expired by name, too; an approved one is not finalized so."""
    world = worlds()
    name = world.approved()

    with pytest.raises(NotAllowedNow, match="final transaction"):
        world.signing.update_request_decision(name, Finalized())
    world.now += MINUTE

    assert world.signing.update_request_decision(name, Expired()) is Stored.NEW
    assert world.signing.reserved_volume() == 0


def test_volume(worlds: Worlds) -> None:
    """It counts whole UTC days by our clock; a moment before 1970 is refused."""
    world = worlds()
    world.finalize(world.signed("r1", payment(1, timestamp_nanos=0)))
    world.now += DAY
    world.finalize(world.signed("r2", payment(2)))

    assert world.signing.get_volume_since(0) == 20 * KAS
    assert world.signing.get_volume_since(world.now) == world.signing.volume_today() == 10 * KAS
    with pytest.raises(BadInput):
        world.signing.get_volume_since(-1)


def test_an_envelope_once(worlds: Worlds) -> None:
    """A peer's message is accepted once; a new epoch of the peer is not a replay."""
    world = worlds()
    door = checks(Clock())

    assert world.signing.accept_envelope(door, sealed()) == b"hello"
    with pytest.raises(MessageReplayed):
        world.signing.accept_envelope(door, sealed())
    assert world.signing.accept_envelope(door, sealed(seq_no=1 << 32 | 1)) == b"hello"
    with pytest.raises(EnvelopeRefused):
        world.signing.accept_envelope(door, sealed(signer=2, seq_no=9))
    assert world.signing.mark_seen_message(peer(1), SessionId(b"s" * 32), 9)


def test_forgetting_messages(worlds: Worlds) -> None:
    """A message that is forgotten by default is too old to be accepted again."""
    world = worlds()
    door = checks(Clock())
    latest = sealed(timestamp_nanos=NOW + 5 * 60 * SECOND)
    world.signing.accept_envelope(door, latest)
    world.now += 2 * DAY + 5 * 60 * SECOND

    assert world.signing.cleanup_seen_messages().deleted == 0
    with pytest.raises(EnvelopeRefused):
        world.signing.accept_envelope(door, latest)
    world.now += 1
    assert world.signing.cleanup_seen_messages().deleted == 1
    with pytest.raises(EnvelopeRefused):
        world.signing.accept_envelope(door, latest)


@pytest.mark.parametrize("ahead", [3600 * SECOND, DAY])
def test_a_clock_that_comes_back(worlds: Worlds, ahead: int) -> None:
    """A message that a clock which was ahead forgot is refused after the clock came back."""
    world = worlds()
    door = checks(Clock())
    latest = sealed(timestamp_nanos=NOW + 5 * 60 * SECOND)
    world.signing.accept_envelope(door, latest)

    world.now += DAY + 5 * 60 * SECOND + ahead
    world.signing.cleanup_seen_messages()
    world.now -= ahead

    with pytest.raises(MessageReplayed):
        world.signing.accept_envelope(door, latest)


def test_the_configuration(worlds: Worlds) -> None:
    """It is kept under its documented key; that of another program is left as it is."""
    world = worlds()
    config = AppConfig(derivation=QUICK, settings={"node": "here"})
    assert world.signing.get_app_config() is None

    world.signing.put_app_config(config)
    world.signing.put_app_config(config)

    assert world.signing.get_app_config() == config
    with world.store.transaction() as tx:
        tx.put(Family.DEFAULT, b"cfg:app", b"{}")
    with pytest.raises(Malformed):
        world.signing.put_app_config(config)
    with pytest.raises(Malformed):
        world.signing.get_app_config()


def test_a_batch(worlds: Worlds) -> None:
    """Rows of several families are written together or not at all; unknown keys are refused."""
    world = worlds()
    seen = b"seen:p:" + bytes(32) + b":" + bytes(8)
    before = world.rows()

    with world.signing.begin_batch() as undone:
        undone.insert(b"req:x", b"1")
    with world.signing.begin_batch() as batch:
        assert batch.insert(b"req:x", b"1") is Stored.NEW
        assert batch.insert(seen, bytes(8)) is Stored.NEW
        with pytest.raises(KeyConflict):
            batch.insert(b"req:x", b"2")
        with pytest.raises(Malformed):
            batch.insert(b"nothing", b"")
        batch.commit()
    with world.signing.begin_batch() as deleting:
        deleting.delete(seen)
        deleting.commit()

    assert world.rows() == before | {(Family.REQUEST, b"req:x"): b"1"}


def test_a_stuck_transaction_stops_nobody_else(worlds: Worlds) -> None:
    """While one request is locked, another one goes on, and the sweeper reports the locked one."""
    world = worlds()
    for number in (1, 2):
        world.propose(f"r{number}", payment(number))
    world.signing.close()
    settings = SigningSettings(lock_timeout_seconds=0.01, transaction_tries_max=2)
    with Signing(world.store.folder, settings=settings, clock=lambda: NOW + MINUTE) as signing:
        with signing.store.transaction() as stuck:
            stuck.get_for_update(Family.REQUEST, b"req:r1")
            step = signing.expire_requests()
        again = signing.expire_requests()

    assert (step.expired, again.expired) == (["r2"], ["r1"])
    assert isinstance(step.errors["r1"], StoreBusy)


@pytest.mark.slow
def test_damage_and_restore(worlds: Worlds, tmp_path: Path) -> None:
    """A flipped byte of a request's data file is reported; the checkpoint brings all of it back."""
    world = worlds()
    name = world.signed()
    world.finalize(name)
    world.store.database.flush()
    world.signing.create_checkpoint(tmp_path / "checkpoint")
    report = world.signing.audit_request(name)
    key = RequestKey(request_id=name).encode()
    folder = world.store.folder
    world.signing.close()
    hit = [file for file in folder.glob("*.sst") if key in file.read_bytes()]
    assert hit
    for file in hit:
        content = bytearray(file.read_bytes())
        content[content.index(key) + len(key) + 20] ^= 1
        # The checkpoint shares its files by hard links.
        file.unlink()
        file.write_bytes(content)

    with pytest.raises(StoreCorrupt), Signing(folder) as damaged:
        damaged.get_request(name)
    shutil.move(folder, tmp_path / "damaged")
    upkeep.restore_checkpoint(tmp_path / "checkpoint", folder)

    with Signing(folder) as restored:
        assert restored.audit_request(name) == report
        assert restored.get_volume_since(0) == 10 * KAS
        assert restored.health_check().ok
        assert restored.disk_usage().total_bytes > 0
        restored.compact()
        assert restored.statistics().families["request"].rows_estimate >= 1
        assert restored.back_up(tmp_path / "backups").number == 1


def test_the_template_hash_is_part_of_the_request(worlds: Worlds) -> None:
    """A request whose inputs do not give its validation hash is rejected at its approval."""
    world = worlds()
    request = msgspec.structs.replace(world.new_request("r1", payment()), validation_hash=TEMPLATE)
    world.signing.propose(
        request,
        group_id=world.group_id,
        event=payment(),
        inputs=[an_input("r1", 0)],
        kpsbt_blob=b"",
    )

    review = world.signing.review_request(request.request_id)
    world.vote(request.request_id, 1)
    world.vote(request.request_id, 2)

    assert review.mismatches == ("validation_hash_mismatch",)
    assert isinstance(world.decision(request.request_id), Rejected)

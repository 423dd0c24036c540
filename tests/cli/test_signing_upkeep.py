"""`ledgerstone signing` for operators: where the store lies, archive, copies, damage, size."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerstone.signing.keys import Family
from ledgerstone.signing.signing import Signing
from ledgerstone.signing.values import GroupId, PeerId, RequestId, SessionId, SigningRequest
from tests.cli.program import Program
from tests.cli.treasury import TX, Treasury
from tests.signing.people import address, payment

pytestmark = pytest.mark.slow


@pytest.fixture
def treasury(program: Program) -> Treasury:
    """A group of 2 of 3."""
    return Treasury(program, 2, 3)


def flip_a_byte(folder: Path) -> None:
    """Damage the largest data file."""
    file = max(folder.glob("**/*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[20] ^= 0xFF
    file.unlink()
    file.write_bytes(content)


def test_the_data_folder_is_looked_for_in_order(program: Program) -> None:
    """--data comes before the settings, those before the environment, and .igra is last."""
    program.environment["KASPA_DATA_DIR"] = "by-environment"
    key = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
    new = ("signing", "group", "new", "--threshold=1", f"--member=ann={key}")

    program.run(*new)
    (program.folder / "ledgerstone.toml").write_text('[signing]\ndata_dir = "by-settings"\n')
    program.run(*new)
    program.run(*new, "--data=by-option")
    (program.folder / "ledgerstone.toml").unlink()
    del program.environment["KASPA_DATA_DIR"]
    program.run(*new)

    made = {path.parent.name for path in program.folder.glob("*/threshold-signing")}
    assert made == {"by-environment", "by-settings", "by-option", ".igra"}


def test_requests_are_archived_and_deleted(treasury: Treasury) -> None:
    """Requests that ended are archived, then deleted with everything; open ones stay."""
    treasury.sign("r1")
    treasury.call("finalize", "r1", TX)
    treasury.propose("r2")

    unsaid = treasury.refused("archive")
    kept = treasury.call("archive", "--days=1")
    archived = treasury.call("archive", "--days=0")
    listed = treasury.call("request", "list", "--archived")["requests"]
    deleted = treasury.run("archive", "--delete", "--days=0")
    gone = treasury.refused("audit", "r1")

    message = "how long ago a request must have ended is not said"
    assert unsaid == (1, "bad_input", message)
    assert kept["archived"] == []
    assert archived["archived"] == ["r1"]
    assert [each["request_id"] for each in listed] == ["r1"]
    assert deleted.out == "1 deleted that ended more than 0 days ago\n  r1\n"
    assert gone == (1, "not_found", "there is no request 'r1'")
    active = treasury.call("request", "list")["requests"]
    assert [each["request_id"] for each in active] == ["r2"]
    words = ("event", "new", "invoice-r1", "--to", address(1), "--amount=10", "--by=ann")
    code, name, message = treasury.refused(*words)
    assert (code, name) == (1, "event_replayed")
    assert message.startswith("the source gave the id 'invoice-r1' to the event ")


def test_a_bar_is_shown_on_a_terminal_only(treasury: Treasury) -> None:
    """Long work shows a bar on a terminal; a pipe and a program see none."""
    with treasury.program.show("signing", "archive", "--days=0") as seen:
        seen.ended()
    piped = treasury.run("archive", "--days=0")

    assert "Requests" in seen.said
    assert piped.out == "0 archived that ended more than 0 days ago\n"
    assert piped.err == ""


def test_a_checkpoint_brings_everything_back(treasury: Treasury) -> None:
    """A checkpoint is verified and restored elsewhere; nothing is overwritten."""
    treasury.sign()
    treasury.call("checkpoint", "copy")

    verified = treasury.call("verify", "copy")
    taken = treasury.refused("checkpoint", "copy")
    overwriting = treasury.refused("restore", "copy")
    treasury.call("restore", "copy", "--data=restored")

    assert verified["rows"]["partial_sig"] == 4
    assert taken == (1, "not_allowed_now", "copy exists")
    assert overwriting == (1, "not_allowed_now", ".igra/threshold-signing is not empty")
    restored = treasury.call("finalize", "r1", TX, "--data=restored")
    assert restored["state"] == "finalized"


def test_backups_are_kept_verified_and_restored(treasury: Treasury) -> None:
    """Backups have numbers; the newest or a named one is restored."""
    treasury.propose("r1")
    first = treasury.call("backup", "backups")
    treasury.propose("r2")
    treasury.call("backup", "backups", "--keep=2")

    newest = treasury.call("verify", "backups")
    unknown = treasury.refused("verify", "backups", "--number=9")
    treasury.call("restore", "backups", "--number=1", "--data=restored")

    assert first["backup"]["number"] == 1
    assert newest["rows"]["request"] == 2
    assert unknown == (1, "not_found", "backups has no backup 9")
    listed = treasury.call("request", "list", "--data=restored")["requests"]
    assert [each["request_id"] for each in listed] == ["r1"]


def test_there_must_be_something_to_restore(treasury: Treasury) -> None:
    """A folder that is neither a checkpoint nor of backups is told."""
    for verb in ("verify", "restore"):
        found = treasury.refused(verb, "nothing")

        message = "there is neither a checkpoint nor a folder of backups in nothing"
        assert found == (1, "not_found", message)


def test_damage_is_reported(treasury: Treasury) -> None:
    """A flipped byte in a data file ends `verify` with exit 1 and the code of damage."""
    treasury.sign()
    treasury.call("checkpoint", "copy")
    flip_a_byte(treasury.program.folder / "copy")

    code, error, _ = treasury.refused("verify", "copy")
    restoring = treasury.run("restore", "copy", "--data=restored", "--json")

    assert (code, error) == (1, "store_corrupt")
    assert (restoring.code, restoring.json["error"]["code"]) == (1, "store_corrupt")
    assert not (treasury.program.folder / "restored" / "threshold-signing").exists()


def test_health_sees_damage(treasury: Treasury) -> None:
    """`health` is exit 0 on a whole store and exit 1 on a damaged one."""
    treasury.sign()
    treasury.call("compact")
    whole = treasury.call("health")
    flip_a_byte(treasury.program.folder / ".igra")

    damaged = treasury.run("health")

    assert whole["ok"] is True
    assert whole["health"]["problems"] == []
    assert damaged.code == 1
    assert "orrupt" in damaged.out + damaged.err


def test_statistics_and_compaction_tell_sizes(treasury: Treasury) -> None:
    """`stats` has every family; `compact` says what it brought."""
    treasury.sign()

    compacted = treasury.call("compact")
    one = treasury.run("compact", "--family=seen")
    facts = treasury.call("stats", "--full")

    assert set(compacted) == {"family", "bytes_before", "bytes_after"}
    assert " before, " in one.out
    assert facts["families"]["partial_sig"]["rows_estimate"] == 4
    assert len(facts["families"]) == 10
    assert facts["disk"]["total_bytes"] > 0
    assert "DB Stats" in facts["text"]


def test_a_store_is_exported_and_imported(treasury: Treasury) -> None:
    """The export is a new file for its owner only; imported it is the same store, also twice."""
    treasury.sign()
    written = treasury.call("export", "store.jsonl")
    file = treasury.program.folder / "store.jsonl"

    taken = treasury.refused("export", "store.jsonl")
    piped = treasury.run("export", "-")
    first = treasury.call("import", "store.jsonl", "--data=other")
    second = treasury.call("import", "store.jsonl", "--data=other")

    assert file.stat().st_mode & 0o777 == 0o600
    assert piped.out == file.read_text()
    assert taken == (1, "not_allowed_now", "store.jsonl exists")
    assert first == {"stored": written["rows"], "same": 0}
    assert second == {"stored": 0, "same": written["rows"]}
    assert treasury.call("audit", "r1", "--data=other") == treasury.call("audit", "r1")


def test_a_torn_export_is_told(treasury: Treasury) -> None:
    """A file that was cut off, or is no export at all, is exit 1."""
    treasury.call("export", "store.jsonl")
    file = treasury.program.folder / "store.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[:-1]))
    (treasury.program.folder / "other").write_bytes(b"\xff\xfe")

    torn = treasury.refused("import", "store.jsonl", "--data=there")
    other = treasury.refused("import", "other", "--data=there")
    missing = treasury.refused("import", "nothing", "--data=there")

    message = f"the file ends after {len(whole) - 2} rows without its last line"
    assert torn == (1, "malformed", message)
    assert other[:2] == (1, "malformed")
    assert missing == (1, "not_found", "there is no file nothing")


def test_a_line_without_end_is_not_read(treasury: Treasury) -> None:
    """A line that is longer than any export has is told before it is read to its end."""
    with (treasury.program.folder / "long").open("wb") as file:
        file.truncate(64 * 1024 * 1024)

    found = treasury.refused("import", "long", "--data=there")

    assert found == (1, "malformed", "a line of the file has more than 50,331,648 characters")


def test_old_messages_are_forgotten(treasury: Treasury) -> None:
    """`seen forget` leaves what could still arrive again, and takes what is older."""
    treasury.call("seen", "mark", "bob", "ab" * 32, 1)

    by_default = treasury.call("seen", "forget")
    everything = treasury.run("seen", "forget", "--before=2500-01-01T00:00:00Z")

    assert by_default == {"forgotten": 0, "errors": {}}
    assert everything.out == "1 forgotten\n"


def test_status_and_doctor_without_a_store(program: Program) -> None:
    """Where there is no store of signing, nothing is said of it."""
    program.run("migrate")

    status = program.run("status")
    doctor = program.run("doctor", "--json").json

    assert "Signing" not in status.out
    assert program.run("status", "--json").json["signing"] is None
    assert "signing" not in {check["name"] for check in doctor["checks"]}


def test_status_and_doctor_beside_a_service(treasury: Treasury) -> None:
    """They show the store of signing, also while another process has it open."""
    treasury.program.run("migrate")
    treasury.sign("r1")
    treasury.call("finalize", "r1", TX)
    treasury.approve("r2", "5")
    treasury.propose("r3")

    with Signing(treasury.program.folder / ".igra" / "threshold-signing"):
        status = treasury.program.run("status")
        facts = treasury.program.run("status", "--json").json["signing"]
        doctor = treasury.program.run("doctor", "--json")

    assert "Signing  open 2  paid today 10 KAS  reserved 5 KAS" in status.out
    assert facts["folder"] == ".igra/threshold-signing"
    assert (facts["open_requests"], facts["overdue"], facts["trouble"]) == (2, 0, None)
    verdicts = {each["name"]: each["verdict"] for each in doctor.json["checks"]}
    assert (doctor.code, verdicts["signing"]) == (0, "ok")


def test_status_and_doctor_say_damage(treasury: Treasury) -> None:
    """A store that cannot be read is said by both; `doctor` is exit 1 and says what to do."""
    treasury.program.run("migrate")
    treasury.propose("r1")
    treasury.call("compact")
    folder = treasury.program.folder / ".igra" / "threshold-signing"
    flip_a_byte(folder)
    damaged = treasury.program.run("doctor", "--json")
    (folder / "CURRENT").write_text("MANIFEST-999999\n")

    status = treasury.program.run("status")
    doctor = treasury.program.run("doctor", "--json")

    for ended in (damaged, doctor):
        checks = [each for each in ended.json["checks"] if each["name"] == "signing"]
        assert ended.code == 1
        assert checks
        assert all(each["verdict"] == "problem" for each in checks)
    assert status.code == 0
    assert "Signing" in status.out


def test_doctor_sees_who_can_read_and_what_is_late(treasury: Treasury) -> None:
    """A folder that is open to others, and requests that nobody expires, are warnings."""
    treasury.program.run("migrate")
    treasury.propose("r1")
    folder = treasury.program.folder / ".igra" / "threshold-signing"
    folder.chmod(0o755)
    with Signing(folder) as signing:
        event = payment(2)
        world_event = signing.insert_event(event).event_hash
        request = SigningRequest(
            request_id=RequestId("late"),
            session_id=SessionId(bytes(32)),
            event_hash=world_event,
            coordinator_peer_id=PeerId("ann"),
            tx_template_hash=bytes(32),
            validation_hash=bytes(32),
            expires_at_nanos=2,
        )
        signing.clock = lambda: 1
        signing.insert_request(request, group_id=GroupId(bytes.fromhex(treasury.group_id)))

    doctor = treasury.program.run("doctor", "--json")

    found = {each["found"] for each in doctor.json["checks"] if each["name"] == "signing"}
    assert doctor.code == 0
    assert len(found) == 2
    assert "1 requests ran out of time and are not expired" in found


def test_doctor_sees_rows_that_were_not_moved(treasury: Treasury) -> None:
    """Rows of before there were families are a warning, until they are moved."""
    treasury.program.run("migrate")
    folder = treasury.program.folder / ".igra" / "threshold-signing"
    with Signing(folder) as signing, signing.store.transaction() as tx:
        for key in (b"evt:old", b"req:old", b"archive:req:old", b"cfg:app"):
            tx.put(Family.DEFAULT, key, b"{}")

    def found() -> list[str]:
        checks = treasury.program.run("doctor", "--json").json["checks"]
        return [each["found"] for each in checks if each["name"] == "signing"]

    before = found()
    treasury.run("compact", KASPA_IGRA_ENABLE_MIGRATIONS="true")

    words = "the default family holds rows of event, request: nothing looks for them there"
    assert before == [words]
    assert found() == [".igra/threshold-signing is whole"]

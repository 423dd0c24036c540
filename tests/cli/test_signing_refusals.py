"""`ledgerstone signing`: everything that is refused, with its exit code and its message."""

from __future__ import annotations

import time

import msgspec
import pytest

from ledgerstone.signing.signing import Signing
from ledgerstone.testing.waiting import until
from tests.cli.program import Program
from tests.cli.treasury import TX, Treasury
from tests.signing.people import address

pytestmark = pytest.mark.slow

UNKNOWN = "00" * 32


@pytest.fixture
def treasury(program: Program) -> Treasury:
    """A group of 2 of 3."""
    return Treasury(program, 2, 3)


def run_out(treasury: Treasury) -> None:
    """Wait until the time of the request r1 has run out."""
    limit = treasury.call("request", "show", "r1")["request"]["expires_at_nanos"]
    until(lambda: time.time_ns() > limit)


def test_what_is_not_there_is_told(treasury: Treasury) -> None:
    """An unknown group, event, request or input is exit 1 and says which."""
    event = treasury.event()
    treasury.approve()
    request = ("there is no request 'r9'", "not_found")
    expected = {
        ("group", "show", UNKNOWN): (f"there is no group {UNKNOWN}", "not_found"),
        ("event", "show", UNKNOWN): (f"there is no event {UNKNOWN}", "not_found"),
        ("request", "show", "r9"): request,
        ("ack", "r9", "--peer=ann", "--accept"): request,
        ("sign", "r9", "--key-file=ann.key"): request,
        ("finalize", "r9", TX): request,
        ("audit", "r9"): request,
        ("request", "abort", "r9", "--peer=ann", "--reason=x"): request,
        ("sign", "r1", "--key-file=ann.key", "--input=5"): (
            "there is no input 5 of the request 'r1'",
            "not_found",
        ),
        ("sign", "r1", "--key-file=nobody.key"): (
            "the private key: there is no file nobody.key",
            "not_found",
        ),
        ("propose", event, "no.json", f"--group={treasury.group_id}", "--peer=ann"): (
            "the transaction: there is no file no.json",
            "not_found",
        ),
    }

    for words, (message, code) in expected.items():
        assert treasury.refused(*words) == (1, code, message), words


def test_without_a_store_nothing_is_made(program: Program) -> None:
    """A command that reads says that there is no store, how one is made, and makes none."""
    ended = program.run("signing", "request", "list")

    assert ended.code == 1
    assert ended.err.startswith("error: there is no store of signing in .igra/threshold-signing\n")
    assert "hint: name its data folder with --data" in ended.err
    assert list(program.folder.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("group", "show", "xyz"),
        ("event", "show", "0x00"),
        ("finalize", "r1", "not-hex"),
        ("request", "list", "--cursor=zz"),
        ("seen", "mark", "bob", "zz", "1"),
        ("group", "new", "--threshold=1", "--member=ann=zz"),
    ],
)
def test_malformed_hex_is_told(treasury: Treasury, words: tuple[str, ...]) -> None:
    """A word that should be hex and is not is exit 1, and quoted."""
    code, error, message = treasury.refused(*words)

    assert (code, error) == (1, "bad_input")
    assert "is no hex: " in message


def test_a_hash_of_another_length_is_told(treasury: Treasury) -> None:
    """A hash that is too short says how long it has to be."""
    found = treasury.refused("finalize", "r1", "00ff")

    message = "a transaction id has 32 bytes, 64 hex digits, not 2 bytes"
    assert found == (1, "bad_input", message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "bad.key holds no private key: 64 hex digits"),
        ("ab" * 31, "bad.key holds no private key: 64 hex digits"),
        ("no hex at all", "bad.key holds no private key: 64 hex digits"),
        ("\N{SNOWMAN}" * 64, "bad.key holds no private key: 64 hex digits"),
        ("00" * 32, "there is no such private key: the secret key is zero or beyond the order"),
        ("ff" * 32, "there is no such private key: the secret key is zero or beyond the order"),
        ("ab" * 32, "the private key is that of no member of the group"),
        ("ab" * 9999, "the private key has more than 4,096 bytes"),
    ],
)
def test_a_wrong_key_is_told_and_never_shown(
    treasury: Treasury, content: str, message: str
) -> None:
    """A file without a member's key is exit 1; nothing of its content is in the message."""
    treasury.approve()
    treasury.write_key("bad", content)

    code, _, said = treasury.refused("sign", "r1", "--key-file=bad.key")

    assert code == 1
    assert said.startswith(message)
    assert not content or content[:16] not in said


def test_a_key_that_others_can_read_is_refused(treasury: Treasury) -> None:
    """A key file with rights for others is refused, and the hint says what to do."""
    treasury.approve()
    treasury.write_key("open", "ab" * 32, mode=0o644)

    ended = treasury.run("sign", "r1", "--key-file=open.key")

    assert ended.code == 1
    assert ended.err == (
        "error: other users can read the private key in open.key\nhint: chmod 600 open.key\n"
    )


def test_without_a_key_nothing_is_signed(treasury: Treasury) -> None:
    """Neither a file nor the environment: exit 1 and both ways."""
    treasury.approve()

    ended = treasury.run("sign", "r1")

    assert ended.code == 1
    assert ended.err == (
        "error: there is no private key to sign with\n"
        "hint: name its file with --key-file, or set KASPA_SIGNING_KEY\n"
    )


def test_the_key_of_another_member_is_refused(treasury: Treasury) -> None:
    """A key signs in the name of its own member only."""
    treasury.approve()

    found = treasury.refused("sign", "r1", "--key-file=ann.key", "--peer=bob")

    assert found == (1, "not_a_member", "the private key is not that of 'bob'")


def test_strangers_are_refused(treasury: Treasury) -> None:
    """Somebody who is not in the group neither proposes nor votes; only a coordinator aborts."""
    event = treasury.event()
    treasury.propose()
    file = treasury.transaction("r2")
    stranger = (1, "not_a_member", "'mallory' is not in the group")

    voting = treasury.refused("ack", "r1", "--peer=mallory", "--accept")
    proposing = treasury.refused(
        "propose", event, file, f"--group={treasury.group_id}", "--peer=mallory"
    )
    aborting = treasury.refused("request", "abort", "r1", "--peer=bob", "--reason=x")

    assert voting == proposing == stranger
    assert aborting == (1, "not_allowed_now", "only its coordinator aborts the request 'r1'")


def test_a_vote_is_final(treasury: Treasury) -> None:
    """Another vote of the same member is refused, and on record."""
    treasury.propose()
    treasury.call("ack", "r1", "--peer=ann", "--accept")

    ended = treasury.run("ack", "r1", "--peer=ann", "--reject", "--json")

    assert ended.code == 1
    assert ended.json["error"]["code"] == "vote_changed"
    assert "`ledgerstone signing audit REQUEST`" in ended.json["error"]["hint"]
    assert ended.json["error"]["message"] == "'ann' has already accepted the request"
    last = treasury.call("audit", "r1")["trail"][-1]
    assert last["happened"] == {"type": "VoteRefused", "accept": False}


def test_the_wrong_state_is_told(treasury: Treasury) -> None:
    """A call that a state does not allow is exit 1; missing signatures are exit 4."""
    treasury.propose()

    early = treasury.refused("sign", "r1", "--key-file=ann.key")
    unapproved = treasury.refused("finalize", "r1", TX)
    treasury.approve()
    unsigned = treasury.refused("finalize", "r1", TX)
    treasury.sign()
    treasury.call("finalize", "r1", TX)
    other = treasury.refused("finalize", "r1", UNKNOWN)
    late = treasury.refused("ack", "r1", "--peer=cyd", "--accept")
    over = treasury.refused("request", "abort", "r1", "--peer=ann", "--reason=x")

    not_now = "move_not_allowed"
    assert early == (1, not_now, "the request 'r1' is pending")
    assert unapproved == (1, not_now, "a request that is pending cannot become finalized")
    missing = "signatures are missing: input 0 needs 2, input 1 needs 2"
    assert unsigned == (4, "threshold_not_met", missing)
    conflict = "the request 'r1' was finalized by another transaction"
    assert other == (1, "key_conflict", conflict)
    assert late == (1, not_now, "the request 'r1' is finalized")
    assert over == (1, not_now, "a request that is finalized cannot become aborted")


def test_an_event_is_paid_once(treasury: Treasury) -> None:
    """The same id with other content, and a second request for an event, are replays."""
    event = treasury.event()
    treasury.call(*treasury.proposing(event))

    changed = treasury.refused(
        "event", "new", "invoice-7", "--to", address(1), "--amount=11", "--by=ann"
    )
    second = treasury.refused(*treasury.proposing(event, "r2"))

    message = f"the source gave the id 'invoice-7' to the event {event}"
    assert changed == (1, "event_replayed", message)
    assert second == (1, "event_replayed", "the event has the request 'r1'")


def test_another_request_with_its_id_is_a_conflict(treasury: Treasury) -> None:
    """The id of a request names one transaction."""
    event = treasury.event()
    treasury.call(*treasury.proposing(event))

    found = treasury.refused(*treasury.proposing(event, tx_template_hash="ab" * 32))

    assert found == (1, "key_conflict", "there is another request 'r1'")


def test_time_runs_out(program: Program) -> None:
    """After its time a request takes no vote; `expire` ends it, once."""
    treasury = Treasury(program, 2, 3, "--timeout=1")
    treasury.propose()
    run_out(treasury)

    late = treasury.refused("ack", "r1", "--peer=ann", "--accept")
    expired = treasury.call("expire")
    again = treasury.run("expire")
    state = treasury.call("request", "list", "--state=expired")["requests"]

    assert late == (1, "request_expired", "the time of the request 'r1' has run out")
    assert expired == {"expired": ["r1"], "errors": {}}
    assert again.out == "0 expired\n"
    assert [each["request_id"] for each in state] == ["r1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": []}, "the transaction has no inputs: there is nothing to sign"),
        ({"kpsbt_blob": "xyz"}, "the transaction.kpsbt_blob is no hex: 'xyz'"),
        ({"tx_template_hash": "00"}, "tx_template_hash has 32 bytes, not 1"),
        ({"kpsbt_blop": "00"}, "the transaction has no field 'kpsbt_blop'"),
        (
            {"inputs": [{"utxo_tx_id": "zz"}]},
            "the transaction.inputs[0].utxo_tx_id is no hex: 'zz'",
        ),
        ({"inputs": 7}, "the transaction: Expected `array`, got `int` - at `$.inputs`"),
    ],
)
def test_a_wrong_transaction_is_told(
    treasury: Treasury, changes: dict[str, object], message: str
) -> None:
    """A file that is no transaction is exit 1 and says where."""
    event = treasury.event()

    found = treasury.refused(*treasury.proposing(event, "r1", **changes))

    assert found == (1, "bad_input", message)


def test_a_wrong_group_is_told(treasury: Treasury) -> None:
    """Everything that is wrong with a group is listed; a field that no group has is refused."""
    ann = treasury.public_key("ann")
    group = treasury.call("group", "show", treasury.group_id)
    group["policy"]["max_daily_volume"] = 5
    (treasury.program.folder / "group.json").write_bytes(msgspec.json.encode(group))
    (treasury.program.folder / "no.json").write_text("{")

    many = treasury.refused("group", "new", "--threshold=3", f"--member=ann={ann}", "--timeout=900")
    twice = treasury.refused("group", "new", "--threshold=1", *[f"--member=ann={ann}"] * 2)
    unnamed = treasury.refused("group", "new", "--threshold=1", f"--member={ann}")
    misspelled = treasury.refused("group", "add", "group.json")
    no_json = treasury.refused("group", "add", "no.json")

    wrong = "threshold_m is from 1 to threshold_n; session_timeout_seconds is from 1 to 600"
    assert many == (1, "bad_input", wrong)
    assert twice == (1, "bad_input", "the member 'ann' is there twice")
    assert unnamed == (1, "bad_input", f"a member is PEER=KEY, not '{ann}'")
    assert misspelled == (1, "bad_input", "the group.policy has no field 'max_daily_volume'")
    assert no_json[:2] == (1, "bad_input")
    assert no_json[2].startswith("the group is not JSON: ")


def test_a_field_that_is_there_twice_is_told(treasury: Treasury) -> None:
    """A file whose readers could see different values is refused, at any depth."""
    event = treasury.event()
    words = treasury.proposing(event)
    file = treasury.program.folder / "r1.json"
    file.write_text(file.read_text().replace('"utxo_value":', '"utxo_value":1,"utxo_value":', 1))

    found = treasury.refused(*words)

    assert found == (1, "bad_input", "the transaction has the field 'utxo_value' twice")


def test_a_wrong_event_is_told(treasury: Treasury) -> None:
    """A mistyped address, amount or index is refused before anything is stored."""
    to = address(1)

    mistyped = treasury.refused("event", "new", "e", "--to", to[:-1] + "q", "--amount=1")
    inexact = treasury.refused("event", "new", "e", "--to", to, "--amount=0.123456789")
    beyond = treasury.refused("event", "new", "e", "--to", to, "--amount=1", "--index=2147483648")

    assert mistyped[:2] == (1, "address_invalid")
    assert "has a wrong checksum" in mistyped[2]
    assert inexact == (1, "bad_input", "'0.123456789' is no amount in KAS")
    assert beyond[:2] == (1, "derivation_path_invalid")
    assert treasury.call("event", "list")["events"] == []


def test_a_message_is_received_once(treasury: Treasury) -> None:
    """The same number again is a replay, and in a new epoch it is not."""
    words = ("seen", "mark", "bob", "ab" * 32, 17)
    first = treasury.call(*words)

    again = treasury.refused(*words)
    restarted = treasury.call(*words, "--epoch=1")

    assert first["new"] is restarted["new"] is True
    assert again == (1, "message_replayed", "message 17 of 'bob' in epoch 0 was received before")


def test_wrong_usage_is_exit_2(treasury: Treasury) -> None:
    """Options that are missing or do not go together are exit 2."""
    assert treasury.run("ack", "r1", "--peer=ann").code == 2
    assert treasury.run("ack", "r1", "--peer=ann", "--accept", "--reject").code == 2
    assert treasury.run("ack", "r1", "--accept").code == 2
    assert treasury.run("sign", "r1", "--signature=0=00").code == 1
    assert treasury.run("sign", "r1", f"--signature=0={'00' * 64}").code == 2
    assert treasury.run("group", "new", "--threshold=0").code == 2
    assert treasury.run("bogus").code == 2
    assert treasury.run("export", "-", "--json").code == 2
    assert treasury.run("archive", "--days=inf").code == 2


def test_a_store_that_is_open_elsewhere_is_exit_4(treasury: Treasury) -> None:
    """One process at a time has a store open for writing: the other one may try again later."""
    treasury.propose("r1")
    with Signing(treasury.program.folder / ".igra" / "threshold-signing"):
        found = treasury.refused("ack", "r1", "--peer=ann", "--accept")

    message = "another process has the store in .igra/threshold-signing open"
    assert found == (4, "store_locked", message)
    assert treasury.run("ack", "r1", "--peer=ann", "--accept").code == 0


def test_reading_commands_work_beside_a_service(treasury: Treasury) -> None:
    """Lists, reports, health and export work while another process has the store open."""
    event = treasury.event("invoice-1")
    treasury.call(*treasury.proposing(event, "r1"))
    reads: list[tuple[object, ...]] = [
        ("group", "list"),
        ("group", "show", treasury.group_id),
        ("event", "list"),
        ("event", "show", event),
        ("request", "list"),
        ("request", "show", "r1"),
        ("audit", "r1"),
        ("volume",),
        ("health",),
        ("stats",),
        ("export", "copy.jsonl"),
    ]

    with Signing(treasury.program.folder / ".igra" / "threshold-signing"):
        ended = {words: treasury.run(*words) for words in reads}

    assert {words: each.err for words, each in ended.items() if each.code} == {}


def test_an_event_has_the_time_of_its_first_call(treasury: Treasury) -> None:
    """`event new` stores our clock's time in nanoseconds; the same call again is the same event."""
    before = time.time_ns()

    event = treasury.event("invoice-1")
    again = treasury.event("invoice-1")
    stored = treasury.call("event", "show", event)["timestamp_nanos"]

    assert again == event
    assert before <= stored <= time.time_ns()


def test_a_missing_library_is_named(program: Program) -> None:
    """Without RocksDB's library one line names it, and the hint its package."""
    settings = '[signing]\nrocksdb_library = "librocksdb-missing.so"\n'
    (program.folder / "ledgerstone.toml").write_text(settings)

    ended = program.run("signing", "seen", "forget", "--data=there")
    making = program.run("signing", "import", "ledgerstone.toml", "--data=there")

    assert ended.code == making.code == 1
    assert making.err.startswith(
        "error: the library of RocksDB was not found: librocksdb-missing.so\nhint: on Debian,"
    )
    assert "librocksdb" in making.err.partition("hint: ")[2]


@pytest.mark.parametrize("package", ["blake3", "coincurve"])
def test_a_missing_package_is_named(program: Program, package: str) -> None:
    """Without the extra one line names the missing package, and the hint the extra."""
    program.hide(package)

    ended = program.run("signing", "request", "list")

    assert ended.code == 1
    assert ended.err == (
        f"error: signing needs the package {package}\nhint: install ledgerstone[signing]\n"
    )
    assert program.run("signing", "--help").code == 0

"""`ledgerstone signing`: the life of a request at the command line, with real keys."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.program import COLUMNS, COMMAND, Program
from tests.cli.treasury import TX, Treasury
from tests.signing.people import KAS, address

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("threshold", "members"), [(2, 3), (3, 5)])
def test_a_group_signs(program: Program, threshold: int, members: int) -> None:
    """The whole life: proposed, approved at M accepts, signed by M, finalized, in the volume."""
    treasury = Treasury(program, threshold, members)
    event = treasury.event()
    proposed = treasury.call(*treasury.proposing(event))

    states = [
        treasury.call("ack", "r1", "--peer", name, "--accept")["state"]
        for name in treasury.names[:threshold]
    ]
    ready = [
        treasury.call("sign", "r1", "--key-file", f"{name}.key")["ready"]
        for name in treasury.names[-threshold:]
    ]
    final = treasury.call("finalize", "r1", TX, "--blue-score", 7)

    assert proposed["state"] == "pending"
    assert states == ["pending"] * (threshold - 1) + ["approved"]
    assert ready == [False] * (threshold - 1) + [True]
    assert final["state"] == "finalized"
    assert final["final_tx_id"] == TX
    assert final["final_tx_accepted_blue_score"] == 7
    assert final["volume_today_sompi"] == 10 * KAS
    volume = treasury.call("volume")
    assert (volume["today_sompi"], volume["reserved_sompi"]) == (10 * KAS, 0)
    trail = treasury.call("audit", "r1")["trail"]
    assert len(trail) == 1 + threshold + 1 + 2 * threshold + 1


def test_the_same_again_changes_nothing(program: Program) -> None:
    """Each call of a life may be repeated: it answers that it was done before."""
    treasury = Treasury(program, 2, 3)
    event = treasury.event()
    treasury.sign()

    again = [
        treasury.call("event", "new", "invoice-7", "--to", address(1), "--amount=10", "--by=ann"),
        treasury.call(*treasury.proposing(treasury.event("invoice-r1"))),
        treasury.call("ack", "r1", "--peer=ann", "--accept"),
        treasury.call("finalize", "r1", TX),
        treasury.call("finalize", "r1", TX),
    ]
    signed = treasury.call("sign", "r1", "--key-file=ann.key")

    assert [each["stored"] for each in again] == ["same", "same", "same", "new", "same"]
    assert again[0]["event_hash"] == event
    assert signed["inputs"] == {"0": "same", "1": "same"}
    assert treasury.call("volume")["today_sompi"] == 10 * KAS


def test_the_key_comes_by_file_stdin_or_environment(program: Program) -> None:
    """A key is read from a file, from stdin or from the environment, and is never shown."""
    treasury = Treasury(program, 3, 3)
    treasury.approve()
    key = {name: (program.folder / f"{name}.key").read_text() for name in treasury.names}

    by_file = treasury.run("sign", "r1", "--key-file", "ann.key", "-v")
    by_environment = treasury.run("sign", "r1", "-v", KASPA_SIGNING_KEY=key["bob"])
    by_stdin = subprocess.run(
        [*COMMAND, "signing", "sign", "r1", "--key-file", "-", "-v"],
        cwd=program.folder,
        env=program.environment,
        input=f"{key['cyd']}\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert by_file.out == "ann signed inputs 0, 1; input 0 needs 2, input 1 needs 2\n"
    assert by_environment.out == "bob signed inputs 0, 1; input 0 needs 1, input 1 needs 1\n"
    assert by_stdin.stdout == "cyd signed inputs 0, 1; ready to be sent\n"
    said = by_file.out + by_file.err + by_environment.out + by_environment.err
    said += by_stdin.stdout + by_stdin.stderr
    assert not any(each in said for each in key.values())


def test_a_signature_may_be_made_elsewhere(program: Program) -> None:
    """A signature from another device is verified and stored; a wrong one is refused."""
    from ledgerstone.signing import schnorr
    from ledgerstone.signing.hashes import payload_hash
    from tests.cli.treasury import schnorr_secret

    treasury = Treasury(program, 2, 3)
    treasury.approve()
    made = schnorr.sign(schnorr_secret(1), payload_hash(b"r1/0")).hex()

    right = treasury.call("sign", "r1", "--peer=ann", f"--signature=0={made}")
    wrong = treasury.refused("sign", "r1", "--peer=ann", f"--signature=1={made}")
    others = treasury.refused("sign", "r1", "--peer=bob", f"--signature=0={made}")

    assert right["inputs"] == {"0": "new"}
    invalid = (1, "signature_invalid", "the signature is not the key's, or not for this hash")
    assert wrong == others == invalid


def test_votes_reject(program: Program) -> None:
    """A request is rejected when M accepts can no longer be reached, with the reasons."""
    treasury = Treasury(program, 2, 3)
    treasury.propose()

    first = treasury.call("ack", "r1", "--peer=ann", "--reject", "--reason=too much")
    second = treasury.run("ack", "r1", "--peer=bob", "--reject", "--reason=not ours")

    assert first["state"] == "pending"
    assert second.out.startswith("bob rejects: rejected (too much; not ours)")
    shown = treasury.call("request", "show", "r1")
    assert shown["request"]["decision"] == {"type": "Rejected", "reason": "too much; not ours"}


def test_the_policy_rejects(program: Program) -> None:
    """At M accepts the policy is asked: every violation is in the reason of the rejection."""
    limits = ("--allow", address(2), "--max=5", "--daily=8", "--require-reason")
    treasury = Treasury(program, 2, 3, *limits)
    treasury.propose(amount="10")

    review = treasury.call("request", "show", "r1")["review"]
    treasury.call("ack", "r1", "--peer=ann", "--accept")
    decided = treasury.call("ack", "r1", "--peer=bob", "--accept")

    refused = [each["check"] for each in review["findings"] if not each["passed"]]
    names = ["destination_allowed", "maximum_amount", "reason_given", "daily_volume"]
    assert refused == names
    assert decided["state"] == "rejected"
    assert all(name in decided["reason"] for name in names)


def test_approved_requests_reserve_volume(program: Program) -> None:
    """An approved request counts for the limit of the day until it ends, and is given back."""
    treasury = Treasury(program, 2, 3, "--daily=15")
    treasury.approve("r1", "10")
    treasury.propose("r2", "10")
    treasury.call("ack", "r2", "--peer=ann", "--accept")

    decided = treasury.call("ack", "r2", "--peer=bob", "--accept")
    reserved = treasury.call("volume")["reserved_sompi"]
    treasury.call("request", "abort", "r1", "--peer=ann", "--reason=mistyped")

    assert decided["state"] == "rejected"
    assert "daily_volume" in decided["reason"]
    assert reserved == 10 * KAS
    assert treasury.call("volume")["reserved_sompi"] == 0


def test_sums_beyond_64_bits_are_shown(program: Program) -> None:
    """Several approved requests may reserve more than one amount can be."""
    treasury = Treasury(program, 1, 1)
    for name in ("r1", "r2"):
        treasury.approve(name, "184467440737.09551615")

    shown = treasury.run("volume")

    assert (shown.code, shown.err) == (0, "")
    assert "reserved by approved requests: 368934881474.1910323 KAS" in shown.out
    assert treasury.call("volume")["reserved_sompi"] == 2 * (2**64 - 1)


def test_lists_and_details_fit_a_narrow_terminal(program: Program) -> None:
    """Lists and details have no line over 80 columns and no id that is broken."""
    treasury = Treasury(program, 2, 3, "--name=treasury", "--allow", address(1), "--daily=500")
    event = treasury.event()
    treasury.call(*treasury.proposing(event))
    treasury.call("ack", "r1", "--peer=ann", "--accept", "--reason=as agreed")
    calls = {
        ("group", "list"): [treasury.group_id, "treasury, 2 of 3 sign, at most 500 KAS a day"],
        ("group", "show", treasury.group_id): [treasury.group_id, address(1), "500 KAS", "bob"],
        ("event", "list"): [event, "10 KAS to kaspa:", "for invoice-7"],
        ("event", "show", event): [event, address(1), "10 KAS"],
        ("request", "list"): ["r1", "pending", "1 of 2", "min"],
        ("request", "show", "r1"): ["1 accept, 0 reject; 2 of 3 must accept", "as agreed"],
        ("volume",): ["UTC day", "reserved"],
        ("stats",): ["partial_sig", "rows, about"],
        ("health",): ["ok"],
    }

    for words, expected in calls.items():
        ended = treasury.run(*words)

        assert ended.code == 0, ended.err
        assert max(map(len, ended.out.splitlines())) <= COLUMNS
        assert [each for each in expected if each not in ended.out] == []
        assert "\x1b" not in ended.out


def test_it_is_coloured_unless_asked_not_to_be(program: Program) -> None:
    """On a terminal states have colours; NO_COLOR switches them off."""
    treasury = Treasury(program, 2, 3)
    treasury.propose()

    with program.show("signing", "request", "list") as coloured:
        coloured.ended()
    with program.show("signing", "request", "list", NO_COLOR="1") as plain:
        plain.ended()

    assert "\x1b[36mpending" in coloured.said
    assert "pending" in plain.said
    assert "\x1b[36m" not in plain.said


def test_pages_go_on(program: Program) -> None:
    """A page of a list ends with a cursor, from which the next one goes on."""
    treasury = Treasury(program, 2, 3)
    for name in ("r1", "r2", "r3"):
        treasury.propose(name)

    first = treasury.call("request", "list", "--limit=2")
    second = treasury.call("request", "list", "--limit=2", "--cursor", first["next"])
    people = treasury.run("request", "list", "--limit=2")

    pages = [[each["request_id"] for each in page["requests"]] for page in (first, second)]
    assert pages == [["r1", "r2"], ["r3"]]
    assert second["next"] is None
    assert f"--cursor {first['next']}" in people.out


def test_help_does_not_load_what_signing_needs(program: Program) -> None:
    """`ledgerstone --help` imports neither RocksDB's binding nor the libraries of the extra."""
    watched = ("blake3", "coincurve", "cryptography", "ledgerstone.signing.rocksdb.library")
    code = (
        "import sys\nfrom ledgerstone.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {watched!r} if name in sys.modules], file=sys.stderr)\n"
    )

    for words in (["--help"], ["--version"], ["signing", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=program.folder,
            env=program.environment,
            capture_output=True,
            text=True,
            check=True,
        )

        assert done.stderr == "[]\n", words

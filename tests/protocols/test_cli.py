"""The commands of protocols, as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgerstone import protocols
from tests.cli.program import Program

EXAMPLE = Path(protocols.__file__).parent / "example"
BROKEN = """
from pathlib import Path
from ledgerstone.protocols import Protocol
protocol = Protocol("broken", folder=Path(__file__).parent)
"""
GROUP = {"group": "g", "name": "Garden", "by": "ann"}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The command, in a folder whose settings name the example."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "ledgerstone.toml").write_text(
        f'url = "sqlite:///ledger.db"\n[protocols]\nfolders = ["{EXAMPLE}"]\n'
    )
    made = Program(folder)
    assert made.run("migrate").code == 0
    return made


@pytest.mark.slow
def test_a_protocol_from_the_command_line(program: Program) -> None:
    """Its commands, its tick, what waits, and its log."""
    created = program.run(
        "protocols", "run", "groups", "group.create", "--params", json.dumps(GROUP), "--json"
    )
    message = {"group": "g", "words": "early", "by": "bob"}
    program.run("protocols", "run", "groups", "message.create", "--params", json.dumps(message))
    listed = program.run("protocols", "list", "--json")
    blocked = program.run("protocols", "blocked", "--json")
    ticked = program.run("protocols", "tick", "groups", "--json")
    events = program.run("events", "list", "--json")
    screen = program.run("protocols", "blocked")
    status = program.run("status", "--json")
    doctor = program.run("doctor", "--json")

    assert created.json == {"key": "g-1"}
    assert (listed.json[0]["blocked"], listed.json[0]["outgoing"]) == (1, 3)
    assert [row["reason_key"] for row in blocked.json["rows"]] == ["bob/g/bob"]
    assert [job["name"] for job in ticked.json["jobs"]] == ["key.issue"]
    assert [row["event_type"] for row in events.json["rows"]] == ["key", "group"]
    assert "member bob/g/bob" in screen.out
    assert status.json["protocols"][0]["protocol"] == "groups"
    (check,) = [each for each in doctor.json["checks"] if each["name"] == "protocol groups"]
    assert (check["verdict"], check["found"]) == ("ok", "1 events wait for keys")


def test_export_and_import(program: Program) -> None:
    """What was exported is known when it is imported again, and an import can be resumed."""
    program.run("protocols", "run", "groups", "group.create", "--params", json.dumps(GROUP))

    exported = program.run("events", "export", "--output", "all.jsonl", "--json")
    again = program.run("events", "import", "all.jsonl", "--resume", "one", "--json")
    resumed = program.run("events", "import", "all.jsonl", "--resume", "one", "--json")
    (program.folder / "bad.jsonl").write_text('{"type":"group"}\n{nonsense\n')
    refused = program.run("events", "import", "bad.jsonl")
    followed = program.run("protocols", "tail", "--seconds", "0")

    assert exported.json == {"exported": 2}
    assert (again.json["known"], resumed.json["resumed"]) == (2, 2)
    assert refused.code == 1
    assert "line 2: the bytes are no envelope" in refused.err
    assert [json.loads(line)["type"] for line in followed.out.splitlines()] == ["group", "key"]


def test_what_is_parked(program: Program) -> None:
    """It is listed with its reason, as doctor says, queued again or dropped."""
    (program.folder / "all.jsonl").write_text('{"type":"poem"}\n{"type":"song"}\n')
    program.run("events", "import", "all.jsonl")

    doctor = program.run("doctor", "--json")
    listed = program.run("protocols", "parked", "groups", "--json")
    first, second = [str(row["id"]) for row in listed.json["rows"]]
    shown = program.run("protocols", "parked")
    outgoing = program.run("protocols", "parked", "--outgoing")
    retried = program.run("protocols", "retry", "--id", first)
    dropped = program.run("protocols", "drop", "--id", second)
    left = program.run("protocols", "parked")

    (check,) = [each for each in doctor.json["checks"] if each["name"] == "protocol groups"]
    assert "`ledgerstone protocols parked groups`" in check["todo"]
    assert "knows no event 'poem'" in listed.json["rows"][0]["last_error"]
    assert "Parked in incoming" in shown.out
    assert "nothing is parked in outgoing" in outgoing.out
    assert "1 items are queued again" in retried.out
    assert "1 items are removed" in dropped.out
    assert "nothing is parked in incoming" in left.out


def test_tests(program: Program) -> None:
    """A protocol whose cases fail is told, and ends with exit code 1."""
    folder = program.folder / "broken"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text(BROKEN)
    (folder / "tests" / "one.json").write_text(
        '{"cases": [{"name": "one", "then": {"blocked": 1}}]}'
    )

    failed = program.run("protocols", "test", "broken")

    assert failed.code == 1
    assert "one: 0 events wait, and not 1" in failed.out
    assert "1 cases in 1 runs, 1 failed" in failed.out


def test_what_is_wrong_is_told(program: Program) -> None:
    """A protocol or command that there is not is named, with those that there are."""
    nobody = program.run("protocols", "blocked", "nobody")
    nothing = program.run("protocols", "run", "groups", "nothing")
    params = program.run("protocols", "run", "groups", "join", "--params", "[1]")

    assert "its protocols: groups" in nobody.err
    assert "group.create" in nothing.err
    assert "--params is no JSON object" in params.err


@pytest.mark.slow
def test_what_is_kept(program: Program) -> None:
    """A snapshot is made, events are pruned, and the tables follow from what is left."""
    program.run("protocols", "run", "groups", "group.create", "--params", json.dumps(GROUP))
    everything = program.run("protocols", "prune", "groups")
    made = program.run("protocols", "snapshot", "groups", "--json")
    again = program.run("protocols", "snapshot", "groups")
    dry = program.run("protocols", "prune", "--keep-days", "0", "--dry-run", "--json")
    pruned = program.run("protocols", "prune", "--keep-days", "0", "--json")
    listed = program.run("protocols", "snapshots")
    verified = program.run("protocols", "verify", "--json")
    exported = program.run("events", "export", "--output", "all.jsonl")
    kept = program.run("events", "export", "--kept", "--output", "kept.jsonl", "--json")
    followed = program.run("protocols", "tail", "--seconds", "0")

    assert "keeps everything" in everything.err
    assert (made.json["snapshot_position"], made.json["snapshot_rows"]) == (2, 3)
    assert "no event came since" in again.out
    assert (dry.json["would_prune"], pruned.json["pruned"]) == (2, 2)
    assert "positions 1 to 2 are pruned: 2 events" in listed.out
    assert (verified.code, verified.json["problems"]) == (0, [])
    assert (exported.code, kept.json) == (1, {"exported": 0})
    assert "the content of event 1 was pruned" in exported.err
    assert "up to position 2 were pruned" in followed.err

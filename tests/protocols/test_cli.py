"""The commands of protocols, as people call them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ledgerstone import protocols
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.cli.program import Ended, Program

EXAMPLE = Path(protocols.__file__).parent / "example"
BROKEN = """
from pathlib import Path
from ledgerstone.protocols import Protocol
protocol = Protocol("broken", folder=Path(__file__).parent)
"""
WRONG = {"data": "no base64!", "by": "ann"}
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
    (groups,) = listed.json["protocols"]
    assert (groups["blocked"], groups["outgoing"]) == (1, 3)
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


def test_a_file_of_the_example(program: Program) -> None:
    """It is shared, its slices come in any order as base64, and it is read as it was."""
    content = os.urandom(50_000)
    file_id = hashlib.sha256(content).hexdigest()
    shared = {"group": "g", "file_id": file_id, "name": "a.bin", "total_size": 50_000, "by": "ann"}

    def slice_of(number: int, offset: int, data: bytes) -> Ended:
        words = base64.b64encode(data).decode()
        part = {"file_id": file_id, "slice_no": number, "offset": offset, "data": words}
        return _run(program, "file.slice", part | {"by": "ann"})

    _run(program, "group.create", GROUP)
    early = slice_of(0, 0, content[:30_000])
    begun = _run(program, "file.begin", shared)
    codes = [slice_of(1, 30_000, content[30_000:]).code for _ in range(2)]
    codes.append(slice_of(0, 0, content[:30_000]).code)
    bad = _run(program, "file.slice", {"file_id": file_id, "slice_no": 2, "offset": 0} | WRONG)
    got = program.run("blobs", "get", file_id, "-o", "a.bin")

    assert (early.code, f"nobody has shared the file {file_id}" in early.err) == (1, True)
    assert (begun.code, codes, got.code) == (0, [0, 0, 0], 0)
    assert (bad.code, "the slice is no base64" in bad.err) == (1, True)
    assert (program.folder / "a.bin").read_bytes() == content


def _run(program: Program, command: str, params: dict[str, Any]) -> Ended:
    return program.run("protocols", "run", "groups", command, "--params", json.dumps(params))


def test_another_file_under_a_name(program: Program) -> None:
    """An import that goes on with another file, or with a shorter one, is refused."""
    program.run("protocols", "run", "groups", "group.create", "--params", json.dumps(GROUP))
    first, second = program.run("events", "export").out.splitlines()
    (program.folder / "all.jsonl").write_text(f"{first}\n{second}\n")
    (program.folder / "short.jsonl").write_text(f"{first}\n")
    (program.folder / "other.jsonl").write_text(f"{second}\n{first}\n{first}\n")
    (program.folder / "longer.jsonl").write_text(f"{first}\n{second}\n{first}\n")

    program.run("events", "import", "all.jsonl", "--resume", "one")
    short = program.run("events", "import", "short.jsonl", "--resume", "one")
    other = program.run("events", "import", "other.jsonl", "--resume", "one")
    longer = program.run("events", "import", "longer.jsonl", "--resume", "one", "--json")
    named = program.run("events", "import", "all.jsonl", "--resume", "x" * 300)

    assert (short.code, other.code, named.code) == (1, 1, 1)
    assert "the import one has read 2 other events" in short.err
    assert "the import one has read 2 other events" in other.err
    assert (longer.json["resumed"], longer.json["known"]) == (2, 1)
    assert "the name of an import has 1 to" in named.err


def test_an_export_that_fails(program: Program) -> None:
    """The file of the name stays as it was, and nothing is left beside it."""
    program.run("protocols", "run", "groups", "group.create", "--params", json.dumps(GROUP))
    program.run("protocols", "snapshot", "groups")
    program.run("protocols", "prune", "--keep-days", "0")
    (program.folder / "all.jsonl").write_text("mine")
    before = sorted(path.name for path in program.folder.iterdir())

    nobody = program.run("events", "export", "nobody", "-o", "all.jsonl")
    pruned = program.run("events", "export", "groups", "-o", "all.jsonl")
    nowhere = program.run("events", "export", "groups", "-o", "none/all.jsonl")

    assert (nobody.code, pruned.code, nowhere.code) == (1, 1, 1)
    assert "none/all.jsonl cannot be written" in nowhere.err
    assert (program.folder / "all.jsonl").read_text() == "mine"
    assert sorted(path.name for path in program.folder.iterdir()) == before


def test_an_import_from_a_pipe(program: Program) -> None:
    """A named pipe, as the shell makes for `<(…)`, is read like stdin; a folder is refused."""
    pipe = program.folder / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        given = pool.submit(pipe.write_text, '{"type":"group","data":{}}\n')
        piped = program.run("events", "import", "pipe", "--json")
        given.result()
    folder = program.run("events", "import", ".")

    assert (piped.code, piped.json["failed"]) == (0, 1)
    assert (folder.code, ". cannot be read: Is a directory" in folder.err) == (1, True)


def test_a_line_that_is_too_long(program: Program) -> None:
    """No more of it is read than an event may have; what came before it is kept."""
    small = {"LEDGERSTONE_STORE_BODY_BYTES_MAX": "1024"}
    event = {"type": "group", "data": {"id": "g", "name": "x" * 6000, "by": "ann"}}
    (program.folder / "long.jsonl").write_text(json.dumps(event))

    refused = program.run("events", "import", "long.jsonl", **small)
    taken = program.run("events", "import", "long.jsonl", "--json")

    assert (refused.code, taken.json["new"]) == (1, 1)
    assert "line 1 has more than" in refused.err
    assert "raise store.body_bytes_max" in refused.err


def test_nobody_reads_what_is_followed(program: Program) -> None:
    """`tail | head`: it ends without an error when nobody reads any more."""
    create = ("protocols", "run", "groups", "group.create", "--params")
    program.run(*create, json.dumps(GROUP))
    words = [*program.command, "protocols", "tail"]
    where = {"cwd": program.folder, "env": program.environment}

    with subprocess.Popen(words, stdout=subprocess.PIPE, **where) as following:  # type: ignore[call-overload]
        assert following.stdout.readline()
        following.stdout.close()
        program.run(*create, json.dumps(GROUP | {"group": "h"}))

        assert following.wait(WAIT_SECONDS_MAX) == 0


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
    null = program.run(
        "protocols", "run", "groups", "group.create", "--params", json.dumps(GROUP | {"by": None})
    )

    assert "its protocols: groups" in nobody.err
    assert "group.create" in nothing.err
    assert "--params is no JSON object" in params.err
    assert "an identity that receives is text, not None" in null.err


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

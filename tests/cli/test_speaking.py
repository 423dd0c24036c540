"""What the command says, to whom: programs, terminals, pipes that are full, and other alphabets."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, update

from ledgerstone.engine.source import Failure
from ledgerstone.jobs.schedules.schedules import Schedules
from ledgerstone.ledger import Ledger
from ledgerstone.store.schema.tables import worker
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.cli.program import Program
from tests.cli.shop import failed_ones, published

EVIL = "a\x1b]0;pwned\x07\x1b[31mred\x9b1m\rb\x7f"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SPELLED = r"a\x1b]0;pwned\x07\x1b[31mred\x9b1m\x0db\x7f"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs"], "a command is missing: one of enqueue, list, show"),
        ([], "a command is missing: one of up, work"),
        (["bogus"], "No such command 'bogus'"),
        (["jobs", "list", "--bogus"], "No such option: --bogus"),
        (["jobs", "list", "--status", "asleep"], "'asleep'"),
        (["jobs", "show"], "Missing argument 'ID'"),
        (["jobs", "retry"], "name one ID, or --all"),
        (["status", "--watch"], "--watch and --json do not go together"),
        (["migrate", "--sql", "--check"], "--check goes with neither --sql nor --rls"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_document(program: Program, arguments: list[str], words: str) -> None:
    """With --json wrong usage is exit 2 and the one JSON document, shaped as other errors are."""
    ended = program.run(*arguments, "--json")

    assert (ended.code, ended.err) == (2, "")
    assert set(ended.json) == {"error"}
    assert set(ended.json["error"]) == {"code", "message", "hint", "retryable"}
    assert (ended.json["error"]["code"], ended.json["error"]["retryable"]) == ("usage", False)
    assert words in ended.json["error"]["message"]
    assert "--help` shows what it takes" in ended.json["error"]["hint"]


def test_json_keeps_its_exit_codes(program: Program) -> None:
    """Asked for JSON, what is done, refused or left to do ends as without."""
    assert program.run("migrate", "--check", "--json").code == 3
    assert program.run("migrate", "--json").code == 0
    assert program.run("jobs", "show", "bogus", "--json").code == 1
    assert program.run("jobs", "list", "--help", "--json").code == 0


def bare(program: Program, *arguments: str, stdout: Any, **environment: str) -> Any:
    """A process of its own, with nothing between it and its stdout."""
    return subprocess.run(
        [*program.command, *arguments],
        cwd=program.folder,
        env=program.environment | environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["jobs", "list"], ["jobs", "list", "--json"], ["migrate", "--sql"], ["jobs", "--help"]],
    ids=" ".join,
)
@pytest.mark.slow
def test_a_full_disk_is_one_line(program: Program, arguments: list[str]) -> None:
    """Where stdout takes nothing more: exit 1 and one line that says so, no traceback."""
    program.run("migrate")

    with Path("/dev/full").open("wb") as full:
        ended = bare(program, *arguments, stdout=full)

    assert ended.returncode == 1
    lines = [each for each in ended.stderr.decode().splitlines() if each[:10] != "database: "]
    assert lines == ["error: what there is to say cannot be written: No space left on device"]


@pytest.mark.slow
def test_another_alphabet_is_spelled_out(program: Program, embedded: Ledger) -> None:
    """Where stdout is ASCII other characters are spelled out; in JSON so that it stays exact."""
    name = "schlüssel 中 💥"
    with embedded.transaction() as tx:
        job_id = tx.jobs.enqueue("note", key=name).id

    shown = bare(program, "jobs", "show", job_id, stdout=-1, PYTHONIOENCODING="ascii")
    told = bare(program, "jobs", "list", "--json", stdout=-1, PYTHONIOENCODING="ascii")

    assert (shown.returncode, told.returncode) == (0, 0)
    assert rb"schl\xfcssel \u4e2d \U0001f4a5" in shown.stdout
    assert told.stdout.isascii()
    assert msgspec.json.decode(told.stdout)["jobs"][0]["key"] == name


@pytest.mark.slow
def test_arguments_are_read_from_stdin(program: Program) -> None:
    """`--args -` reads them there."""
    done = subprocess.run(
        [*program.command, "jobs", "enqueue", "note", "--args", "-", "--json"],
        cwd=program.folder,
        env=program.environment,
        input=b'{"word": "from stdin"}',
        capture_output=True,
        timeout=WAIT_SECONDS_MAX,
        check=True,
    )

    job_id = msgspec.json.decode(done.stdout)["id"]
    assert program.run("jobs", "show", job_id, "--json").json["job"]["payload"] == {
        "word": "from stdin"
    }


@pytest.fixture
def poisoned(embedded: Ledger) -> dict[str, Any]:
    """A database with what a terminal would obey wherever people and programs can write words."""

    @embedded.job(EVIL, queue=EVIL, max_attempts=1)
    def broken(word: str) -> None:
        raise ValueError(word)

    with embedded.transaction() as tx:
        dead = tx.jobs.enqueue(EVIL, {"word": EVIL}, key=EVIL, requested_by=EVIL).id
    embedded.worker().tick()
    with embedded.transaction() as tx:
        waiting = tx.jobs.enqueue(EVIL, {"word": EVIL}, correlation_id=EVIL).id
        tx.jobs.pause(EVIL, by=EVIL)
        Schedules(tx, embedded.kinds).put(EVIL, "report", "0 6 * * *")
        tx.execute(
            update(worker).values(
                host=EVIL,
                report=msgspec.json.encode({"sources": {EVIL: {"trouble": EVIL}}}).decode(),
            )
        )
        receipt = embedded.registry.shared.receipt
        tx.execute(
            insert(receipt).values(
                message_id=bytes(16),
                consumer=EVIL,
                message_name=EVIL,
                processed_at=datetime.now(UTC).replace(tzinfo=None, microsecond=0),
            )
        )
    published(embedded, "order.placed", partition=EVIL)
    (failed,) = failed_ones(
        embedded, "order.placed", consumer=EVIL, failure=Failure(EVIL, EVIL), origin=EVIL
    )
    return {"dead": dead, "waiting": waiting, "failed": str(failed)}


@pytest.mark.slow
def test_nothing_from_the_database_is_obeyed(program: Program, poisoned: dict[str, Any]) -> None:
    """Control characters are spelled out in every view, for errors too; JSON holds them exactly."""
    dead, waiting, failed = poisoned["dead"], poisoned["waiting"], poisoned["failed"]
    views = [
        ["jobs", "list"],
        ["jobs", "show", dead],
        ["jobs", "events", dead],
        ["jobs", "watch", dead],
        ["jobs", "explain", waiting],
        ["jobs", "retry", "--all", "--dry-run"],
        ["queues"],
        ["schedules"],
        ["schedules", "pause", EVIL],
        ["outbox", "list"],
        ["outbox", "lanes", "local"],
        ["inbox", "list"],
        ["failed", "show"],
        ["failed", "show", "--group"],
        ["failed", "show", failed],
        ["status"],
        ["jobs", "enqueue", EVIL, "--key", EVIL],
    ]
    for view in views:
        wide, narrow = (program.run(*view, COLUMNS=columns) for columns in ("400", "60"))
        said = wide.out + wide.err

        assert OBEYED.findall(said + narrow.out + narrow.err) == [], view
        assert r"\x1b" in said, view

    exact = program.run("jobs", "show", dead, "--json").json["job"]
    assert (exact["type"], exact["key"], exact["queue"]) == (EVIL, EVIL, EVIL)
    assert SPELLED in program.run("jobs", "show", dead, COLUMNS="400").out

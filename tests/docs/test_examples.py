"""The code in the documents runs."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone.ledger import Ledger
from ledgerstone.signing.states import MOVES
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.cli.program import Ended, Program, open_streams, run_forked

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROTOCOL = "docs/how-to/write-a-protocol.md"
"""Its blocks are files of one folder, and run together."""
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if BLOCK.search(path.read_text(encoding="utf-8"))
)
ALONE = [document for document in DOCUMENTS if document != PROTOCOL]
SHOP_URL = "sqlite:///shop.db"


def run(example: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The example, as a program that is started in this folder."""
    (folder / "example.py").write_text(example, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )


def run_imported(example: str, folder: Path) -> Ended:
    """The same, in a process that has imported Ledgerstone: that it does so itself is proved."""
    (folder / "example.py").write_text(example, encoding="utf-8")
    return run_forked(be_the_example, environment=os.environ, folder=folder)


def be_the_example() -> None:
    """In the new process."""
    open_streams()
    runpy.run_path("example.py", run_name="__main__")
    sys.stdout.flush()


@pytest.mark.parametrize("document", ALONE)
@pytest.mark.slow
def test_examples_run(document: str, tmp_path: Path) -> None:
    """Each example of a document runs as it stands, in a folder where nothing is."""
    blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))

    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        folder.mkdir()
        ran = run(block, folder)

        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ("README.md", {"orders": [7], "job": ["receipt.send"]}),
        ("docs/how-to/run-jobs.md", {"orders": [7], "job": ["mail.send"]}),
        ("docs/how-to/carry-messages.md", {"orders": [7]}),
    ],
)
@pytest.mark.slow
def test_nothing_else_changes(
    document: str, rows: dict[str, list[object]], tmp_path: Path, home: Home
) -> None:
    """On every database that the comment names the example does the same, also a second time."""
    (block, *_) = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    assert SHOP_URL in block
    Program(tmp_path).run("migrate", "--url", home.url)
    there = block.replace(SHOP_URL, home.url)

    first, second = run_imported(there, tmp_path), run_imported(there, tmp_path)

    assert (first.code, second.code) == (0, 0), first.err + second.err
    with Ledger(home.url) as ledger, ledger.reading() as tx:
        ids = tx.connection.execute(text("SELECT id FROM orders")).scalars().all()
        types = tx.connection.execute(text("SELECT type FROM job")).scalars().all()
        messages = tx.outbox.find().rows
    assert ids == rows["orders"] * 2
    assert len({message.message_id for message in messages}) <= 1
    assert types == rows.get("job", [])


@pytest.mark.parametrize(
    "document", ["README.md", "docs/how-to/consume-messages.md", "docs/how-to/carry-messages.md"]
)
@pytest.mark.slow
def test_importing_publishes_nothing(document: str, tmp_path: Path, home: Home) -> None:
    """A worker or a command that imports the example adds nothing; run twice it publishes once."""
    (block, *_) = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    Program(tmp_path).run("migrate", "--url", home.url)
    there = block.replace(SHOP_URL, home.url)
    (tmp_path / "shop.py").write_text(there, encoding="utf-8")
    listing = ("outbox", "list", "--json", "-A", "shop:ledger")

    before = Program(tmp_path).run(*listing)
    for _ in range(2):
        assert run_imported(there, tmp_path).code == 0
    after = Program(tmp_path).run(*listing)

    assert (before.code, before.json["messages"]) == (0, [])
    assert len({message["message_id"] for message in after.json["messages"]}) == 1


@pytest.mark.slow
def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    """The ten lines of the README accept a job and a message with a row and do both."""
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE stock (pieces INTEGER)")
        shop.execute("INSERT INTO stock VALUES (5)")
    shop.close()
    (block, *_) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))

    ran = run(block, tmp_path)

    with sqlite3.connect(tmp_path / "shop.db") as shop:
        stock = shop.execute("SELECT pieces FROM stock").fetchall()
    shop.close()
    assert (ran.returncode, ran.stdout) == (0, "receipt for order 7 attempt 1\n"), ran.stderr
    assert stock == [(4,)]


@pytest.mark.slow
def test_what_is_written_in_the_table_works(tmp_path: Path) -> None:
    """Each command of "Look and act" does what it says in the folder of the example."""
    document = (ROOT / "docs/how-to/run-jobs.md").read_text(encoding="utf-8")
    (block, *_) = BLOCK.findall(document)
    (tmp_path / "shop.py").write_text(block, encoding="utf-8")
    table = document.partition("## Look and act")[2].partition("\n\nWith")[0]
    enqueue, *others = [
        shlex.split(each)[1:] for each in re.findall(r"`(ledgerstone [^`]*)`", table)
    ]
    shop = Program(tmp_path)

    codes = {}
    for words in others:
        job_id = shop.run(*enqueue, "--json").json["id"]
        if "watch" in words:
            shop.run("jobs", "cancel", job_id, "-A", "shop:ledger")
        ended = shop.run(*[job_id if word == "ID" else word for word in words])
        codes[" ".join(words[:2])] = ended.code

    verbs = ("list", "show", "explain", "watch", "cancel", "retry")
    expected = {f"jobs {verb}": 0 for verb in verbs} | {"queues -A": 0}
    # The job that was watched did not succeed.
    expected |= {"jobs watch": 1, "queues pause": 0, "queues resume": 0}
    assert codes == expected


@pytest.mark.slow
def test_what_is_enqueued_elsewhere_is_found(tmp_path: Path) -> None:
    """The jobs of "Accept many at once" are in the queue that the workers of the shop look at."""
    first, second, *_ = BLOCK.findall((ROOT / "docs/how-to/run-jobs.md").read_text("utf-8"))

    ran = [run(first, tmp_path), run(second, tmp_path)]

    assert [one.returncode for one in ran] == [0, 0], ran[-1].stderr
    with Ledger(f"sqlite:///{tmp_path}/shop.db") as ledger, ledger.reading() as tx:
        queues = tx.connection.execute(text("SELECT queue, COUNT(*) FROM job GROUP BY queue"))
        assert [tuple(row) for row in queues] == [("mail", 1001)]


@pytest.mark.slow
def test_the_protocol_of_the_how_to(tmp_path: Path) -> None:
    """Its files as they are written make a protocol that runs, and whose own case holds."""
    words = (ROOT / PROTOCOL).read_text(encoding="utf-8")

    def blocks(language: str) -> list[str]:
        found = rf"^```{language}\n(.*?)^```$"
        return re.findall(found, words, re.MULTILINE | re.DOTALL)

    functions, program = blocks("python")
    (schema,), (case,) = blocks("sql"), blocks("json")
    folder = tmp_path / "notes"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text(functions, encoding="utf-8")
    (folder / "schema.sql").write_text(schema, encoding="utf-8")
    (folder / "tests" / "notes.json").write_text(case, encoding="utf-8")
    (tmp_path / "ledgerstone.toml").write_text("".join(blocks("toml")), encoding="utf-8")

    ran = run(program, tmp_path)
    tested = Program(tmp_path).run("protocols", "test", "notes")
    listed = Program(tmp_path).run("protocols", "list", "--json")

    assert ran.returncode == 0, ran.stderr
    assert (tested.code, tested.out) == (0, "1 cases in 4 runs, 0 failed\n"), tested.out
    assert [(each["protocol"], each["parked"]) for each in listed.json["protocols"]] == [
        ("notes", 0)
    ]


@pytest.mark.slow
def test_the_commands_of_signing_run(tmp_path: Path) -> None:
    """The shell example of "How to sign with a group" leads to a finalized request."""
    document = (ROOT / "docs/how-to/sign-with-a-group.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```sh\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    ran = subprocess.run(
        [shutil.which("bash") or "bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert "state        finalized" in ran.stdout


def test_the_moves_of_signing_are_those_of_the_code() -> None:
    """The table of moves in the explanation has every move of the code, and no other."""
    document = (ROOT / "docs/explanation/signing.md").read_text(encoding="utf-8")

    told = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", document, re.MULTILINE))

    assert told == {(before.value, after.value) for before, after in MOVES}


def test_links_lead_somewhere() -> None:
    """Every relative link of a document names a file that is there."""
    link = re.compile(r"\]\((?!https?:)([^)#]+)")
    missing = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]
        for target in link.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]

    assert missing == []

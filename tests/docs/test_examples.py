"""The code in the documents runs."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from tests.cli.program import Program

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if BLOCK.search(path.read_text(encoding="utf-8"))
)
SHOP_URL = "sqlite:///shop.db"


def run(example: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The example, as a program that is started in this folder."""
    (folder / "example.py").write_text(example, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("document", DOCUMENTS)
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
def test_nothing_else_changes(
    document: str, rows: dict[str, list[object]], tmp_path: Path, home: Home
) -> None:
    """On every database that the comment names the example does the same, also a second time."""
    (block, *_) = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    assert SHOP_URL in block
    Program(tmp_path).run("migrate", "--url", home.url)
    there = block.replace(SHOP_URL, home.url)

    first, second = run(there, tmp_path), run(there, tmp_path)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    with Ledger(home.url) as ledger, ledger.reading() as tx:
        ids = tx.connection.execute(text("SELECT id FROM orders")).scalars().all()
        types = tx.connection.execute(text("SELECT type FROM job")).scalars().all()
    assert ids == rows["orders"] * 2
    assert types == rows.get("job", [])


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


def test_what_is_enqueued_elsewhere_is_found(tmp_path: Path) -> None:
    """The jobs of "Accept many at once" are in the queue that the workers of the shop look at."""
    first, second, *_ = BLOCK.findall((ROOT / "docs/how-to/run-jobs.md").read_text("utf-8"))

    ran = [run(first, tmp_path), run(second, tmp_path)]

    assert [one.returncode for one in ran] == [0, 0], ran[-1].stderr
    with Ledger(f"sqlite:///{tmp_path}/shop.db") as ledger, ledger.reading() as tx:
        queues = tx.connection.execute(text("SELECT queue, COUNT(*) FROM job GROUP BY queue"))
        assert [tuple(row) for row in queues] == [("mail", 1001)]


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

"""The code in the documents runs."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if BLOCK.search(path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_run(document: str, tmp_path: Path) -> None:
    """Each example of a document runs as it stands, in the shop that they all speak of."""
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    shop.close()
    blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))

    for number, block in enumerate(blocks):
        example = tmp_path / f"example_{number}.py"
        example.write_text(block, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert ran.returncode == 0, ran.stderr


def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    """The ten lines of the README accept a job and a message with a row and do both."""
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        shop.execute("CREATE TABLE stock (pieces INTEGER)")
        shop.execute("INSERT INTO stock VALUES (5)")
    shop.close()
    (block, *_) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))

    ran = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    with sqlite3.connect(tmp_path / "shop.db") as shop:
        stock = shop.execute("SELECT pieces FROM stock").fetchall()
    shop.close()
    assert ran.stdout == "receipt for order 7 attempt 1\n"
    assert stock == [(4,)]


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

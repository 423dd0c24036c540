"""The list of known errors fits the code: each of its entries can be put in."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tools import mutants

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_entry_can_be_put_in() -> None:
    """What an entry looks for stands once in its file, and what it runs is there."""
    mistakes = [f"{each.name}: {said}" for each in mutants.listed() if (said := each.mistake())]

    assert mistakes == []


@pytest.mark.slow
def test_every_entry_runs_tests_that_exist() -> None:
    """The paths of its tests lead somewhere, and each name that selects some stands in a test."""
    listed = mutants.listed()
    paths = {word for each in listed for word in each.tests if word.startswith("tests/")}
    files = {path.partition("::")[0] for path in paths}
    sources = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/ledgerstone/testing/**/*.py")]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    known = f"{texts} {' '.join(files)} sqlite postgres mysql".lower()
    selected = " ".join(
        expression
        for each in listed
        for option, expression in pairwise(each.tests)
        if option == "-k"
    )
    named = {name for path in paths for name in path.partition("[")[0].split("::")[1:]}
    words = named | set(re.findall(r"\w+", selected)) - {"and", "or", "not"}

    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
    assert [word for word in sorted(words) if word.lower() not in known] == []


@pytest.mark.slow
def test_every_promise_has_three() -> None:
    """At least three entries break each promise of ARCHITECTURE.md, and none breaks another."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    promises = re.findall(
        r"^(\d+)\. \*\*",
        text.partition("## What is promised")[2].partition("\n## ")[0],
        re.MULTILINE,
    )
    broken = Counter(str(each.promise) for each in mutants.listed())

    assert len(promises) == 8
    assert sorted(set(broken) - set(promises)) == []
    assert [promise for promise in promises if broken[promise] < 3] == []


def test_what_must_pass_without_an_error_is_run_once() -> None:
    """Selections of the same file become one run that selects what each of them does."""
    runs = mutants.merged(
        [
            ("tests/a.py", "-k", "x or y"),
            ("tests/a.py::TestA::test_b[1-2]",),
            ("tests/a.py", "tests/c.py", "-m", "not slow", "-k", "z"),
            ("tests/d.py", "-k", "z"),
            ("tests/d.py",),
        ]
    )

    assert runs == [
        ["tests/a.py", "-m", "not slow", "-k", "(z)"],
        ["tests/a.py", "-k", "(TestA and test_b) or (x or y)"],
        ["tests/c.py", "-m", "not slow", "-k", "(z)"],
        ["tests/d.py"],
    ]

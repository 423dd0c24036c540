"""Importing a driver while another thread imports a part of it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ledgerstone import errors
from ledgerstone.ledger import Ledger
from ledgerstone.store.connections import drivers
from ledgerstone.testing.waiting import until
from tests.chores import Chores
from tests.harness.threads import aside, signaled

PACKAGE = "a_driver_of_the_tests"
WHOLE = f"""
import sys

tests = sys.modules[{__name__!r}]
tests.begun.set()
tests.signaled(tests.waited_for)
from {PACKAGE}.part import name
"""
PART = f"""
import {PACKAGE}

name = "complete"
"""

begun, waited_for = threading.Event(), threading.Event()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package whose parts are imported with it."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text(WHOLE)
    (folder / "part.py").write_text(PART)
    monkeypatch.syspath_prepend(tmp_path)
    begun.clear()
    waited_for.clear()
    yield
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_another_thread_imports_a_part() -> None:
    """Where the two would wait for each other the driver is complete all the same."""

    def import_part() -> None:
        signaled(begun)
        theirs.append(threading.get_ident())
        # Whose import fails is for Python to say; this one is not ours.
        with suppress(Exception):
            importlib.import_module(f"{PACKAGE}.part")

    def go_on() -> None:
        waiting = importlib._bootstrap._blocking_on  # type: ignore[attr-defined]
        until(lambda: theirs and theirs[0] in waiting)
        waited_for.set()

    theirs: list[int] = []
    with aside(import_part), aside(go_on):
        drivers.load(PACKAGE)

    assert sys.modules[PACKAGE].name == "complete"


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is Unsupported at the first use, and the hint says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with (
        Ledger("postgresql://127.0.0.1/nothing") as ledger,
        pytest.raises(errors.Unsupported, match=r"ledgerstone\[postgres\]"),
    ):
        ledger.run(lambda tx: Chores(tx).enqueue(1))

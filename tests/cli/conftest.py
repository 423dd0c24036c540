"""The command for every test of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.ledger import Ledger
from tests.cli.program import Program
from tests.cli.shop import ledger_in


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The command, called in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Program(folder)


@pytest.fixture
def embedded(program: Program) -> Iterator[Ledger]:
    """A ledger on the embedded database that the command uses unless it is told otherwise."""
    with ledger_in(program) as ledger:
        yield ledger

"""The command, for tests of rooms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The command, called in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Program(folder)

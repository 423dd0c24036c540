"""What only the engine decides is asked on one database: it makes no difference which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.testing.fixtures import Home, new_home


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database that needs no server."""
    yield from new_home(request, "sqlite", tmp_path)

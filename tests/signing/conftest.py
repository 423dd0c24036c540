"""A database, a store and groups at work, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.signing.rocksdb import Database, FamilyOptions
from ledgerstone.signing.store import Store
from tests.signing.world import Worlds

FAMILIES = {"rows": FamilyOptions(), "sums": FamilyOptions(appends=True)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the database lies."""
    return tmp_path / "database"


@pytest.fixture
def database(folder: Path) -> Iterator[Database]:
    """An open database with two families."""
    with Database(folder, FAMILIES) as opened:
        yield opened


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """An open store."""
    with Store(folder) as opened:
        yield opened


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Makes groups at work, each on a store of its own."""
    with Worlds(tmp_path) as made:
        yield made

"""Databases for uploads, and a server on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.blobs.serving import serving
from tests.blobs.tus_client import Client


@pytest.fixture
def file_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A migrated file: what only the protocol decides need not be tried on every database."""
    yield from new_home(request, "sqlite", tmp_path, migrated=True)


@pytest.fixture(params=KINDS)
def migrated_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A migrated database of each kind: for what a commit decides."""
    yield from new_home(request, request.param, tmp_path, migrated=True)


@pytest.fixture
def client(file_home: Home) -> Iterator[Client]:
    """A client of a server on a file."""
    with serving(file_home.url) as served:
        yield served.client


@pytest.fixture(params=KINDS[1:])
def server_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A database on a server: a file has one writer, who stops all others anyway."""
    yield from new_home(request, request.param, tmp_path, migrated=True)

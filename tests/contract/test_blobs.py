"""The contract of files, on every database."""

from __future__ import annotations

from tests.contract.blobs.files import FileContract, on_disk
from tests.contract.blobs.limits import FolderContract, LimitContract
from tests.contract.blobs.slices import SliceContract

__all__ = ["on_disk"]


class TestSlices(SliceContract):
    """In any order."""


class TestFiles(FileContract):
    """Whole."""


class TestLimits(LimitContract):
    """At their limits."""


class TestFolder(FolderContract):
    """Beside the database."""

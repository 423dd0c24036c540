"""Files in slices: stored in any order, resumed, compared with their hash, and read by ranges."""

from __future__ import annotations

from ledgerstone.blobs.blobs import Blobs
from ledgerstone.blobs.progress import Progress
from ledgerstone.blobs.store import BlobStore

__all__ = ["BlobStore", "Blobs", "Progress"]

"""Uploads by HTTP: the tus protocol 1.0 as an ASGI application of its own.

    app = UploadApp(ledger.blobs, authorize=who_asks, finished=attach)

It needs no web framework: give it to an ASGI server, or mount it in an application.
"""

from __future__ import annotations

from ledgerstone.blobs.tus.app import UploadApp
from ledgerstone.blobs.tus.request import UploadRequest
from ledgerstone.blobs.tus.uploads import FinishedUpload

__all__ = ["FinishedUpload", "UploadApp", "UploadRequest"]

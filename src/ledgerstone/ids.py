"""Ids: UUIDv7 in their usual spelling, so that keys made later sort later."""

from __future__ import annotations

from uuid_utils import uuid7


def new_id() -> str:
    """A fresh id."""
    return str(uuid7())

"""Handlers for tests whose effects can be seen in the database."""

from __future__ import annotations

from sqlalchemy import text

from ledgerstone.engine.source import Claim
from ledgerstone.store.transaction import Transaction

_MARK = text("INSERT INTO effect (chore_id) VALUES (:id)")


def leave_mark(tx: Transaction, claim: Claim) -> None:
    """An atomic handler: one row for each time it took effect."""
    tx.connection.execute(_MARK, {"id": claim.key})

"""The id of a store: several stores may publish to one ledger."""

from __future__ import annotations

import secrets

from ledgerstone.signing.access import Transaction
from ledgerstone.signing.keys import StoreIdKey

ID_BYTES = 16


def store_id(tx: Transaction) -> str:
    """The random id of this store in hex, made when it is first asked for."""
    key = StoreIdKey()
    found = tx.get_for_update(key.family, key.encode())
    if found is None:
        found = secrets.token_bytes(ID_BYTES)
        tx.put(key.family, key.encode(), found)
    return found.hex()

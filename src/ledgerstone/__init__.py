"""Accept once, do later, prove what happened."""

from __future__ import annotations

from ledgerstone.ledger import AsyncTransaction, Ledger, Transaction

__version__ = "0.1.0"
__all__ = ["AsyncTransaction", "Ledger", "Transaction", "__version__"]

"""Accept once, do later, prove what happened."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgerstone.async_transaction import AsyncTransaction
    from ledgerstone.engine.backoff import Backoff, BackoffPolicy
    from ledgerstone.ledger import Ledger, Transaction

__version__ = "0.1.0"
__all__ = [
    "AsyncTransaction",
    "Backoff",
    "BackoffPolicy",
    "Ledger",
    "Transaction",
    "__version__",
]

_MODULES = {
    "AsyncTransaction": "ledgerstone.async_transaction",
    "Backoff": "ledgerstone.engine.backoff",
    "BackoffPolicy": "ledgerstone.engine.backoff",
    "Ledger": "ledgerstone.ledger",
    "Transaction": "ledgerstone.ledger",
}


def __getattr__(name: str) -> object:
    """Load the module of a public name at its first use: pytest imports us for its plugin."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)

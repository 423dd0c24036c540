"""Accept once, do later, prove what happened."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgerstone.ledger import AsyncTransaction, Ledger, Transaction

__version__ = "0.1.0"
__all__ = ["AsyncTransaction", "Ledger", "Transaction", "__version__"]


def __getattr__(name: str) -> object:
    """The façade, loaded when it is first asked for: pytest imports the package for its plugin."""
    if name in __all__:
        return getattr(import_module("ledgerstone.ledger"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)

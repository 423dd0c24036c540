"""Threshold signing on RocksDB: M of the N members of a group agree and sign before money moves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ledgerstone.errors import Unsupported
from ledgerstone.failpoints import declare

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

__all__ = ["Signing"]

FAILPOINTS = declare(
    {
        "signing.committing",
        "signing.committed",
        "signing.migrating",
        "signing.restoring",
        "signing.deleting",
        "signing.published",
    }
)

DUTIES = "signing."
"""The names of its duties begin with this."""
EXTRA = ("blake3", "coincurve", "cryptography")
"""The packages of the extra `ledgerstone[signing]`."""


def __getattr__(name: str) -> object:
    """The façade, loaded when it is first asked for; Unsupported names the extra it needs."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        return getattr(import_module("ledgerstone.signing.signing"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        message = f"signing needs the package {error.name}"
        raise Unsupported(message, hint="install ledgerstone[signing]") from error


def check_extra() -> None:
    """Unsupported, which names the package, unless everything that signing needs is installed."""
    __getattr__("Signing")

"""The ledgers that benchmarks open, and what their databases say of themselves."""

from __future__ import annotations

from ledgerstone.ledger import Ledger
from ledgerstone.settings import MessagingSettings, Settings, StoreSettings

SILENT_MS = 600_000


def opened(url: str, messaging: MessagingSettings | None = None) -> Ledger:
    """A ledger with the documented defaults, whatever the environment says."""
    # A slow statement is in the figures; it need not be said between them.
    store = StoreSettings(slow_statement_ms=SILENT_MS)
    messaging = messaging or MessagingSettings()
    return Ledger(url, settings=Settings(url=url, store=store, messaging=messaging))


def described(url: str) -> dict[str, str]:
    """What the database says of itself."""
    with opened(url) as ledger, ledger.reading() as tx:
        return dict(ledger.database.dialect.describe(tx.connection))

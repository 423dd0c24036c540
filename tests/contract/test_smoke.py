"""x."""

from ledgerstone import Ledger


def test_smoke(ledger: Ledger) -> None:
    """x."""
    with ledger.transaction() as tx:
        tx.chores.enqueue(1)

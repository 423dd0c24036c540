"""`python -m ledgerstone` is the command `ledgerstone`."""

from __future__ import annotations

from ledgerstone.cli import main

if __name__ == "__main__":
    main()

"""The command line."""

from __future__ import annotations


def main() -> None:
    """The command `ledgerstone`."""
    # Here and not above: a worker of the demonstration imports its handler from this package, and
    # has no use for a command line.
    from ledgerstone.cli.program import app

    app(prog_name="ledgerstone")

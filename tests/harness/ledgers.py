"""Ledgers that a test opens beside its own, and transactions that leave nothing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.store.clock import Clock
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.fixtures import Home

_numbers = itertools.count(1)


def opened(url: str, *, clock: Clock | None = None, **settings: Any) -> Ledger:
    """A ledger with settings and a clock of its own, migrated."""
    ledger = Ledger(url, settings=Settings.load(url=url, environ={}, **settings), clock=clock)
    try:
        ledger.migrate()
    except BaseException:
        ledger.close()
        raise
    return ledger


@contextmanager
def subscribed(ledger: Ledger, channel: str) -> Iterator[WakeSignal]:
    """A wake-up signal of a channel."""
    wake_signal = WakeSignal()
    ledger.database.wake_signals.subscribe(channel, wake_signal)
    try:
        yield wake_signal
    finally:
        ledger.database.wake_signals.unsubscribe(channel, wake_signal)


@contextmanager
def another(home: Home, folder: Path) -> Iterator[Ledger]:
    """A ledger on another database of the same kind."""
    with empty_beside(home, folder) as url, opened(url) as ledger:
        yield ledger


@contextmanager
def empty_beside(home: Home, folder: Path) -> Iterator[str]:
    """The URL of another database of the same kind; it is empty."""
    if home.server is None:
        yield f"sqlite:///{folder}/another.db"
        return
    name = f"another_{os.getpid()}_{next(_numbers)}"
    url = home.server.create_database(name)
    try:
        yield url
    finally:
        home.server.drop_database(name)


class Undone(Exception):
    """Raised at the end of a transaction that shall leave nothing."""


@contextmanager
def undone(ledger: Ledger) -> Iterator[Transaction]:
    """A transaction that leaves nothing."""
    with suppress(Undone), ledger.transaction() as tx:
        yield tx
        raise Undone

"""SQLite: `PRAGMA data_version` changes after a commit of another connection."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from ledgerstone.store.wakeup import ALL, WakeSignals

LOOK_SECONDS = 0.004
STOP_SECONDS_MAX = 5.0

_log = logging.getLogger("ledgerstone.store")


class DataVersionWatcher:
    """Reads the pragma a few hundred times a second; a read takes microseconds and no lock."""

    def __init__(self, driver: ModuleType, path: Path, wake_signals: WakeSignals) -> None:
        self._driver = driver
        self._path = path
        self._wake_signals = wake_signals
        self._stop = threading.Event()
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self.prompt = False

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._watch, name="ledgerstone-data-version", daemon=True
        )
        self._thread.start()
        self._started.wait(STOP_SECONDS_MAX)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def _watch(self) -> None:
        try:
            address = f"file:{quote(str(self._path))}?mode=ro"
            connection = self._driver.connect(address, uri=True, isolation_level=None)
            seen = self._look(connection)
        except self._driver.Error:
            _log.exception("wake-ups by polling: the file cannot be watched")
            self._started.set()
            return
        self.prompt = True
        self._started.set()
        while not self._stop.wait(LOOK_SECONDS):
            try:
                version = self._look(connection)
            except self._driver.Error:
                # A writer may lock the file for a moment, for example to truncate the WAL.
                self.prompt = False
                continue
            self.prompt = True
            if version != seen:
                seen = version
                self._wake_signals.notify((ALL,))
        self.prompt = False
        connection.close()

    @staticmethod
    def _look(connection: Any) -> int:
        row = connection.execute("PRAGMA data_version").fetchone()
        return int(row[0])

"""Importing a driver, also while another thread imports a part of it."""

from __future__ import annotations

import importlib
import time

IMPORT_TRIES_MAX = 40
IMPORT_WAIT_SECONDS = 0.05


def load(driver: str) -> None:
    """Import a driver completely; ModuleNotFoundError if it is not installed.

    Two threads that import parts of one package in different order would wait for each other.
    Python lets one of them go on with modules that are not complete: its import fails with an error
    of any kind, or answers a module that lacks names. Then the other thread is given time.
    """
    for _ in range(IMPORT_TRIES_MAX - 1):
        try:
            module = importlib.import_module(driver)
        except ModuleNotFoundError as error:
            if error.name == driver:
                raise
        except Exception:  # noqa: BLE001, S110 - also an error of the import system itself
            pass
        else:
            if not getattr(module.__spec__, "_initializing", False):
                return
        time.sleep(IMPORT_WAIT_SECONDS)
    importlib.import_module(driver)

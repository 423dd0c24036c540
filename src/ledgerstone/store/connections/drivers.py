"""Importing a driver while another thread imports it too."""

from __future__ import annotations

import importlib
import time

IMPORT_TRIES_MAX = 40
IMPORT_WAIT_SECONDS = 0.05


def load(driver: str) -> None:
    """Import a driver completely; ModuleNotFoundError if it is not installed.

    Two threads that import parts of one package in different order would deadlock. Python resolves
    that by handing one of them incomplete modules: its import then fails with any error, or returns
    a module that lacks names. In that case this function waits and tries again.
    """
    for _ in range(IMPORT_TRIES_MAX - 1):
        try:
            module = importlib.import_module(driver)
        except ModuleNotFoundError as error:
            if error.name == driver:
                raise
        except Exception:  # noqa: BLE001, S110 - any error of an incomplete module
            pass
        else:
            if not getattr(module.__spec__, "_initializing", False):
                return
        time.sleep(IMPORT_WAIT_SECONDS)
    importlib.import_module(driver)

"""Where the store of signing lies, and whether old rows are moved: settings, then environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ledgerstone.settings import SigningSettings

FOLDER = "threshold-signing"
DATA_DIR_VARIABLE = "KASPA_DATA_DIR"
DATA_DIR_DEFAULT = ".igra"
MIGRATIONS_VARIABLE = "KASPA_IGRA_ENABLE_MIGRATIONS"


def store_folder(settings: SigningSettings, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the database: in that of the setting, of the environment, or in `.igra`."""
    environ = os.environ if environ is None else environ
    given = settings.data_dir or environ.get(DATA_DIR_VARIABLE) or DATA_DIR_DEFAULT
    return Path(given) / FOLDER


def migration_wanted(settings: SigningSettings, environ: Mapping[str, str] | None = None) -> bool:
    """Whether opening moves rows of the default family."""
    if settings.migrate is not None:
        return settings.migrate
    environ = os.environ if environ is None else environ
    return environ.get(MIGRATIONS_VARIABLE, "").strip().lower() in {"1", "true"}

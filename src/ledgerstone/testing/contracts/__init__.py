"""Contracts of parts that third parties implement: subclass their classes in a test module.

    from ledgerstone.testing.contracts.source import SourceContract

    class TestReminders(SourceContract):
        ...

Each method is a clause. `ledgerstone.testing.fixtures` runs it on SQLite, PostgreSQL and MariaDB.
"""

from pathlib import Path

import pytest

# They are imported after this, so that a failed assertion in them says what was compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py"))
)

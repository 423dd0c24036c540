"""The revisions as Alembic sees them."""

from __future__ import annotations

from alembic.config import Config
from alembic.script import ScriptDirectory

from ledgerstone.store.schema import revisions


def test_files_are_named_after_their_revisions() -> None:
    """The numbers in the names of the files are the revisions that Alembic knows, in its order."""
    config = Config()
    config.set_main_option("script_location", str(revisions.LOCATION))

    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]

    assert known[::-1] == list(revisions.titles())

"""The revisions as Alembic sees them."""

from __future__ import annotations

from alembic.config import Config
from alembic.script import ScriptDirectory

from ledgerstone.store.schema import migrate as migrating


def test_files_are_named_after_their_revisions() -> None:
    """The numbers in the names of the files are the revisions that Alembic knows, in its order."""
    config = Config()
    config.set_main_option("script_location", str(migrating.LOCATION))

    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]

    assert revisions[::-1] == list(migrating.titles())

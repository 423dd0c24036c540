"""A program with an Alembic of its own beside a ledger in the same database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from reminders import REMINDERS
from sqlalchemy import Column, Integer, MetaData, Table, inspect

from ledgerstone import Ledger
from ledgerstone.alembic import including, tables_of
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine

{imported}
metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
with create_engine({url!r}).connect() as connection:
    context.configure(connection=connection, target_metadata=metadata, {included}
        include_schemas={schemas})
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
"""
TEMPLATE = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
from alembic import op
import sqlalchemy as sa

def upgrade():
    ${upgrades if upgrades else "pass"}
"""


class Shop:
    """A program whose own tables are kept by Alembic."""

    def __init__(self, folder: Path, url: str, *, lines: bool, schemas: bool = False) -> None:
        self._folder = folder
        (folder / "migrations" / "versions").mkdir(parents=True)
        (folder / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
        (folder / "migrations" / "script.py.mako").write_text(TEMPLATE)
        env = ENV.format(
            url=url,
            imported="from ledgerstone.alembic import include_object" if lines else "",
            included="include_object=include_object," if lines else "",
            schemas=schemas,
        )
        (folder / "migrations" / "env.py").write_text(env)

    def alembic(self, *words: str) -> None:
        """`alembic`, as its author would call it."""
        ended = subprocess.run(
            [sys.executable, "-m", "alembic", *words],
            cwd=self._folder,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr

    def revision(self, name: str) -> str:
        """What `revision --autogenerate` writes."""
        self.alembic("revision", "--autogenerate", "-m", name)
        (file,) = (self._folder / "migrations" / "versions").glob(f"*_{name}.py")
        return file.read_text()


def furnished(url: str, *, rooms: bool = False) -> Ledger:
    """A ledger with all of its tables, and a job in them."""
    ledger = Ledger(url, rooms=[REMINDERS] if rooms else [])
    ledger.migrate()
    ledger.registry.setup.apply(ledger.database)
    ledger.run(lambda tx: tx.jobs.enqueue("a", key="kept"))
    return ledger


@pytest.mark.slow
def test_autogenerate_leaves_ours_alone(home: Home, tmp_path: Path) -> None:
    """With the two lines a revision has what is theirs alone, and its upgrade loses nothing."""
    with furnished(home.url) as ledger:
        url = ledger.database.url.render_as_string(hide_password=False)
        before = set(inspect(ledger.database.engine).get_table_names())
        shop = Shop(tmp_path, url, lines=True)

        first = shop.revision("first")
        shop.alembic("upgrade", "head")
        second = shop.revision("second")

        assert "create_table('orders'" in first
        assert "drop_" not in first
        assert "op." not in second.partition("def upgrade")[2]
        after = set(inspect(ledger.database.engine).get_table_names())
        assert after == before | {"orders", "alembic_version"}
        again = ledger.run(lambda tx: tx.jobs.enqueue("a", key="kept"))
        assert not again.created


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("home", ["postgres"], indirect=True)
def test_autogenerate_of_all_schemas(home: Home, tmp_path: Path) -> None:
    """A program that looks at every schema leaves ours alone, too."""
    with furnished(home.url) as ledger:
        url = ledger.database.url.update_query_dict({"options": "-csearch_path=public"})
        shown = url.render_as_string(hide_password=False)

        written = Shop(tmp_path, shown, lines=True, schemas=True).revision("first")

    assert "create_table('orders'" in written
    assert "drop_" not in written


@pytest.mark.slow
def test_without_the_lines_it_would_not(tmp_path: Path) -> None:
    """That is what the lines are for: Alembic drops what it does not find in the metadata."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    with furnished(url):
        shop = Shop(tmp_path / "shop", url, lines=False)

        assert "drop_table('job')" in shop.revision("first")


def test_every_table_is_known(home: Home) -> None:
    """No table that a ledger makes is missing from what is left alone, its rooms' included."""
    with furnished(home.url, rooms=True) as ledger:
        made = set(inspect(ledger.database.engine).get_table_names())

        assert made <= tables_of(ledger.settings)


def test_a_table_of_theirs_is_compared() -> None:
    """A table of their metadata that has the name of one of ours is looked at as ever."""
    table = Table("worker", MetaData(), Column("id", Integer))
    include = including(Settings())

    assert include(table, "worker", "table", False, None)
    assert include(table, "worker", "table", True, table)
    assert not include(table, "worker", "table", True, None)


def test_names_that_are_settings() -> None:
    """Tables of messaging are left alone under the names that the settings give them."""
    settings = Settings.load(environ={}, messaging={"outbox_table": "shop_outbox"})

    assert "shop_outbox" in tables_of(settings)
    assert "messenger_outbox" not in tables_of(settings)

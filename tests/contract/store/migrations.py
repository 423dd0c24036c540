"""The migration contract: an empty or older database becomes the declared one, whatever happens."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from sqlalchemy import inspect, text

from ledgerstone import errors
from ledgerstone.jobs.tables import tables as job_tables
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.store import leases
from ledgerstone.store.schema import revisions
from ledgerstone.store.schema.columns import VERSION_TABLE
from ledgerstone.store.schema.tables import tables as store_tables
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.schema_shape import drop, make, shape
from tests.harness import drivers
from tests.harness.child import Child
from tests.harness.ledgers import empty_beside, opened
from tests.harness.threads import together

MIGRATE = """
from pathlib import Path
from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.store.schema import revisions

url, location = sys.argv[1:]
revisions.LOCATION = Path(location)
settings = Settings.load(url=url, environ={}, store={"auto_migrate": "never"})
with Ledger(url, settings=settings) as ledger:
    ready()
    print(ledger.migrate().current)
"""
NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "{following}"
down_revision = "{newest}"

def upgrade():
    op.execute("CREATE TABLE IF NOT EXISTS later (id INTEGER PRIMARY KEY)")

def downgrade():
    op.drop_table("later")
"""
DECLARED = (store_tables, job_tables)
FIRST_IDENTITY = "SELECT id FROM ledger_identity"
REVISIONS = "SELECT version_num FROM ledgerstone_revision"
SECONDS_OF_2020, SECONDS_OF_2100 = 1_577_836_800, 4_102_444_800


class MigrationContract:
    """What holds for migrations. Fixture: `home`, an empty database."""

    @pytest.fixture
    def bare(self, home: Home) -> Iterator[Ledger]:
        """A ledger on the empty database, which is told not to migrate."""
        with never_migrating(home.url) as ledger:
            yield ledger

    @pytest.fixture
    def later(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A version of Ledgerstone that has one migration more."""
        folder = tmp_path / "migrations"
        copytree(revisions.LOCATION, folder)
        newest = revisions.newest()
        following = f"{int(newest) + 1:04}"
        script = NEXT.format(newest=newest, following=following)
        (folder / "versions" / f"{following}_later.py").write_text(script)
        monkeypatch.setattr(revisions, "LOCATION", folder)
        return folder

    def test_an_empty_database_is_refused(self, home: Home) -> None:
        """What is not migrated gives SchemaMissing on a server; an embedded one migrates itself."""
        with Ledger(home.url, settings=Settings.load(url=home.url, environ={})) as ledger:
            if ledger.database.dialect.embedded:
                assert standing(ledger).up_to_date
            else:
                for use in (ledger.transaction, ledger.reading):
                    with pytest.raises(errors.SchemaMissing) as raised, use():
                        pass
                    assert "ledgerstone migrate" in str(raised.value)

    def test_migrating_never(self, bare: Ledger) -> None:
        """Told never to migrate by itself, also an embedded database is refused."""
        with pytest.raises(errors.SchemaMissing):
            bare.run(lambda _: None)

        assert standing(bare).current is None
        bare.migrate()
        bare.run(lambda _: None)

    def test_migrating_always(self, home: Home) -> None:
        """Told always to migrate, opening it is enough, on a server too."""
        settings = Settings.load(url=home.url, environ={}, store={"auto_migrate": "always"})

        with Ledger(home.url, settings=settings) as ledger:
            assert standing(ledger).up_to_date

    def test_migrating_twice(self, bare: Ledger) -> None:
        """The second time finds nothing to do, says where it stood, and changes nothing."""
        first = bare.migrate()
        identity = asked(bare, FIRST_IDENTITY)

        second = bare.migrate()

        assert (first.current, first.pending[-1]) == (None, revisions.newest())
        assert (second.current, second.pending) == (revisions.newest(), ())
        assert asked(bare, FIRST_IDENTITY) == identity

    def test_the_version_is_kept_true(self, bare: Ledger) -> None:
        """`schema_version` names every revision that was applied, and when, in seconds."""
        bare.migrate()

        rows = asked(bare, "SELECT version, applied_at FROM schema_version ORDER BY version")
        assert [row[0] for row in rows] == list(range(1, int(revisions.newest()) + 1))
        assert all(SECONDS_OF_2020 < row[1] < SECONDS_OF_2100 for row in rows)

    def test_the_result_is_what_is_declared(self, bare: Ledger) -> None:
        """The migrations make exactly the tables that the code declares."""
        bare.migrate()

        tables = [table for one in DECLARED for table in one.sorted_tables]
        migrated = shape(bare, tables)
        drop(bare, [table.name for table in tables])
        make(bare, tables)

        assert shape(bare, tables) ^ migrated == set()

    def test_the_script_does_the_same(self, bare: Ledger, home: Home) -> None:
        """The printed SQL, run statement by statement on an empty database, does all of it."""
        script = revisions.script(bare.database.url.get_backend_name(), bare.database.namespace)

        execute(home.url, script)

        assert standing(bare).up_to_date
        assert bare.migrate().pending == ()
        assert len(asked(bare, FIRST_IDENTITY)) == 1
        assert asked(bare, "SELECT MAX(version) FROM schema_version") == [(number(bare),)]
        self.test_the_result_is_what_is_declared(bare)

    def test_the_script_from_a_revision(self, bare: Ledger) -> None:
        """Printed from a revision on, the SQL holds only what comes after it."""
        script = revisions.script(
            bare.database.url.get_backend_name(),
            bare.database.namespace,
            since=revisions.newest(),
        )

        assert "CREATE TABLE" not in script

    def test_two_at_once(self, bare: Ledger, home: Home) -> None:
        """Two processes that migrate at the same moment both succeed, and it happens once."""
        first, second = (Child(MIGRATE, home.url, revisions.LOCATION) for _ in range(2))
        with first, second:
            first.go()
            second.go()
            ended = sorted([first.ended(), second.ended()])

        assert ended == [(0, revisions.newest()), (0, "None")]
        assert asked(bare, REVISIONS) == [(revisions.newest(),)]
        assert len(asked(bare, FIRST_IDENTITY)) == 1

    def test_two_databases_at_once(self, bare: Ledger, home: Home, tmp_path: Path) -> None:
        """Two threads of one process migrate two databases at the same moment."""
        with empty_beside(home, tmp_path) as url, never_migrating(url) as other:
            reports = together(bare.migrate, other.migrate)

            assert [len(report.pending) for report in reports] == [number(bare)] * 2
            assert standing(bare).up_to_date
            assert standing(other).up_to_date

    def test_killed_while_migrating(self, bare: Ledger, home: Home) -> None:
        """Killed with -9 in the middle, the next run completes it."""
        with Child(MIGRATE, home.url, revisions.LOCATION, failpoint="migrate.step=kill") as child:
            child.go()
            code, _ = child.ended()

        assert code == -signal.SIGKILL
        assert standing(bare).current is None
        bare.migrate()
        assert standing(bare).up_to_date
        assert len(asked(bare, FIRST_IDENTITY)) == 1
        self.test_the_result_is_what_is_declared(bare)

    def test_an_older_one_keeps_its_data(self, home: Home, later: Path) -> None:
        """A database at an older revision is told so; migrated, it has all that it had."""
        newest, older = revisions.newest(), f"{int(revisions.newest()) - 1:04}"
        with never_migrating(home.url) as ledger:
            revisions.migrate(ledger.database, to=older)
            ledger.database.run(lambda tx: leases.acquire(tx, "door", "ann", seconds=60))
            before = asked(ledger, "SELECT * FROM leases") + asked(ledger, FIRST_IDENTITY)

            with pytest.raises(errors.SchemaOutdated) as raised:
                ledger.run(lambda _: None)
            stood = ledger.migrate()

            assert "ledgerstone migrate" in str(raised.value)
            assert (stood.current, stood.pending) == (older, (newest,))
            assert asked(ledger, "SELECT * FROM leases") + asked(ledger, FIRST_IDENTITY) == before
            assert asked(ledger, "SELECT MAX(version) FROM schema_version") == [(int(newest),)]
            assert asked(ledger, "SELECT * FROM later") == []

    def test_killed_between_two(self, home: Home, later: Path) -> None:
        """Killed at the last of several revisions, the next run completes all."""
        newest = revisions.newest()
        failpoint = f"migrate.step=kill@{int(newest)}"
        with Child(MIGRATE, home.url, later, failpoint=failpoint) as child:
            child.go()
            code, _ = child.ended()

        with never_migrating(home.url) as ledger:
            ledger.migrate()

            assert code == -signal.SIGKILL
            assert standing(ledger).current == newest
            assert asked(ledger, "SELECT MAX(version) FROM schema_version") == [(int(newest),)]
            assert asked(ledger, "SELECT * FROM later") == []
            assert len(asked(ledger, FIRST_IDENTITY)) == 1

    def test_a_newer_one_is_refused(self, home: Home) -> None:
        """A database that a newer version has migrated is SchemaOutdated, and is left alone."""
        with opened(home.url) as ledger, ledger.transaction() as tx:
            unknown = f"UPDATE {VERSION_TABLE} SET version_num = '9999'"  # noqa: S608 - fixed
            tx.connection.execute(text(unknown))

        with never_migrating(home.url) as ledger:
            with pytest.raises(errors.SchemaOutdated) as raised:
                ledger.run(lambda _: None)
            with pytest.raises(errors.SchemaOutdated):
                ledger.migrate()

            assert "9999" in str(raised.value)
            assert not raised.value.retryable

    def test_the_users_own_migrations(self, bare: Ledger) -> None:
        """A program's own Alembic table is neither read nor changed."""
        with bare.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
            connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))

        bare.migrate()

        assert asked(bare, "SELECT * FROM alembic_version") == [("theirs",)]
        assert standing(bare).up_to_date

    def test_looking_changes_nothing(self, bare: Ledger) -> None:
        """Asking where an empty database stands leaves it empty."""
        schema = standing(bare)

        assert (schema.current, schema.up_to_date) == (None, False)
        with bare.database.reading() as tx:
            assert inspect(tx.connection).get_table_names() == []


def never_migrating(url: str) -> Ledger:
    """A ledger that does not migrate by itself."""
    settings = Settings.load(url=url, environ={}, store={"auto_migrate": "never"})
    return Ledger(url, settings=settings)


def standing(ledger: Ledger) -> revisions.Schema:
    """Where its database stands."""
    with ledger.database.reading() as tx:
        return revisions.look(tx.connection, ledger.database.namespace)


def number(ledger: Ledger) -> int:
    """The number of the revision that its database is at."""
    return int(standing(ledger).current or 0)


def asked(ledger: Ledger, query: str) -> list[tuple[Any, ...]]:
    """What the database answers."""
    with ledger.database.reading() as tx:
        return [tuple(row) for row in tx.connection.execute(text(query))]


def execute(url: str, script: str) -> None:
    """Run a script with the bare driver, as a client program would."""
    connection = drivers.connect(url)
    cursor = connection.cursor()
    for statement in script.split(";\n"):
        lines = [line for line in statement.splitlines() if not line.startswith("--")]
        if any(line.strip() for line in lines):
            cursor.execute("\n".join(lines))
    cursor.close()
    connection.commit()
    connection.close()

"""The room contract: what every room keeps, whatever its work is.

    class TestReminders(RoomContract):
        @pytest.fixture
        def room(self) -> Room[Any, Any]:
            return REMINDERS

        def fill(self, ledger: Ledger) -> None:
            ledger.run(lambda tx: tx.room(REMINDERS).remind("now"))

The fixtures are those of `ledgerstone.testing.fixtures`. Each clause is a sentence of `Room`; it
holds for a part that the room does not have. Of the room's sources this contract proves the fence;
prove the rest with the source contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
import pytest
import typer
from sqlalchemy import Table, delete, func, inspect, select
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from ledgerstone import failpoints
from ledgerstone.console.call import Call
from ledgerstone.engine.source import Ask, Claim, Outcome, OutcomeKind, Source
from ledgerstone.errors import LedgerstoneError, NotAllowedNow, SettingsError, Unsupported
from ledgerstone.ledger import SHIPPED, Ledger
from ledgerstone.room import Check, CheckStatus, Opened, Room
from ledgerstone.settings import Settings
from ledgerstone.store.schema import revisions, row_security
from ledgerstone.store.schema.columns import declared
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source_subject import LEASE_SECONDS, WORKER
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.schema_shape import drop, make, occupy, shape

CLAIMS_MAX = 100
CRASHES_MAX = 10
AnyRoom = Room[Any, Any]


class RoomContract:
    """Fixtures: `room`, `home`, `ledger`, `clock`. `fill` puts in an item of each of its kinds."""

    @pytest.fixture
    def room(self) -> AnyRoom:
        """The room."""
        raise NotImplementedError

    def fill(self, ledger: Ledger) -> None:
        """Put in what the room keeps; its sources have work then. Nothing, if it keeps nothing."""

    @pytest.fixture
    def ledger(self, home: Home, room: AnyRoom, clock: ManualClock) -> Iterator[Ledger]:
        """A migrated ledger that has the room."""
        with _ledger(home, room, clock) as ledger:
            ledger.migrate()
            yield ledger

    @pytest.fixture
    def bare(self, home: Home, room: AnyRoom) -> Iterator[Ledger]:
        """A ledger that has the room, on an empty database."""
        with _ledger(home, room) as ledger:
            yield ledger

    @pytest.fixture
    def filled(self, ledger: Ledger) -> Ledger:
        """A migrated ledger that has the room, with something in it."""
        self.fill(ledger)
        return ledger

    def test_its_tables_are_as_declared(self, ledger: Ledger, room: AnyRoom) -> None:
        """The migrations make its tables as they are declared."""
        tables = _tables(room)
        migrated = shape(ledger, tables)

        drop(ledger, room.tables)
        make(ledger, tables)

        assert shape(ledger, tables) ^ migrated == set()

    def test_it_has_no_other_tables(self, ledger: Ledger, room: AnyRoom) -> None:
        """The migrations make its tables, and no other."""
        if room.migrations is None:
            return
        before = _names(ledger)
        _leave(ledger, room)
        others = _names(ledger)

        ledger.migrate()

        assert before - others == {*room.tables, room.stored.version_table}
        assert _names(ledger) == before

    def test_it_is_migrated_from_each_revision(self, ledger: Ledger, room: AnyRoom) -> None:
        """Each revision leads to the next one, and the last one to the declared tables."""
        if room.migrations is None:
            return
        migrated = shape(ledger, _tables(room))
        _leave(ledger, room)

        for revision in _revisions(room):
            revisions.migrate(ledger.database, to=revision)
            assert _standing(ledger).rooms[room.name].current == revision

        assert _standing(ledger).up_to_date
        assert shape(ledger, _tables(room)) ^ migrated == set()

    def test_it_is_migrated_once(self, filled: Ledger, room: AnyRoom) -> None:
        """A second run finds nothing to do and changes nothing."""
        before = shape(filled, _tables(room)), _counts(filled, room)

        stood = filled.migrate()

        assert stood.everything_pending == ()
        assert (shape(filled, _tables(room)), _counts(filled, room)) == before

    def test_its_migrations_are_printed(self, bare: Ledger, room: AnyRoom) -> None:
        """`migrate --sql` prints what `migrate` does; from the last revision on, nothing."""
        tables, names, rooms = _tables(room), bare.database.namespace, bare.database.rooms
        kind = bare.database.url.get_backend_name()

        _execute(bare, revisions.script(kind, names, rooms=rooms))

        assert _standing(bare).up_to_date
        printed = shape(bare, tables)
        drop(bare, room.tables)
        make(bare, tables)
        assert shape(bare, tables) ^ printed == set()
        for last in _revisions(room)[-1:]:
            assert "CREATE TABLE" not in revisions.script(kind, names, since=last, rooms=rooms)

    def test_a_table_of_others_is_refused(self, ledger: Ledger, room: AnyRoom) -> None:
        """A table of another program with the name of one of its tables is refused by name."""
        for table in _tables(room):
            _leave(ledger, room)
            with ledger.database.engine.begin() as connection:
                occupy(connection, ledger, table)

            with pytest.raises(NotAllowedNow, match=f"the table {table.name} is there already"):
                ledger.migrate()

            drop(ledger, [table.name])

    def test_its_section(self, home: Home, room: AnyRoom) -> None:
        """Each setting of its section is described and has a default; others are refused."""
        settings = _settings(home, room)
        section = settings.section(room.name, room.settings or msgspec.Struct)

        assert room.settings is None or isinstance(section, room.settings)
        for each in msgspec.structs.fields(room.settings) if room.settings is not None else ():
            described = msgspec.inspect.type_info(each.type)
            assert isinstance(described, msgspec.inspect.Metadata), each.name
            assert (described.extra_json_schema or {}).get("description"), each.name
        with pytest.raises(SettingsError, match=room.name):
            _settings(home, room, **{room.name: {"no_such_setting": 1}})

    def test_its_sources_are_fenced(
        self, ledger: Ledger, clock: ManualClock, room: AnyRoom
    ) -> None:
        """Its sources have different names; a claim that was lost settles nothing."""
        for source in room.sources(_opened(ledger, room)):
            assert _claim(ledger, source, WORKER) == []
        self.fill(ledger)
        sources = room.sources(_opened(ledger, room))
        names = [source.name for source in sources]
        assert len(names) == len(set(names))

        claimed = 0
        for source in sources:
            taken = _claim(ledger, source, WORKER)
            assert _claim(ledger, source, "another") == []
            clock.advance(LEASE_SECONDS + 1)
            rescue = partial(source.rescue, limit=CLAIMS_MAX, crashes_max=CRASHES_MAX)
            assert ledger.run(rescue) == len(taken)
            late = [Outcome(claim, OutcomeKind.DONE) for claim in taken]
            assert list(ledger.run(partial(source.settle, outcomes=late)).lost) == late
            claimed += len(taken)
        assert claimed or not sources

    def test_its_duties_are_done(self, filled: Ledger, room: AnyRoom) -> None:
        """Its duties have different names and can be done, on an empty and on a filled ledger."""
        opened = _opened(filled, room)
        duties = room.duties(opened, room.sources(opened))

        assert len({duty.name for duty in duties}) == len(duties)
        for duty in duties:
            if duty.rounds is not None:
                duty.rounds()
            else:
                filled.run(duty.do)

    def test_its_status(self, ledger: Ledger, room: AnyRoom) -> None:
        """Status facts become JSON: without a schema, on an empty and a filled ledger."""
        opened = _opened(ledger, room)
        for facts in room.status.values():
            _written(facts(opened, None))
            with ledger.reading() as tx:
                _written(facts(opened, tx))

        self.fill(ledger)

        with ledger.reading() as tx:
            for facts in room.status.values():
                _written(facts(opened, tx))
            assert room.waiting(opened, tx) in {True, False}
            assert not room.tables or sum(_counts(ledger, room)) > 0, "`fill` puts nothing in"

    def test_its_checks(self, ledger: Ledger, room: AnyRoom) -> None:
        """Checks of `doctor` answer, and find no problem, on an empty and a filled ledger."""
        opened = _opened(ledger, room)
        empty = [check for find in room.doctor.values() for check in find(opened)]
        self.fill(ledger)
        filled = [check for find in room.doctor.values() for check in find(opened)]

        for check in [*empty, *filled]:
            assert isinstance(check, Check)
            assert check.verdict is not CheckStatus.PROBLEM, check
            assert check.verdict is CheckStatus.OK or check.todo, check

    def test_its_history_only_grows(self, filled: Ledger, room: AnyRoom) -> None:
        """A row of its history cannot be removed."""
        assert {*room.history} <= {*room.tables}
        for table in map(declared, room.history):
            with filled.reading() as tx:
                there = tx.execute(select(func.count()).select_from(table)).scalar_one()
            if there:
                with pytest.raises((LedgerstoneError, DBAPIError)), filled.transaction() as tx:
                    tx.execute(delete(table))

    def test_its_row_security(self, filled: Ledger, room: AnyRoom) -> None:
        """Rules of row-level security name its tables and columns that they have."""
        rules = room.security
        guarded = {*rules.owned, *(child.table for child in rules.children), *rules.shared}

        assert guarded | {*rules.refused} <= {*room.tables}
        assert guarded == rules.grants.keys()
        assert not guarded & {*rules.refused}
        assert all("org_id" in declared(table).c for table in rules.owned)
        for child in rules.children:
            assert child.column in declared(child.table).c
            assert child.parent in rules.owned
        try:
            done = row_security.separate(filled.database)
        except Unsupported:
            return
        assert guarded <= {*done.tables}

    def test_its_failpoints(self, room: AnyRoom) -> None:
        """Its failpoints are known by name."""
        assert room.failpoints <= failpoints.names()

    def test_its_commands(self, room: AnyRoom) -> None:
        """Each of its command groups is imported by its name and shows its help."""
        for name, place in room.cli.items():
            module, _, attribute = place.partition(":")
            app: typer.Typer = getattr(import_module(module), attribute)
            commands = getattr(typer.main.get_command(app), "commands", {})

            for called in [[], *([each] for each in commands)]:
                shown = CliRunner().invoke(app, [*called, "--help"], obj=Call())
                assert shown.exit_code == 0, (name, called, shown.output)
                assert "Usage" in shown.output, (name, called)


def _settings(home: Home, room: AnyRoom, **overrides: Any) -> Settings:
    others = [] if room in SHIPPED else [room]
    return Settings.load(url=home.url, environ={}, with_rooms=others, **overrides)


def _ledger(home: Home, room: AnyRoom, clock: ManualClock | None = None) -> Ledger:
    settings = _settings(home, room, store={"auto_migrate": "never"})
    return Ledger(settings=settings, rooms=[] if room in SHIPPED else [room], clock=clock)


def _opened(ledger: Ledger, room: AnyRoom) -> Opened[Any]:
    return ledger.rooms.opened(room, ledger.database)


def _tables(room: AnyRoom) -> list[Table]:
    """The declared tables, each after those that it refers to."""
    tables = [declared(name) for name in room.tables]
    order = {
        table.name: number
        for one in tables
        for number, table in enumerate(one.metadata.sorted_tables)
    }
    return sorted(tables, key=lambda table: order[table.name])


def _revisions(room: AnyRoom) -> Sequence[str]:
    """The revisions of the room's own line, in order."""
    known = revisions.lines([room.stored])[1:]
    return [revision for line in known for revision in line.titles()]


def _leave(ledger: Ledger, room: AnyRoom) -> None:
    """The database before its tables came; empty, if the kernel's revisions make them."""
    own = {*room.tables, room.stored.version_table}
    drop(ledger, own if room.migrations is not None else _names(ledger))


def _names(ledger: Ledger) -> set[str]:
    """The names of all tables in the place of Ledgerstone's own."""
    own = ledger.database.namespace.own
    with ledger.database.engine.connect() as connection:
        return set(inspect(connection).get_table_names(schema=own))


def _standing(ledger: Ledger) -> revisions.Schema:
    names, rooms = ledger.database.namespace, ledger.database.rooms
    with ledger.database.engine.connect() as connection:
        return revisions.look(connection, names, rooms)


def _counts(ledger: Ledger, room: AnyRoom) -> list[int]:
    """How many rows each of its tables has."""
    with ledger.reading() as tx:
        return [
            tx.execute(select(func.count()).select_from(table)).scalar_one()
            for table in _tables(room)
        ]


def _execute(ledger: Ledger, script: str) -> None:
    """Run a script with the bare driver, as a client program would."""
    connection = ledger.database.engine.raw_connection()
    cursor = connection.cursor()
    for statement in script.split(";\n"):
        lines = [line for line in statement.splitlines() if not line.startswith("--")]
        if any(line.strip() for line in lines):
            cursor.execute("\n".join(lines))
    cursor.close()
    connection.commit()
    connection.invalidate()


def _claim(ledger: Ledger, source: Source, worker: str) -> list[Claim]:
    return [*ledger.run(partial(source.claim, ask=Ask(CLAIMS_MAX, worker, LEASE_SECONDS)))]


def _written(facts: object) -> None:
    assert msgspec.json.encode(msgspec.to_builtins(facts))

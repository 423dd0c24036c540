"""A room of a third party, installed as a distribution of its own: all of it works as shipped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from reminders import REMINDERS, Reminders
from sqlalchemy import create_engine, inspect, text

from ledgerstone import AsyncTransaction, Ledger, errors
from ledgerstone.cli.program import COMMANDS
from ledgerstone.ledger import SHIPPED
from ledgerstone.room import Room
from ledgerstone.settings import Settings
from ledgerstone.store.schema import revisions
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.cli.program import Program

FOLDER = Path(__file__).parent / "distribution" / "reminders"
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
LINES_MAX = 150
SHOP = """
from ledgerstone import Ledger
from reminders import REMINDERS

ledger = Ledger({url!r}, rooms=[REMINDERS])
"""
KERNEL_COMMANDS = {"up", "work", "status", "doctor", "migrate", "demo"}


@pytest.fixture
def ledger(home: Home, clock: ManualClock) -> Iterator[Ledger]:
    """A ledger that has the room."""
    settings = Settings.load(url=home.url, environ={}, rooms=["reminders"])
    with Ledger(settings=settings, clock=clock) as ledger:
        ledger.migrate()
        yield ledger


def published(ledger: Ledger) -> list[str]:
    """The bodies of the messages, the oldest first."""
    with ledger.reading() as tx:
        return [str(message.body) for message in tx.outbox.find().rows][::-1]


def tables_of(home: Home) -> set[str]:
    """The names of all tables."""
    engine = create_engine(Ledger(home.url).database.url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found


def test_it_is_there_when_it_is_listed(home: Home) -> None:
    """A room that is installed and not listed is in no ledger, and has no table."""
    with Ledger(home.url) as ledger:
        ledger.migrate()
        with pytest.raises(errors.BadInput, match="has no room reminders"), ledger.reading() as tx:
            tx.room(REMINDERS)

    assert not {"reminder", "ledgerstone_revision_reminders"} & tables_of(home)


def test_it_can_be_given_or_named(home: Home) -> None:
    """A ledger has the rooms that it is given, and those that its settings name."""
    with Ledger(home.url, rooms=[REMINDERS]) as given:
        given.migrate()
        given.run(lambda tx: tx.room(REMINDERS).remind("once"))
        assert given.settings.rooms == ["reminders"]

    with Ledger(settings=Settings.load(url=home.url, environ={}, rooms=["reminders"])) as named:
        assert named.run(lambda tx: tx.room(REMINDERS).waiting()) == 1


def test_its_work_is_done(ledger: Ledger, clock: ManualClock) -> None:
    """What is due is claimed by a worker of the ledger, and what is not waits."""
    with ledger.transaction() as tx:
        tx.room(REMINDERS).remind("now")
        tx.room(REMINDERS).remind("later", seconds=60)
    worker = ledger.worker()

    worker.tick()
    at_first = published(ledger)
    clock.advance(61)
    worker.tick()

    worker.stop(grace_seconds=0)
    assert at_first == ['{"words":"now"}']
    assert published(ledger) == ['{"words":"now"}', '{"words":"later"}']


def test_it_joins_a_transaction(ledger: Ledger) -> None:
    """What is asked of it in the caller's transaction is undone with it, and kept with it."""
    with ledger.database.engine.connect() as theirs:
        ledger.join(theirs).room(REMINDERS).remind("undone")
        theirs.rollback()
        ledger.join(theirs).room(REMINDERS).remind("kept")
        theirs.commit()

    with ledger.reading() as tx:
        assert tx.room(REMINDERS).waiting() == 1


def test_it_is_awaited(ledger: Ledger) -> None:
    """Under asyncio it is asked in the transaction, and the answer is awaited."""

    async def ask() -> int:
        tx = AsyncTransaction(lambda work: asyncio.to_thread(ledger.run, work))
        return await tx.run(lambda tx: tx.room(REMINDERS).waiting())

    assert asyncio.run(ask()) == 0


def test_its_section(program: Program) -> None:
    """Its settings stand in a section of its name and are checked like all others."""
    file = program.folder / "ledgerstone.toml"
    file.write_text('rooms = ["reminders"]\n[reminders]\nmessage = "wake.up"\n')
    loaded = Settings.load(file, {"LEDGERSTONE_REMINDERS_MESSAGE": "get.up"})

    assert loaded.section("reminders", type(REMINDERS.open(loaded))).message == "get.up"
    file.write_text('rooms = ["reminders"]\n[reminders]\nmesage = "wake.up"\n')
    with pytest.raises(errors.SettingsError, match=r"nearest known name is reminders\.message"):
        Settings.load(file, {})
    file.write_text('[reminders]\nmessage = "wake.up"\n')
    with pytest.raises(errors.SettingsError, match="reminders"):
        Settings.load(file, {})


def test_a_room_that_is_not_installed(home: Home) -> None:
    """The error names it, and what is installed."""
    with pytest.raises(errors.SettingsError, match=r"no room 'acme' is installed; .*reminders"):
        Settings.load(url=home.url, environ={}, rooms=["acme"])


@pytest.mark.slow
def test_its_migrations(program: Program, home: Home) -> None:
    """`migrate` applies them after the kernel's, says where they stand, and writes them as SQL."""
    program.environment |= {"LEDGERSTONE_URL": home.url, "LEDGERSTONE_ROOMS": '["reminders"]'}
    with Ledger(home.url) as before:
        before.migrate()

    pending = program.run("migrate", "--check")
    refused = program.run("reminders", "count")
    applied = program.run("migrate")
    again = program.run("migrate", "--check")
    script = program.run("migrate", "--sql")
    since = program.run("migrate", "--sql", "--since", "reminders_0001")

    assert pending.code == 3
    assert "reminders_0001  reminders" in pending.out
    # An embedded database migrates by itself, but never for a command.
    assert refused.code != 0
    assert "the tables of the room reminders are not in this database" in refused.err
    assert "reminders_0001  reminders" in applied.out
    assert (again.code, "up to date" in again.out) == (0, True)
    assert "INSERT INTO ledgerstone_revision_reminders" in script.out
    assert "CREATE TABLE IF NOT EXISTS reminder" in script.out
    assert (since.code, "CREATE TABLE" in since.out) == (0, False)


def test_its_schema_is_checked(home: Home) -> None:
    """A revision that its code does not know is refused, and names the room."""
    with Ledger(home.url, rooms=[REMINDERS]) as ledger:
        ledger.migrate()
        newer = "UPDATE ledgerstone_revision_reminders SET version_num = 'reminders_9999'"
        ledger.run(lambda tx: tx.connection.execute(text(newer)))

    with (
        pytest.raises(errors.SchemaOutdated, match="the room reminders knows up to"),
        Ledger(home.url, rooms=[REMINDERS]) as ledger,
    ):
        ledger.run(lambda tx: tx.room(REMINDERS).waiting())


def test_a_room_gone_stops_nothing(ledger: Ledger, home: Home) -> None:
    """A ledger that has the room no more goes on, and its tables stay as they are."""
    ledger.run(lambda tx: tx.room(REMINDERS).remind("kept"))

    with Ledger(home.url) as without:
        without.migrate()
        without.run(lambda tx: tx.jobs.enqueue("a"))

    assert ledger.run(lambda tx: tx.room(REMINDERS).waiting()) == 1


@pytest.mark.slow
def test_people_see_it(program: Program, ledger: Ledger, home: Home) -> None:
    """`status`, `doctor` and its own command tell of it."""
    program.environment |= {"LEDGERSTONE_URL": home.url, "LEDGERSTONE_ROOMS": '["reminders"]'}
    ledger.run(lambda tx: tx.room(REMINDERS).remind("soon", seconds=60))

    status = program.run("status", "--json")
    screen = program.run("status")
    doctor = program.run("doctor", "--json")
    count = program.run("reminders", "count", "--json")
    help_ = program.run("--help")

    assert status.json["reminders"] == {"waiting": 1}
    assert status.json["schema"]["rooms"]["reminders"]["current"] == "reminders_0001"
    assert "Reminders  waiting 1" in screen.out
    told = [check for check in doctor.json["checks"] if check["name"] == "reminders"]
    assert told == [{"name": "reminders", "verdict": "ok", "found": "1 wait", "todo": None}]
    assert count.json == {"waiting": 1}
    assert "reminders" in help_.out


def test_the_application_brings_it(program: Program, ledger: Ledger, home: Home) -> None:
    """A room that only the code of an application lists is seen with -A."""
    (program.folder / "shop.py").write_text(SHOP.format(url=home.url))
    ledger.run(lambda tx: tx.room(REMINDERS).remind("soon"))

    status = program.run("-A", "shop:ledger", "status", "--json")
    count = program.run("-A", "shop:ledger", "reminders", "count", "--json")

    assert status.json["reminders"] == {"waiting": 1}
    assert count.json == {"waiting": 1}


@pytest.mark.parametrize("name", ["Acme", "9lives", "", "a-b", "a" * 25])
def test_names(name: str) -> None:
    """A name that could be no part of a table's name is refused."""
    with pytest.raises(errors.BadInput, match="a room cannot be called"):
        Room(name=name)


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    """Two rooms of one name are refused."""
    with pytest.raises(errors.BadInput, match="two rooms are called jobs"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db", rooms=[Room(name="jobs")])


def test_it_is_small() -> None:
    """All of the room has at most so many lines that say something."""
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")]

    assert sum(bool(line.strip()) for text in texts for line in text.splitlines()) <= LINES_MAX


def test_the_document_shows_it() -> None:
    """The code in the document is the code of this room."""
    words = (HOW_TO / "write-a-room.md").read_text(encoding="utf-8")

    for path in (FOLDER / "__init__.py", FOLDER / "migrations" / "0001_reminders.py"):
        assert f"```python\n{path.read_text(encoding='utf-8')}```" in words


def test_the_document_shows_its_tests() -> None:
    """The tests in the document are the tests of this room."""
    words = (HOW_TO / "write-a-source.md").read_text(encoding="utf-8")
    tests = Path(__file__).with_name("test_reminders_contract.py").read_text(encoding="utf-8")

    assert f"```py\n{tests}```" in words


def test_the_commands_of_shipped_rooms() -> None:
    """The program knows each group of the shipped rooms without importing them."""
    theirs = {name: place for room in SHIPPED for name, place in room.cli.items()}

    assert {name: COMMANDS[name] for name in COMMANDS if name not in KERNEL_COMMANDS} == theirs


def test_no_room_takes_a_migration_of_another() -> None:
    """The kernel's revisions made the tables of the first rooms; the others have their own."""
    names = [line.name for line in revisions.lines(room.stored for room in SHIPPED)]

    assert names == ["", *(room.name for room in SHIPPED if room.migrations is not None)]


def test_its_calls_are_typed(ledger: Ledger) -> None:
    """What a transaction answers for a room is what the room's declaration says."""
    with ledger.reading() as tx:
        calls: Reminders = tx.room(REMINDERS)

    assert isinstance(calls, Reminders)

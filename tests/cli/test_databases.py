"""Which database a command works on: it is named, it is said, and hints lead to the same one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from typer.core import TyperGroup

from ledgerstone import protocols
from ledgerstone.cli.program import COMMANDS, _loaded
from ledgerstone.jobs import Status
from ledgerstone.jobs.read import queues, unserved
from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.worker_reports import reported
from tests.cli.program import Ended, Program
from tests.cli.shop import failed_ones
from tests.contract.jobs.examples import dead_letter, enqueue, nothing

APP = ("-A", "shop:ledger")
SHOP = """
from ledgerstone import Ledger

ledger = Ledger({url!r})

@ledger.job("note")
def note() -> None: ...
"""
OWN = "sqlite:///own.db"
EXAMPLE = Path(protocols.__file__).parent / "example"
COMMANDS_OF_ANY_DATABASE = [
    ["migrate"],
    ["migrate", "--check"],
    ["jobs", "list"],
    ["jobs", "enqueue", "note"],
    ["queues"],
    ["schedules", "list"],
    ["outbox", "list"],
    ["outbox", "lanes", "local"],
    ["outbox", "publish", "order.placed"],
    ["outbox", "cleanup"],
    ["inbox", "list"],
    ["inbox", "cleanup"],
    ["failed", "show"],
    ["messaging", "setup", "--apply"],
    ["blobs", "list"],
    ["blobs", "verify"],
    ["blobs", "gc"],
    ["protocols", "list"],
    ["protocols", "tick"],
    ["protocols", "blocked"],
    ["protocols", "retry"],
    ["protocols", "snapshots"],
    ["events", "list"],
]


@pytest.fixture
def shop(program: Program) -> Program:
    """The command, called where an application lies that has a database of its own."""
    (program.folder / "shop.py").write_text(SHOP.format(url=OWN))
    return program


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command by its path."""
    for name, place in COMMANDS.items():
        found = _loaded(name, place)
        yield name, found
        if isinstance(found, TyperGroup):
            for each, command in found.commands.items():
                yield f"{name} {each}", command


def test_every_command_takes_an_application() -> None:
    """-A is an option of every command, like --url."""
    lacking = [
        path
        for path, command in all_commands()
        if not {"-A", "--url"} <= {name for option in command.params for name in option.opts}
    ]

    assert lacking == []


@pytest.mark.parametrize("arguments", COMMANDS_OF_ANY_DATABASE, ids=" ".join)
def test_the_database_is_said(shop: Program, arguments: list[str]) -> None:
    """A command on the application's database says so: on stderr, in JSON, and nothing else."""
    if arguments[0] in {"protocols", "events"}:
        folders = f'[protocols]\nfolders = ["{EXAMPLE}"]\n'
        (shop.folder / "ledgerstone.toml").write_text(folders)
    shop.run("migrate", *APP)

    plain = shop.run(*arguments, *APP)
    machine = shop.run(*APP, *arguments, "--json")

    assert (plain.code, machine.code) == (0, 0), plain.err
    assert (plain.database, machine.database) == (OWN, OWN)
    assert machine.err == ""
    assert not (shop.folder / ".ledgerstone").exists()


@pytest.mark.parametrize("arguments", [["status"], ["doctor"]], ids=" ".join)
def test_the_database_is_shown(shop: Program, arguments: list[str]) -> None:
    """Commands that show the database among other things say it once."""
    shop.run("migrate", *APP)

    ended = shop.run(*arguments, *APP)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count(OWN) == 1


def test_the_hint_names_the_database(program: Program, home: Home) -> None:
    """What is said about tables that are missing leads to the database that was meant."""
    if home.server is None:
        Path(home.url.removeprefix("sqlite:///")).touch()
    (program.folder / "shop.py").write_text(SHOP.format(url=home.url))
    shown = make_url(home.url).render_as_string(hide_password=True).partition("://")[2]
    never = {"LEDGERSTONE_STORE_AUTO_MIGRATE": "never"}

    by_url = program.run("--url", home.url, "jobs", "list", **never)
    by_application = program.run("jobs", "list", *APP, **never)

    (first,) = [line for line in by_url.err.splitlines() if line.startswith("hint: ")]
    (second,) = [line for line in by_application.err.splitlines() if line.startswith("hint: ")]
    assert first.startswith("hint: run `ledgerstone migrate` with --url ")
    assert first.endswith(shown)
    assert second.startswith("hint: run `ledgerstone migrate` with -A shop:ledger (")
    assert shown in second


def test_passwords_are_masked(program: Program) -> None:
    """The database is said without its password, also if it cannot be reached."""
    url = "postgresql://ann:s3cret@127.0.0.1:1/shop"

    plain = program.run("jobs", "list", "--url", url)
    machine = program.run("jobs", "list", "--url", url, "--json")

    assert plain.database == machine.database == "postgresql://ann:***@127.0.0.1:1/shop"
    assert all("s3cret" not in text for text in (plain.err, plain.out, machine.out, machine.err))


def test_status_and_doctor_speak_of_trouble(program: Program, home: Home, ledger: Ledger) -> None:
    """Dead letters, failed messages and types that no worker runs are told by both."""
    reported(ledger, WORKER, types={"jobs:default": ["known"]})
    enqueue(ledger, "known")
    ledger.kinds.add("dies", nothing)
    calm = look(program, home)
    dead_letter(ledger)
    failed_ones(ledger, "order.placed", "order.paid")
    enqueue(ledger, "strange", queue="far")
    enqueue(ledger, "strange", queue="far")
    enqueue(ledger, "known", queue="far")

    status, doctor = look(program, home)
    shown = program.run("--url", home.url, "status")

    assert calm[0]["jobs"]["unserved"] == []
    assert {calm[1][name]["verdict"] for name in CHECKS} == {"ok"}
    assert (status["jobs"]["dead_letters"], status["failed_messages"]) == (1, 2)
    assert status["jobs"]["unserved"] == [
        {"queue": "far", "type": "known", "jobs": 1},
        {"queue": "far", "type": "strange", "jobs": 2},
    ]
    assert {doctor[name]["verdict"] for name in CHECKS} == {"warning"}
    assert doctor["types"]["found"].endswith("known (far), strange (far)")
    for words in ("dead letters 1", "Failed messages  2", "nobody runs strange of the queue far"):
        assert words in shown.out


WORKER = "0190a000-0000-7000-8000-00000000ada0"
CHECKS = ("dead letters", "failed messages", "types")


def look(program: Program, home: Home) -> tuple[Any, dict[str, Any]]:
    """What status and doctor say now."""
    status = program.run("--url", home.url, "status", "--json").json
    doctor: Ended = program.run("--url", home.url, "doctor", "--json")
    return status, {check["name"]: check for check in doctor.json["checks"]}


def test_counts_are_bounded(ledger: Ledger) -> None:
    """No number of status is counted further than its most."""
    for _ in range(5):
        enqueue(ledger, "note")

    with ledger.reading() as tx:
        totals = queues.totals(tx, counted_max=3)
        types = unserved.look(tx, looked_at_max=4)

    assert totals[Status.QUEUED] == 3
    assert [each.jobs for each in types] == [4]

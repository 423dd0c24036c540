"""`-A`: commands on the database of an application, without saying where it is."""

from __future__ import annotations

import pytest

from ledgerstone.jobs import Status
from ledgerstone.jobs.schedules.schedules import Schedules
from ledgerstone.ledger import Ledger
from tests.cli.program import Program

APP = ("-A", "shop:ledger")
SHOP = """
from ledgerstone import Ledger

ledger = Ledger("sqlite:///shop.db")

@ledger.job("note")
def note(word: str = "a") -> str:
    return word
"""


@pytest.fixture
def shop(program: Program) -> Program:
    """The command, called where an application lies whose ledger is in a file of its own."""
    (program.folder / "shop.py").write_text(SHOP)
    return program


@pytest.mark.slow
def test_every_command_of_jobs_takes_it(shop: Program) -> None:
    """Jobs, queues and schedules of the application are found wherever its ledger is."""
    job_id = shop.run("jobs", "enqueue", "note", *APP, "--json").json["id"]
    with Ledger(f"sqlite:///{shop.folder}/shop.db") as ledger, ledger.transaction() as tx:
        Schedules(tx, ledger.kinds).put("nightly", "note", "0 6 * * *")

    listed = shop.run("jobs", "list", *APP, "--json").json["jobs"]
    before = shop.run("jobs", *APP, "list", "--json").json["jobs"]
    looked = [shop.run("jobs", verb, job_id, *APP).code for verb in ("show", "events", "explain")]
    acted = [
        shop.run("jobs", "cancel", job_id, *APP).code,
        shop.run("jobs", "retry", "--all", *APP).code,
        shop.run("queues", "pause", "default", *APP).code,
        shop.run("queues", "limit", "default", "5", *APP).code,
        shop.run("queues", "resume", "default", *APP).code,
        shop.run("schedules", "pause", "nightly", *APP).code,
        shop.run("schedules", "trigger", "nightly", *APP).code,
        shop.run("schedules", "resume", "nightly", *APP).code,
    ]
    queues = [shop.run(*words, *APP, "--json") for words in (["queues"], ["queues", "list"])]
    schedules = shop.run("schedules", *APP, "--json").json["schedules"]
    removed = shop.run("schedules", "remove", "nightly", *APP)
    watched = shop.run("jobs", "watch", job_id, *APP, "--json")

    assert [job["id"] for job in listed] == [job["id"] for job in before] == [job_id]
    assert (looked, acted, removed.code) == ([0] * 3, [0] * 8, 0)
    assert [queue["name"] for ended in queues for queue in ended.json["queues"]] == ["default"] * 2
    assert [found["schedule"]["name"] for found in schedules] == ["nightly"]
    assert watched.json["job"]["status"] == Status.CANCELED.value
    assert not (shop.folder / ".ledgerstone").exists()


def test_looking_makes_no_file(shop: Program) -> None:
    """Without -A no database is made by looking; the ways to name another are told."""
    without = shop.run("jobs", "list")

    assert without.code == 1
    for words in ("--url", "LEDGERSTONE_URL", "-A MODULE:LEDGER", "`ledgerstone migrate`"):
        assert words in without.err
    assert not list(shop.folder.glob("*.db"))


def test_looking_migrates_nothing(shop: Program) -> None:
    """A database without tables is told as such by looking, and stays without."""
    (shop.folder / "empty.db").touch()
    url = ("--url", "sqlite:///empty.db")

    ended = [shop.run(*url, *command) for command in (["jobs", "list"], ["queues"])]

    assert [each.code for each in ended] == [1, 1]
    assert all("hint: run `ledgerstone migrate`" in each.err for each in ended)
    assert shop.run(*url, "migrate", "--check").code == 3


@pytest.mark.parametrize("command", [["jobs", "list"], ["queues"], ["schedules", "list"]])
def test_two_databases_are_one_too_many(shop: Program, command: list[str]) -> None:
    """An application has its database: --url beside it is wrong usage."""
    ended = shop.run(*command, *APP, "--url", "sqlite:///other.db")

    assert ended.code == 2
    assert "leave --url and" in ended.err

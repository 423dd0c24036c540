"""The steady work of signing in `ledgerstone up` and `work`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerstone import Ledger
from ledgerstone.console.call import Call
from ledgerstone.settings import Settings
from ledgerstone.signing.cli import opening
from ledgerstone.signing.folder import FOLDER
from ledgerstone.signing.signing import Signing
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import RequestId
from ledgerstone.testing.waiting import until
from tests.cli.program import Program
from tests.signing.people import group, payment
from tests.signing.world import World

LATE = RequestId("late")
PAID = RequestId("paid")
STARTED = "SIGTERM stops it"
OFTEN = {"LEDGERSTONE_SIGNING_WORK_SECONDS": "0.5", "LEDGERSTONE_SIGNING_PUBLISH": "true"}
SHOP = """
from ledgerstone import Ledger

ledger = Ledger()

@ledger.job("note")
def note(word: str) -> str:
    return word.upper()
"""


@pytest.fixture
def store(program: Program) -> Path:
    """A store with a request that is overdue, and a finalized one; nobody has it open."""
    folder = program.folder / ".igra" / FOLDER
    world = World(folder, group(2, 3))
    with world.signing:
        world.propose(LATE, payment(1))
        world.finalize(world.signed(PAID, payment(2)))
    return folder


@pytest.fixture
def ledger(program: Program) -> Iterator[Ledger]:
    """The embedded database of the program."""
    (program.folder / ".ledgerstone").mkdir()
    url = f"sqlite:///{program.folder}/.ledgerstone/ledgerstone.db"
    with Ledger(settings=Settings.load(url=url, environ={})) as opened:
        opened.migrate()
        yield opened


def is_expired(folder: Path) -> bool:
    with Signing(folder, read_only=True) as signing:
        return signing.get_request(LATE).decision.status is Status.EXPIRED


def published(ledger: Ledger) -> list[str]:
    with ledger.reading() as tx:
        return [row.name for row in tx.outbox.find(limit=10).rows]


def signing_of(program: Program) -> dict[str, Any]:
    """The work done on the store, as `status` says."""
    told = program.run("status", "--json").json
    (alive,) = [each for each in told["workers"] if each["state"] == "alive"]
    return {**alive["duties"], "trouble": alive["trouble"]}


@pytest.mark.slow
def test_up_looks_after_it(program: Program, store: Path, ledger: Ledger) -> None:
    """A request expires, one that ended is published, `status` says so, SIGTERM ends it."""
    with program.start("up", **OFTEN) as running:
        running.says("signing: expire 1, publish 1")
        until(lambda: signing_of(program).get("signing.publish") == 1, what="the report")
        shown = program.run("status")
        running.terminate()
        code = running.ended()
    after = program.run("status")

    assert code == 0
    assert "Traceback" not in running.said
    assert "workers so far: expire 1, forget 0, publish 1" in shown.out
    assert "no worker looks after it" in after.out
    assert is_expired(store)
    assert published(ledger) == ["signing.finalized"]


@pytest.mark.slow
def test_another_process_has_it_open(program: Program, store: Path, ledger: Ledger) -> None:
    """That is said, in the log and in `status`; the worker goes on, and does it afterwards."""
    with Signing(store), program.start("up", **OFTEN) as running:
        running.says("duty signing.expire: store_locked: another process has the store in")
        until(lambda: signing_of(program)["trouble"] is not None, what="the report")
        trouble = signing_of(program)["trouble"]
        with ledger.reading():
            pass
        running.terminate()
        locked = running.ended()
    with program.start("up", **OFTEN) as running:
        running.says("signing: expire 1, publish 1")
        running.terminate()
        free = running.ended()

    assert trouble.startswith("duty signing.expire: store_locked: another process has the store in")
    assert (locked, free) == (0, 0)


@pytest.mark.slow
def test_commands_beside_it(program: Program, store: Path) -> None:
    """Between turns the store is free for commands that write."""
    with program.start("up", **OFTEN) as running:
        running.says("signing: expire 1, publish 1")
        ends = [program.run("signing", "seen", "mark", *words(n)).code for n in range(3)]
        running.terminate()
        code = running.ended()

    assert (ends, code) == ([0, 0, 0], 0)
    assert is_expired(store)


def test_a_command_waits_a_little(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that finds the store locked for a moment opens it when it is free."""
    holder = Signing(store)

    def pauses() -> Iterator[float]:
        yield 0.0
        holder.close()
        yield 0.0

    monkeypatch.setattr(opening, "LOCKED_SECONDS", pauses())
    call = Call(url=None, config=None, application=None, json=False, verbose=False)

    with opening.signing_of(call, store.parent) as signing:
        assert signing.get_request(PAID).decision.status is Status.FINALIZED


def words(number: int) -> tuple[str, ...]:
    """A message of a peer."""
    return ("ann", "55" * 32, str(number))


@pytest.mark.slow
def test_one_process_of_several(program: Program, store: Path, ledger: Ledger) -> None:
    """Of several worker processes one does it."""
    (program.folder / "shop.py").write_text(SHOP)
    with program.start("work", "-A", "shop:ledger", "--processes", "2", **OFTEN) as running:
        until(lambda: is_expired(store), what="the first turn")
        until(lambda: published(ledger) == ["signing.finalized"], what="the relay")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert "store_locked" not in running.said


@pytest.mark.slow
def test_the_sample_is_not_run(program: Program, store: Path) -> None:
    """Where a store lies, `up` publishes nothing of it into the database of the sample."""
    with program.start("up", **OFTEN) as running:
        running.says("signing: expire 1, publish 1")
        running.terminate()
        running.ended()

    assert "this is the sample" not in running.said
    assert not (program.folder / ".ledgerstone" / "sample.db").exists()
    assert is_expired(store)

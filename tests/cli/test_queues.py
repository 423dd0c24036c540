"""`ledgerstone queues`: what waits and runs in each; pause, resume and limit."""

from __future__ import annotations

import pytest

from ledgerstone.jobs import Limit
from ledgerstone.jobs.read import queues
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.cli.program import COLUMNS, Program


def fill(ledger: Ledger) -> None:
    """Jobs in every state that counts, and some that are over."""

    @ledger.job("fine", queue="mail")
    def fine() -> None:
        pass

    @ledger.job("broken", queue="mail", max_attempts=1)
    def broken() -> None:
        message = "broken"
        raise ValueError(message)

    with ledger.transaction() as tx:
        tx.jobs.enqueue(broken)
        tx.jobs.enqueue(fine)
    ledger.worker().tick()
    with ledger.transaction() as tx:
        tx.jobs.enqueue(fine)
        tx.jobs.enqueue(fine, delay_seconds=3600)
        tx.jobs.enqueue("other")
        tx.jobs.pause("held", by="ann")
        tx.jobs.limit("mail", 3)


def test_it_lists_them(program: Program, home: Home, ledger: Ledger) -> None:
    """Each queue with what waits, runs and is dead in it, its pause and its limit."""
    fill(ledger)

    told = program.run("--url", home.url, "queues", "--json")
    shown = program.run("--url", home.url, "queues")
    listed = program.run("--url", home.url, "queues", "list", "--json")

    assert [queue["name"] for queue in listed.json["queues"]] == ["default", "held", "mail"]
    found = {queue["name"]: queue for queue in told.json["queues"]}
    assert list(found) == ["default", "held", "mail"]
    counts = ("queued", "scheduled", "blocked", "running", "dead_letters", "concurrency_max")
    assert [found["mail"][count] for count in counts] == [1, 1, 0, 0, 1, 3]
    assert found["mail"]["oldest_due_ms"] >= 0
    assert found["default"]["queued"] == 1
    assert (found["held"]["paused_by"], found["held"]["oldest_due_ms"]) == ("ann", None)
    assert told.json["counted_all"] is True
    assert shown.code == 0
    assert " s by ann" in shown.out or " ms by ann" in shown.out
    assert max(map(len, shown.out.splitlines())) <= COLUMNS


def test_counting_has_a_maximum(ledger: Ledger) -> None:
    """At most so many jobs of a state are counted, and that there are more is told."""
    with ledger.transaction() as tx:
        for _ in range(3):
            tx.jobs.enqueue("some")

    with ledger.reading() as tx:
        some, all_of_them = queues.look(tx, counted_max=2), queues.look(tx, counted_max=4)

    assert (some.queues[0].queued, some.counted_all) == (2, False)
    assert (all_of_them.queues[0].queued, all_of_them.counted_all) == (3, True)


def test_blocked_and_running_jobs_are_counted(ledger: Ledger) -> None:
    """A job that runs, and one that waits for it by its limit key, are told apart."""
    seen: list[queues.Queues] = []

    @ledger.job("alone", limit=Limit(key=lambda: "one"))
    def alone() -> None:
        with ledger.reading() as tx:
            seen.append(queues.look(tx))

    with ledger.transaction() as tx:
        tx.jobs.enqueue(alone)
        tx.jobs.enqueue(alone)
    ledger.worker().tick()

    (queue,) = seen[0].queues
    assert (queue.running, queue.queued + queue.blocked) == (1, 1)


def test_a_scheduled_job_whose_time_has_come_is_queued(ledger: Ledger, clock: ManualClock) -> None:
    """It waits for a worker then, also before one has looked, and how long is told."""
    with ledger.transaction() as tx:
        tx.jobs.enqueue("later", delay_seconds=60)
    with ledger.reading() as tx:
        before = queues.look(tx).queues[0]

    clock.advance(90)

    with ledger.reading() as tx:
        after = queues.look(tx).queues[0]
    assert (before.queued, before.scheduled, before.oldest_due_ms) == (0, 1, None)
    assert (after.queued, after.scheduled, after.oldest_due_ms) == (1, 0, 30_000)


def test_one_is_paused_and_resumed(program: Program) -> None:
    """What was paused, by whom, is shown until it is resumed."""
    program.run("migrate")

    paused = program.run("queues", "pause", "mail", "--by", "ann")
    seen = program.run("queues", "--json").json["queues"]
    resumed = program.run("queues", "resume", "mail", "--json")
    after = program.run("queues")

    assert paused.code == resumed.code == 0
    assert "`ledgerstone queues resume mail`" in paused.out
    assert (seen[0]["name"], seen[0]["paused_by"]) == ("mail", "ann")
    assert resumed.json == {"queue": "mail", "paused": False}
    assert after.out.startswith("no queue has jobs")


def test_one_is_limited(program: Program) -> None:
    """A limit is set and taken away; the options of every command may stand before it."""
    program.run("migrate")

    limited = program.run("queues", "--json", "limit", "mail", "5")
    seen = program.run("queues", "--json").json["queues"]
    freed = program.run("queues", "limit", "mail", "none")

    assert limited.json == {"queue": "mail", "concurrency_max": 5}
    assert [(queue["name"], queue["concurrency_max"]) for queue in seen] == [("mail", 5)]
    assert freed.out == "mail runs any number of jobs at once\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["limit", "mail", "many"], "a limit is a number or none, not 'many'"),
        (["limit", "mail", "0"], "pause it to run none"),
        (["pause", ""], "a queue"),
        (["pause", "x" * 101], "100"),
    ],
    ids=["no number", "zero", "no name", "a long name"],
)
def test_bad_input_is_told(program: Program, arguments: list[str], words: str) -> None:
    """A name or a limit that cannot be is refused with what is allowed; exit 1."""
    program.run("migrate")

    ended = program.run("queues", *arguments)

    assert ended.code == 1
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_it_makes_no_file(program: Program) -> None:
    """Where no database is, none is made."""
    ended = [program.run("queues"), program.run("queues", "pause", "mail")]

    assert [one.code for one in ended] == [1, 1]
    assert all("hint: run `ledgerstone migrate`" in one.err for one in ended)
    assert list(program.folder.iterdir()) == []

"""`ledgerstone work`: it runs an application's jobs, in one process or in several."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from ledgerstone import protocols
from ledgerstone.jobs import JobRow, Status
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.cli.program import Program, Running

EXAMPLE = Path(protocols.__file__).parent / "example"
NOTE = """
@ledger.job("note")
def note() -> None: ...
"""
STARTED = "work: ledgerstone"
SHOP = """
import os, time
from pathlib import Path
from ledgerstone import Ledger

ledger = Ledger()

@ledger.job("note")
def note(word: str) -> str:
    return word.upper()

@ledger.job("mail.send", queue="mail")
def send(to: str) -> int:
    return os.getpid()

@ledger.job("wait")
def wait() -> int:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return os.getpid()
"""


@pytest.fixture
def shop(program: Program) -> Program:
    """The command, called where an application lies."""
    (program.folder / "shop.py").write_text(SHOP)
    return program


@pytest.fixture
def embedded(shop: Program) -> Iterator[Ledger]:
    """The embedded database that the application makes."""
    url = f"sqlite:///{shop.folder}/.ledgerstone/ledgerstone.db"
    with Ledger(settings=Settings.load(url=url, environ={})) as ledger:
        yield ledger


def enqueued(ledger: Ledger, name: str, queue: str | None = None, **payload: object) -> str:
    with ledger.transaction() as tx:
        return tx.jobs.enqueue(name, payload, queue=queue).id


def standing(ledger: Ledger, job_id: str) -> JobRow:
    with ledger.reading() as tx:
        return tx.jobs.get(job_id)


def await_status(ledger: Ledger, job_id: str, status: Status) -> JobRow:
    until(lambda: standing(ledger, job_id).status is status, what=f"{job_id} {status.value}")
    return standing(ledger, job_id)


def await_begun(shop: Program) -> None:
    """Until the handler of `wait` runs: a job that is claimed and has not begun is returned."""
    until((shop.folder / "begun").exists, what="the job began")


def process_ids(running: Running, count: int) -> list[int]:
    """The process ids of the worker processes, in the order they were started."""
    running.says("is pid ", times=count)
    return [int(found) for found in re.findall(r"worker process \d+ is pid (\d+)\n", running.said)]


def test_it_runs_jobs(shop: Program, home: Home, ledger: Ledger) -> None:
    """It says what it runs, does a job of each queue, and SIGTERM ends it with exit 0."""
    with shop.start("work", "-A", "shop:ledger", LEDGERSTONE_URL=home.url) as running:
        running.says(STARTED)
        noted = enqueued(ledger, "note", word="hello")
        sent = enqueued(ledger, "mail.send", queue="mail", to="ann")
        done = [await_status(ledger, job_id, Status.SUCCEEDED) for job_id in (noted, sent)]
        running.terminate()
        code = running.ended()

    assert code == 0
    assert [row.result for row in done] == ["HELLO", running.pid]
    assert "runs note, wait, mail.send of shop:ledger from the queues default, mail" in running.said
    assert "10 at a time each, in 1 process\n" in running.said
    assert "done 2, failed 0, returned 0, refused 0" in running.said
    assert "Traceback" not in running.said


def test_it_serves_only_the_queues_it_is_told(shop: Program, embedded: Ledger) -> None:
    """With --queue nothing of another queue is run; --json ends it with one document."""
    noted = enqueued(embedded, "note", word="hello")
    sent = enqueued(embedded, "mail.send", queue="mail", to="ann")

    with shop.start(
        *("work", "-A", "shop:ledger", "--queue", "mail", "--concurrency", 3, "--json")
    ) as running:
        await_status(embedded, sent, Status.SUCCEEDED)
        running.terminate()
        code = running.ended()

    facts = msgspec.json.decode(running.said[running.said.index("\n{") :])
    assert code == 0
    assert standing(embedded, noted).status is Status.QUEUED
    assert (facts["queues"], facts["types"], facts["concurrency"]) == (["mail"], ["mail.send"], 3)
    assert (facts["processes"], facts["done"], facts["died"]) == (1, 1, 0)


def test_a_queue_that_no_job_has_is_told(shop: Program, embedded: Ledger) -> None:
    """A queue that no job is declared for is served for what is put there by name, with a word."""
    noted = enqueued(embedded, "note", queue="urgent", word="hello")

    with shop.start("work", "-A", "shop:ledger", "--queue", "urgent") as running:
        await_status(embedded, noted, Status.SUCCEEDED)
        running.terminate()
        code = running.ended()

    assert code == 0
    assert "no job of shop:ledger has the queue urgent" in running.said


def test_it_shows_what_it_runs_on_a_terminal(shop: Program) -> None:
    """On a terminal there is a table of the jobs and a live screen below it."""
    with shop.show("work", "-A", "shop:ledger", NO_COLOR="1") as running:
        running.says("Ctrl-C stops it")
        running.interrupt()
        code = running.ended()

    assert code == 0
    assert re.search(r"mail\.send +mail +5", running.said)
    assert STARTED not in running.said


def test_without_jobs_it_does_not_start(program: Program) -> None:
    """An application without a job is refused, and what to do is said."""
    (program.folder / "empty.py").write_text("from ledgerstone import Ledger\nledger = Ledger()\n")

    ended = program.run("work", "-A", "empty:ledger")

    assert ended.code == 1
    assert "error: empty:ledger has no jobs\nhint: decorate a function" in ended.err


@pytest.mark.parametrize(
    ("processes", "code", "runs"),
    [
        (1, "", "runs the queues of protocols of chat:ledger"),
        (2, "", "runs the queues of protocols of chat:ledger"),
        (2, NOTE, "runs note of chat:ledger from default, and the queues of protocols"),
    ],
)
def test_protocols_are_worked_off(program: Program, processes: int, code: str, runs: str) -> None:
    """With jobs and consumers, and where a ledger has neither of them."""
    (program.folder / "ledgerstone.toml").write_text(
        f'url = "sqlite:///chat.db"\n[protocols]\nfolders = ["{EXAMPLE}"]\n'
    )
    application = f"from ledgerstone import Ledger\nledger = Ledger()\n{code}"
    (program.folder / "chat.py").write_text(application)
    with Ledger(f"sqlite:///{program.folder}/chat.db") as ledger:
        ledger.migrate()
        chat = ledger.protocol(EXAMPLE)
        chat.receive([b'{"type":"group","data":{"id":"g","name":"Garden","by":"ann"}}'])

        with program.start("work", "-A", "chat:ledger", "--processes", processes) as running:
            until(lambda: chat.read(lambda db: db.rows("SELECT id FROM chat_group")) == [("g",)])
            running.terminate()
            ended = running.ended()

    assert ended == 0
    assert runs in running.said


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-A", "shop:ledger", "--concurrency", "0"],
        ["-A", "shop:ledger", "--processes", "0"],
        ["-A", "shop:ledger", "--url", "sqlite:///other.db"],
    ],
    ids=["no application", "no concurrency", "no process", "two databases"],
)
def test_wrong_usage_is_exit_2(shop: Program, arguments: list[str]) -> None:
    """What cannot be meant is refused before anything is started."""
    ended = shop.run("work", *arguments)

    assert ended.code == 2
    assert not (shop.folder / ".ledgerstone").exists()


@pytest.mark.parametrize("name", ["", "x" * 101, "mail "], ids=["empty", "long", "spaced"])
def test_a_queue_that_cannot_be_is_refused(shop: Program, name: str) -> None:
    """A name that no queue can have is refused before anything is claimed; exit 1."""
    ended = shop.run("work", "-A", "shop:ledger", "--queue", name)

    assert ended.code == 1
    assert ended.err.startswith("error: a queue ")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_server_that_was_not_migrated_is_told(shop: Program, home: Home, processes: int) -> None:
    """Where the tables are missing and may not be made, it ends at once and says what to run."""
    environment = {"LEDGERSTONE_URL": home.url, "LEDGERSTONE_STORE_AUTO_MIGRATE": "never"}

    ended = shop.run("work", "-A", "shop:ledger", "--processes", processes, **environment)

    assert ended.code == 1
    assert "hint: run `ledgerstone migrate`" in ended.err
    assert "is pid" not in ended.err


@pytest.mark.slow
def test_a_process_that_dies_is_replaced(shop: Program, home: Home, ledger: Ledger) -> None:
    """One of two killed with -9: that is said, another starts, jobs are done; exit 0."""
    with shop.start(
        *("work", "-A", "shop:ledger", "--processes", 2, "--json"), LEDGERSTONE_URL=home.url
    ) as running:
        first, second = process_ids(running, 2)
        before = await_status(ledger, enqueued(ledger, "note", word="a"), Status.SUCCEEDED)
        os.kill(first, signal.SIGKILL)
        third = process_ids(running, 3)[2]
        os.kill(second, signal.SIGKILL)
        process_ids(running, 4)
        sent = enqueued(ledger, "mail.send", queue="mail", to="ann")
        after = await_status(ledger, sent, Status.SUCCEEDED)
        running.terminate()
        code = running.ended()

    facts = msgspec.json.decode(running.said[running.said.index("\n{") :])
    assert code == 0
    assert before.result == "A"
    assert after.result not in {first, second}
    assert f"worker process 1, pid {first}, ended by SIGKILL; it is replaced in 0." in running.said
    assert third not in {first, second}
    assert (facts["processes"], facts["died"]) == (2, 2)
    assert facts["done"] >= 1


@pytest.mark.slow
def test_a_process_that_keeps_dying_is_replaced_ever_more_slowly(shop: Program) -> None:
    """A worker process that cannot start is replaced after pauses that double."""
    (shop.folder / "shop.py").write_text(
        SHOP + "import multiprocessing\nif multiprocessing.parent_process(): os._exit(9)\n"
    )

    with shop.start("work", "-A", "shop:ledger", "--processes", 2) as running:
        running.says("ended with exit code 9; it is replaced in 2.0 s")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert running.said.index("replaced in 0.5 s") < running.said.index("replaced in 1.0 s")


@pytest.mark.slow
def test_no_process_outlives_a_killed_parent(shop: Program, embedded: Ledger) -> None:
    """When the first process is killed with -9, its worker processes return their job and end."""
    waiting = enqueued(embedded, "wait")
    with shop.start(
        *("work", "-A", "shop:ledger", "--processes", 2), LEDGERSTONE_ENGINE_GRACE_SECONDS="0.2"
    ) as running:
        children = [psutil.Process(pid) for pid in process_ids(running, 2)]
        await_begun(shop)
        os.kill(running.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs(children, timeout=WAIT_SECONDS_MAX)

    assert (len(gone), alive) == (2, [])
    row = standing(embedded, waiting)
    assert (row.status, row.attempt) == (Status.QUEUED, 0)


@pytest.mark.slow
def test_a_signal_to_all_processes_counts_once(shop: Program, embedded: Ledger) -> None:
    """SIGTERM and Ctrl-C to every process, as a service manager sends them, leave jobs their time.

    The job that runs is finished, not returned.
    """
    waiting = enqueued(embedded, "wait")
    with shop.start("work", "-A", "shop:ledger", "--processes", 2) as running:
        children = process_ids(running, 2)
        await_begun(shop)
        for pid in [*children, *children]:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
        running.terminate()
        running.says("stopping; a second signal")
        Path(shop.folder / "go").touch()
        code = running.ended()

    row = standing(embedded, waiting)
    assert code == 0
    assert (row.status, row.attempt) == (Status.SUCCEEDED, 1)
    assert "done 1, failed 0, returned 0" in running.said


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_second_signal_does_not_wait(shop: Program, embedded: Ledger, processes: int) -> None:
    """The first signal waits for a job, the second returns it, its attempt refunded; exit 0."""
    waiting = enqueued(embedded, "wait")
    with shop.start(
        *("work", "-A", "shop:ledger", "--processes", processes),
        LEDGERSTONE_ENGINE_GRACE_SECONDS="3600",
    ) as running:
        await_begun(shop)
        running.interrupt()
        running.says("a second signal returns")
        running.interrupt()
        code = running.ended()

    row = standing(embedded, waiting)
    assert code == 0
    assert (row.status, row.attempt) == (Status.QUEUED, 0)
    # The other process may claim what the first returned, before it hears that it is to stop.
    assert re.search(r"done 0, failed 0, returned [12], refused 0", running.said)


LOUD = """
import logging
from ledgerstone import Ledger

ledger = Ledger()
log = logging.getLogger("shop.mail")

@ledger.job("mail.send")
def send(to: str) -> None:
    log.info("mail to %s", to)

@ledger.job("mail.print", process=True)
def print_mail(to: str) -> None:
    log.info("printed for %s", to)

@ledger.job("mail.lose", give_up_on=ValueError)
def lose() -> None:
    raise ValueError("no address")
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_application_is_heard(shop: Program, embedded: Ledger, processes: int) -> None:
    """The application's loggers are written like ours, with the ids of the job, from anywhere."""
    (shop.folder / "shop.py").write_text(LOUD)
    sent = enqueued(embedded, "mail.send", to="ann")
    printed = enqueued(embedded, "mail.print", to="bob")
    lost = enqueued(embedded, "mail.lose")

    with shop.start("work", "-A", "shop:ledger", "--processes", processes) as running:
        running.says(STARTED)
        for job_id in (sent, printed):
            await_status(embedded, job_id, Status.SUCCEEDED)
        await_status(embedded, lost, Status.DEAD_LETTER)
        running.says("it is a dead letter")
        running.terminate()
        running.ended()

    mail = f"shop.mail: mail to ann [job_type=mail.send, job_id={sent}, attempt=1]"
    assert mail in running.said
    assert f"shop.mail: printed for bob [job_type=mail.print, job_id={printed}," in running.said
    assert f"ledgerstone.jobs: job mail.lose {lost}: attempt 1 of 5 failed" in running.said
    assert 'raise ValueError("no address")' in running.said
    assert "alembic" not in running.said


def test_the_application_is_heard_as_json(shop: Program, embedded: Ledger) -> None:
    """As JSON each line has the ids by name, and a failed attempt its traceback."""
    (shop.folder / "shop.py").write_text(LOUD)
    sent = enqueued(embedded, "mail.send", to="ann")
    lost = enqueued(embedded, "mail.lose")

    with shop.start("work", "-A", "shop:ledger", LEDGERSTONE_LOG_JSON="true") as running:
        await_status(embedded, sent, Status.SUCCEEDED)
        await_status(embedded, lost, Status.DEAD_LETTER)
        running.says("it is a dead letter")
        running.terminate()
        running.ended()

    lines = [msgspec.json.decode(line) for line in running.said.splitlines() if line[:1] == "{"]
    (mail,) = [line for line in lines if line["logger"] == "shop.mail"]
    (dead,) = [line for line in lines if line["level"] == "ERROR"]
    assert (mail["job_id"], mail["job_type"], mail["attempt"]) == (sent, "mail.send", 1)
    assert (dead["job_id"], dead["job_type"]) == (lost, "mail.lose")
    assert "no address" in dead["traceback"]


def test_an_application_that_sets_up_logging(shop: Program, embedded: Ledger) -> None:
    """An application that has set up logging itself is left alone; each line comes once."""
    own = "import logging\nlogging.basicConfig(level='INFO', format='own: %(message)s')\n"
    (shop.folder / "shop.py").write_text(own + LOUD)
    sent = enqueued(embedded, "mail.send", to="ann")

    with shop.start("work", "-A", "shop:ledger") as running:
        running.says(STARTED)
        await_status(embedded, sent, Status.SUCCEEDED)
        running.says("mail to ann")
        running.terminate()
        running.ended()

    assert running.said.count("mail to ann") == 1
    assert "own: mail to ann\n" in running.said
    assert "own: work:" not in running.said


@pytest.mark.slow
def test_each_line_says_which_process(shop: Program, embedded: Ledger) -> None:
    """With several processes each line of the log names its process, the first one included."""
    (shop.folder / "shop.py").write_text(LOUD)
    sent = enqueued(embedded, "mail.send", to="ann")
    printed = enqueued(embedded, "mail.print", to="bob")

    with shop.start("work", "-A", "shop:ledger", "--processes", 2) as running:
        pids = process_ids(running, 2)
        for job_id in (sent, printed):
            await_status(embedded, job_id, Status.SUCCEEDED)
        running.says("mail to ann")
        running.terminate()
        running.ended()

    lines = [line for line in running.said.splitlines() if line[:2] == "20"]
    one, two = pids
    which = re.compile(rf"(main \({running.pid}\)|worker 1 \({one}\)|worker 2 \({two}\)) ")
    by_own = [line for line in lines if "printed for bob" in line]
    assert lines
    assert all(which.search(line) for line in lines if line not in by_own)
    assert all(re.search(r"worker [12] \(\d+\) shop.mail", line) for line in by_own)

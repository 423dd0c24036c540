"""`ledgerstone jobs`: accepting, listing, showing, watching, canceling, retrying, explaining."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from ledgerstone.cli.program import app
from ledgerstone.ids import new_id
from ledgerstone.jobs import Job, Status
from ledgerstone.jobs.operating import RETRY_MAX
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import Home
from tests.cli.program import COLUMNS, Ended, Program

ESCAPE = "\x1b["
ORG = "11111111-2222-3333-4444-555555555555"
SHOP = """
from ledgerstone import Ledger

ledger = Ledger()
number = 7

@ledger.job("mail.send", queue="mail", max_attempts=2)
def send(to: str, copies: int = 1) -> str:
    return to
"""
GROUPS = ("jobs", "queues")


@pytest.fixture
def shop(program: Program) -> Program:
    """The command, called where an application lies."""
    (program.folder / "shop.py").write_text(SHOP)
    return program


@pytest.fixture
def embedded(program: Program) -> Iterator[Ledger]:
    """The embedded database of the folder, with a job that succeeds and one that never does."""
    url = f"sqlite:///{program.folder}/.ledgerstone/ledgerstone.db"
    with Ledger(settings=Settings.load(url=url, environ={})) as ledger:
        declare(ledger)
        yield ledger


def declare(ledger: Ledger) -> None:
    @ledger.job("fine")
    def fine(job: Job, word: str = "a") -> dict[str, str]:
        job.progress(0.5, "halfway")
        return {"said": word}

    @ledger.job("broken", max_attempts=1)
    def broken(reason: str = "out of [paper]") -> None:
        raise ValueError(reason)


def enqueued(ledger: Ledger, name: str, **options: Any) -> str:
    with ledger.transaction() as tx:
        return tx.jobs.enqueue(name, **options).id


def dead_letters(ledger: Ledger, count: int) -> list[str]:
    ids = [enqueued(ledger, "broken") for _ in range(count)]
    worker = ledger.worker()
    while any(step.claimed for step in worker.tick()):
        pass
    return ids


def statuses(ledger: Ledger, ids: list[str]) -> list[Status]:
    with ledger.reading() as tx:
        return [tx.jobs.get(job_id).status for job_id in ids]


def test_a_job_goes_its_way(program: Program, home: Home, ledger: Ledger) -> None:
    """Accepted, listed, done, shown with its timeline: every command agrees on every database."""
    declare(ledger)
    url = ("--url", home.url)

    created = program.run(*url, "jobs", "enqueue", "fine", "--args", '{"word": "b"}', "--json")
    job_id = created.json["id"]
    waiting = program.run(*url, "jobs", "list", "--status", "queued", "--json").json
    ledger.worker().tick()
    told = program.run(*url, "jobs", "show", job_id, "--json").json
    shown = program.run(*url, "jobs", "show", job_id)
    happened = program.run(*url, "jobs", "events", job_id, "--json").json

    assert (created.code, created.json["accepted"]) == (0, "created")
    assert [(job["id"], job["gate"]) for job in waiting["jobs"]] == [(job_id, "open")]
    assert (told["job"]["status"], told["job"]["result"]) == ("succeeded", {"said": "b"})
    assert told["events"] == happened["events"]
    moves = [event["next_status"] for event in happened["events"]]
    assert moves == ["queued", "running", "running", "succeeded"]
    assert re.search(r"progress +█{15}░{15} 50 %  halfway", shown.out)
    assert "running → succeeded" in shown.out
    assert max(map(len, shown.out.splitlines())) <= COLUMNS


@pytest.mark.slow
def test_operators_act_on_every_database(program: Program, home: Home, ledger: Ledger) -> None:
    """Cancel, retry one and all, explain, and an id that nothing has, on every database."""
    declare(ledger)
    one, two, three = dead_letters(ledger, 3)
    queued = enqueued(ledger, "fine")

    def jobs(*arguments: str) -> Ended:
        return program.run("--url", home.url, "jobs", *arguments, "--json")

    explained = jobs("explain", queued)
    canceled = jobs("cancel", queued, "--reason", "not needed", "--by", "ann")
    retried = jobs("retry", one)
    others = jobs("retry", "--all", "--org", new_id(), "--yes")
    other_errors = jobs("retry", "--all", "--error-code", "timeout", "--yes")
    rest = jobs("retry", "--all", "--error-code", "ValueError", "--yes")
    unknown = [jobs(verb, new_id()) for verb in ("show", "cancel", "retry")]
    last_words = jobs("events", queued).json["events"][-1]["detail"]

    assert "no worker serves its queue" in explained.json["reasons"][0]
    assert others.json["retried"] == other_errors.json["retried"] == []
    assert canceled.json == {"id": queued, "status": "canceled"}
    assert last_words == {"by": "ann", "reason": "not needed"}
    assert retried.json == {"retried": [one], "changed": [], "dry_run": False, "full": False}
    assert rest.json["retried"] == [two, three]
    assert statuses(ledger, [one, two, three]) == [Status.QUEUED] * 3
    assert [ended.code for ended in unknown] == [1] * 3
    assert {ended.json["error"]["code"] for ended in unknown} == {"not_found"}
    hint = "`ledgerstone jobs list` shows the ids"
    assert {ended.json["error"]["hint"] for ended in unknown} == {hint}


def test_the_same_key_is_the_same_job(program: Program) -> None:
    """The same key with the same content is the job there was; other content is an error."""
    arguments = ("jobs", "enqueue", "note", "--key", "note-7")

    first = program.run(*arguments, "--json").json
    again = program.run(*arguments)
    other = program.run(*arguments, "--args", '{"word": "other"}')

    assert again.code == 0
    assert again.out == f"{first['id']}  existing: same key, same content\n"
    assert other.code == 1
    assert f"'note-7' was used before with other content, by job {first['id']}\n" in other.err
    assert "hint: `ledgerstone jobs list --key note-7` shows it" in other.err


def test_every_option_of_accepting_is_kept(program: Program) -> None:
    """What is said of a job when it is accepted is what it has."""
    options = {
        "--args": '{"word": "a"}',
        "--key": "k",
        "--queue": "mail",
        "--org": ORG,
        "--priority": "9",
        "--at": "2030-01-31T08:00:00+01:00",
        "--max-attempts": "3",
        "--requested-by": "ann",
    }

    created = program.run("jobs", "enqueue", "note", *[w for o in options.items() for w in o])
    (job,) = program.run("jobs", "list", "--org", ORG, "--key", "k", "--json").json["jobs"]
    shown = program.run("jobs", "show", job["id"])

    told = "created, unchecked: -A would check it\n  no worker runs on this database"
    assert created.out == f"{job['id']}  {told}\n"
    assert (job["payload"], job["queue"], job["org_id"]) == ({"word": "a"}, "mail", ORG)
    assert (job["priority"], job["max_attempts"], job["requested_by"]) == (9, 3, "ann")
    assert (job["run_at"], job["gate"]) == ("2030-01-31T07:00:00Z", "scheduled")
    assert all(words in shown.out for words in ("mail, priority 9", ORG, "ann", "scheduled, due"))


def test_with_its_application_a_job_is_checked(shop: Program) -> None:
    """With -A the type and its arguments are checked, and it has the queue of its type."""
    command = ("jobs", "enqueue", "-A", "shop:ledger")

    wrong = shop.run(*command, "mail.send", "--args", '{"to": 7}')
    unknown = shop.run(*command, "mail.sent", "--args", '{"to": "ann"}')
    right = shop.run(*command, "mail.send", "--args", '{"to": "ann"}', "--json")
    (job,) = shop.run("jobs", "list", "--json").json["jobs"]

    assert (wrong.code, unknown.code, right.code) == (1, 1, 0)
    assert "the arguments of mail.send do not fit: Expected `str`, got `int`" in wrong.err
    assert "hint: it takes to: str, copies: int" in wrong.err
    assert "error: shop:ledger has no job 'mail.sent'\nhint: it has: mail.send\n" in unknown.err
    assert (job["id"], job["queue"], job["max_attempts"]) == (right.json["id"], "mail", 2)


@pytest.mark.parametrize(
    ("application", "words"),
    [
        ("shop", "-A names a module and its ledger, not 'shop'"),
        ("nowhere:ledger", "there is no module nowhere\nhint: call it in the folder"),
        ("shop:ledge", "the module shop has no 'ledge'\nhint: it has: -A shop:ledger"),
        ("shop:number", "shop:number is of type int, not a Ledger\nhint: it has: -A shop:ledger"),
        ("lost:ledger", "lost could not be imported: ModuleNotFoundError: No module named 'gone'"),
        ("torn:ledger", "the module torn could not be imported: SyntaxError: "),
        ("ends:ledger", "the module ends could not be imported: SystemExit: 3"),
        ("bare:ledger", "hint: make one at the top of the module: ledger = Ledger()"),
    ],
)
def test_an_application_that_is_not_there_is_told(
    shop: Program, application: str, words: str
) -> None:
    """A module or ledger that cannot be had: exit 1, what is wrong and what to do, no traceback."""
    for name, text in {
        "lost": "import gone\n",
        "torn": "def\n",
        "ends": "raise SystemExit(3)\n",
        "bare": "",
    }.items():
        (shop.folder / f"{name}.py").write_text(text)

    ended = shop.run("jobs", "enqueue", "mail.send", "-A", application)

    assert ended.code == 1
    assert words in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["enqueue", "note", "--args", "{word: 1}"], "--args is not JSON: "),
        (["enqueue", "note", "--args", "[1]"], "--args is a JSON object"),
        (["enqueue", "note", "--at", "tomorrow"], "--at is no time: 'tomorrow'"),
        (["enqueue", "note", "--at", "2030-01-31T08:00"], "--at has no time zone"),
        (["enqueue", "note", "--org", "acme"], "--org: an organisation is named by a UUID"),
        (["enqueue", "note", "--delay", "-5"], "--delay is 0 to "),
        (["enqueue", "note", "--args", "[" * 2000], "--args is nested too deep"),
        (["enqueue", "note\udcff"], "what was given for TYPE is no text"),
        (["enqueue", "note", "--args", '{"a": "\udcff"}'], "what was given for --args is no text"),
        (["enqueue", "note", "--key", "\udcff"], "what was given for --key is no text"),
        (["list", "--type", "\udcff"], "what was given for --type is no text"),
        (["list", "--limit", "0"], "--limit: a page has 1 to 1000 rows"),
        (["enqueue", "note", "--max-attempts", "0"], "--max-attempts is 1 to 1000"),
        (["list", "--cursor", "bogus"], "the cursor does not belong to this list"),
        (
            ["show", "bogus"],
            "the id of a job is a UUID, not 'bogus'\nhint: `ledgerstone jobs list`",
        ),
        (["retry", "--all", "--limit", "1001"], "at most 1000 dead letters"),
    ],
)
def test_bad_input_is_told(
    program: Program, embedded: Ledger, arguments: list[str], words: str
) -> None:
    """What cannot be accepted: exit 1 and what is allowed, no traceback."""
    embedded.migrate()

    ended = program.run("jobs", *arguments)

    assert ended.code == 1
    assert words in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["enqueue", "note", "--delay", "5", "--at", "2030-01-31T08:00:00Z"],
        ["enqueue", "note", "-A", "shop:ledger", "--url", "sqlite:///other.db"],
        ["list", "--status", "sleeping"],
        ["retry"],
        ["retry", ORG, "--all"],
        ["retry", ORG, "--queue", "mail"],
        ["retry", ORG, "--limit", "5"],
        ["retry", ORG, "--org", ORG],
        ["watch", "--json"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2(shop: Program, arguments: list[str]) -> None:
    """Options that do not go together or mean nothing are exit 2, and nothing is made."""
    ended = shop.run("jobs", *arguments)

    assert ended.code == 2
    assert not (shop.folder / ".ledgerstone").exists()


def test_a_list_comes_in_pages(program: Program, embedded: Ledger) -> None:
    """Each page ends with the cursor of the next, on one line; another filter refuses it."""
    ids = [enqueued(embedded, "fine") for _ in range(5)]

    first = program.run("jobs", "list", "--limit", 2)
    (cursor,) = re.findall(r"^more: the same with --cursor (\S+)$", first.out, re.MULTILINE)
    second = program.run("jobs", "list", "--limit", 2, "--cursor", cursor, "--json").json
    third = program.run("jobs", "list", "--limit", 2, "--cursor", second["next"], "--json").json
    foreign = program.run("jobs", "list", "--queue", "mail", "--cursor", cursor)

    newest_first = ids[::-1]
    assert [job_id in first.out for job_id in newest_first] == [True, True, False, False, False]
    assert [job["id"] for job in second["jobs"]] == newest_first[2:4]
    assert [job["id"] for job in third["jobs"]] == newest_first[4:]
    assert third["next"] is None
    assert foreign.code == 1
    assert "hint: begin again without a cursor" in foreign.err


def test_a_list_is_filtered(program: Program, embedded: Ledger) -> None:
    """By status, type, queue, organisation and key: each leaves the others out."""
    org = new_id()
    plain = enqueued(embedded, "fine")
    options: dict[str, dict[str, Any]] = {
        "--queue mail": {"queue": "mail"},
        f"--org {org}": {"org": org},
        "--key seven": {"key": "seven"},
    }
    wanted = {words: enqueued(embedded, "fine", **given) for words, given in options.items()}
    wanted["--type note"] = enqueued(embedded, "note")
    (wanted["--status dead_letter"],) = dead_letters(embedded, 1)

    found = {
        words: [
            job["id"] for job in program.run("jobs", "list", *words.split(), "--json").json["jobs"]
        ]
        for words in wanted
    }

    assert found == {words: [job_id] for words, job_id in wanted.items()}
    assert plain not in wanted.values()


def test_who_did_it_is_on_record(program: Program, embedded: Ledger) -> None:
    """A retry is recorded with whoever is named, also one of many."""
    one, two, three = dead_letters(embedded, 3)

    program.run("jobs", "retry", one, "--by", "ann")
    program.run("jobs", "retry", "--all", "--yes", "--by", "bob")

    with embedded.reading() as tx:
        last = [tx.jobs.events(job_id).rows[-1] for job_id in (one, two, three)]
    assert [event.detail["by"] for event in last if event.detail] == ["ann", "bob", "bob"]


def test_events_come_in_pages(program: Program, embedded: Ledger) -> None:
    """As jobs do; oldest first."""
    job_id = enqueued(embedded, "fine")
    embedded.worker().tick()

    first = program.run("jobs", "events", job_id, "--limit", 3, "--json").json
    rest = program.run("jobs", "events", job_id, "--cursor", first["next"])

    assert len(first["events"]) == 3
    assert rest.code == 0
    assert "running → succeeded" in rest.out
    assert "queued → running" not in rest.out


def test_a_dead_letter_shows_where_it_failed(program: Program, embedded: Ledger) -> None:
    """Error, attempts, every move and the traceback are shown, square brackets and all."""
    (job_id,) = dead_letters(embedded, 1)

    shown = program.run("jobs", "show", job_id)
    listed = program.run("jobs", "list", "--status", "dead_letter")

    assert "error      ValueError: out of [paper]" in shown.out
    assert "attempts   1 of 1" in shown.out
    assert "failed → dead_letter" in " ".join(shown.out.split())
    assert "Traceback (most recent call last)" in shown.out
    assert "ValueError" in listed.out
    assert max(map(len, listed.out.splitlines())) <= COLUMNS


def test_a_long_body_is_cut(program: Program, embedded: Ledger) -> None:
    """A screen holds the beginning of long arguments; --json holds all."""
    job_id = enqueued(embedded, "fine", payload={"word": "x" * 10_000})

    shown = program.run("jobs", "show", job_id)
    told = program.run("jobs", "show", job_id, "--json").json

    assert "characters; --json" in shown.out
    assert len(shown.out) < 5000
    assert told["job"]["payload"] == {"word": "x" * 10_000}


def test_what_does_not_fit_its_state_is_told(program: Program, embedded: Ledger) -> None:
    """Canceling what is over and retrying what is not dead: exit 1, and where to look."""
    queued = enqueued(embedded, "fine", delay_seconds=3600)
    (dead,) = dead_letters(embedded, 1)

    over = program.run("jobs", "cancel", dead)
    alive = program.run("jobs", "retry", queued)
    alive_dry = program.run("jobs", "retry", queued, "--dry-run")

    assert (over.code, alive.code, alive_dry.code) == (1, 1, 1)
    assert f"dead_letter: it is over\nhint: `ledgerstone jobs show {dead}`" in over.err
    assert "is queued, not a dead letter\nhint: only dead letters" in alive.err
    assert "is queued, not a dead letter\nhint: " in alive_dry.err


def test_a_running_job_is_asked_to_stop(program: Program, embedded: Ledger) -> None:
    """Canceling a running job asks it; it ends canceled when it has heard."""
    ended: list[Ended] = []

    @embedded.job("asked")
    def asked(job: Job) -> object:
        ended.append(program.run("jobs", "cancel", job.id))
        ended.append(program.run("jobs", "list", "--json"))
        ended.append(program.run("jobs", "list"))
        return job.canceled

    enqueued(embedded, "asked")
    embedded.worker().tick()

    asked_to, told, listed = ended
    assert asked_to.code == 0
    assert "is running and was asked to stop" in asked_to.out
    assert (told.json["jobs"][0]["status"], told.json["jobs"][0]["cancel_requested"]) == (
        "running",
        True,
    )
    assert "canceling" in listed.out


def test_many_are_retried_only_when_that_is_meant(program: Program, embedded: Ledger) -> None:
    """A dry run shows them; without --yes nothing is done where nobody can be asked."""
    ids = dead_letters(embedded, 3)

    dry = program.run("jobs", "retry", "--all", "--dry-run")
    refused = program.run("jobs", "retry", "--all", "--type", "broken")
    untouched = statuses(embedded, ids)
    done = program.run("jobs", "retry", "--all", "--limit", 2, "--yes")

    assert dry.code == done.code == 0
    assert all(job_id in dry.out for job_id in ids)
    assert dry.out.endswith("3 would be queued again\n")
    assert refused.code == 1
    assert "error: 3 dead letters would be queued again; nothing was done\nhint: --yes" in (
        refused.err
    )
    assert untouched == [Status.DEAD_LETTER] * 3
    assert done.out.endswith("2 queued again\n")
    assert statuses(embedded, ids) == [Status.QUEUED, Status.QUEUED, Status.DEAD_LETTER]


@pytest.mark.slow
def test_more_than_one_call_retries(program: Program, embedded: Ledger) -> None:
    """Where there are more dead letters than one call retries, it says so."""
    dead_letters(embedded, RETRY_MAX + 1)

    dry = program.run("jobs", "retry", "--all", "--dry-run")
    done = program.run("jobs", "retry", "--all", "--yes")
    rest = program.run("jobs", "retry", "--all", "--yes")

    more = ", the oldest; call again for the rest\n"
    assert dry.out.endswith(f"1,000 would be queued again{more}")
    assert done.out.endswith(f"1,000 queued again{more}")
    assert rest.out.endswith("\n1 queued again\n")


def test_one_alone_needs_no_yes(program: Program, embedded: Ledger) -> None:
    """Where the filters name a single dead letter, or none, nobody is asked."""
    ids = dead_letters(embedded, 1)

    none = program.run("jobs", "retry", "--all", "--queue", "mail")
    one = program.run("jobs", "retry", "--all")

    assert (none.code, one.code) == (0, 0)
    assert none.out == "no dead letter meets these filters\n"
    assert statuses(embedded, ids) == [Status.QUEUED]


@pytest.mark.slow
def test_who_sits_there_is_asked(program: Program, embedded: Ledger) -> None:
    """At a terminal the table is followed by a question; no is exit 1 and changes nothing."""
    ids = dead_letters(embedded, 2)

    no = program.answered("n", "jobs", "retry", "--all")
    after_no = statuses(embedded, ids)
    yes = program.answered("y", "jobs", "retry", "--all")

    assert (no.code, yes.code) == (1, 0)
    assert "Queue these 2 again?" in no.out
    assert "nothing was done" in no.out
    assert after_no == [Status.DEAD_LETTER] * 2
    assert statuses(embedded, ids) == [Status.QUEUED] * 2


@pytest.mark.slow
def test_a_job_is_watched_until_it_is_over(program: Program, embedded: Ledger) -> None:
    """Watching one ends with it: exit 0 if it succeeded, 1 if not; --json is one document."""
    fine = enqueued(embedded, "fine")

    with program.start("jobs", "watch", fine) as watching:
        watching.says("queued; `ledgerstone jobs explain`")
        broken = enqueued(embedded, "broken")
        embedded.worker().tick()
        succeeded = watching.ended()
    died = program.run("jobs", "watch", broken, "--json")

    assert succeeded == 0
    assert "running → succeeded" in watching.said
    assert died.code == 1
    assert died.json["job"]["status"] == "dead_letter"


@pytest.mark.slow
def test_everything_is_watched(program: Program, embedded: Ledger) -> None:
    """Without an id the queues and the newest jobs are shown as they change, until Ctrl-C."""
    enqueued(embedded, "fine")

    with program.start("jobs", "watch") as watching:
        watching.says("Newest jobs")
        later = enqueued(embedded, "broken")
        watching.says(later)
        watching.interrupt()
        code = watching.ended()

    assert code == 130
    assert "Traceback" not in watching.said


def test_it_explains_itself(program: Program, embedded: Ledger) -> None:
    """Each reason why a job does not run stands on a line of its own."""
    job_id = enqueued(embedded, "fine")
    with embedded.transaction() as tx:
        tx.jobs.pause("default", by="ann")

    ended = program.run("jobs", "explain", job_id)

    assert ended.code == 0
    assert "\n- its queue 'default' was paused by ann" in ended.out


def test_looking_makes_no_file(program: Program) -> None:
    """Only accepting a job makes an embedded database; looking for one says what to do."""
    looked = [program.run("jobs", *words) for words in (["list"], ["show", ORG], ["watch", ORG])]

    assert [ended.code for ended in looked] == [1, 1, 1]
    assert all("hint: run `ledgerstone migrate`" in ended.err for ended in looked)
    assert list(program.folder.iterdir()) == []


def test_colours_are_for_terminals(program: Program, embedded: Ledger) -> None:
    """A terminal gets colours, unless NO_COLOR is set; a pipe gets none."""
    dead_letters(embedded, 1)

    with program.show("jobs", "list") as coloured:
        coloured.ended()
    with program.show("jobs", "list", NO_COLOR="1") as plain:
        plain.ended()
    piped = program.run("jobs", "list")

    assert f"{ESCAPE}1;31mdead_letter" in coloured.said
    assert f"{ESCAPE}1;31m" not in plain.said
    assert ESCAPE not in piped.out


def test_alone_it_shows_its_help(program: Program) -> None:
    """`ledgerstone jobs` alone shows its commands, and that is no error."""
    ended = program.run("jobs")

    assert ended.code == 0
    assert all(f"│ {name} " in ended.out for name in ("enqueue", "list", "retry", "explain"))


@pytest.mark.parametrize("name", GROUPS)
def test_every_command_has_a_help_with_an_example(name: str) -> None:
    """Every command of a group says what it does, with an example; every option has its words."""
    group: Any = typer.main.get_command(app)
    commands = group.get_command(typer.Context(group), name).commands

    assert [word for word, command in commands.items() if "Example:" not in command.help] == []
    assert [
        (word, option.name)
        for word, command in commands.items()
        for option in command.params
        if not option.help
    ] == []


@pytest.mark.parametrize("command", ["enqueue", "list", "retry", "watch"])
def test_the_help_fits_a_narrow_terminal(program: Program, command: str) -> None:
    """The help of a command fits into 80 columns and cuts no word off."""
    ended = program.run("jobs", command, "--help")

    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= COLUMNS
    assert "…" not in ended.out

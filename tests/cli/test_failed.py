"""`ledgerstone failed`: look at messages that failed, send them again, remove them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select

from ledgerstone.console.call import Call
from ledgerstone.engine.source import Failure
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging import record
from ledgerstone.messaging.cli import calls
from ledgerstone.messaging.cli import failed as failed_commands
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.failed.rows import Raw
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.testing.fixtures import Home
from tests.cli.program import COLUMNS, Ended, Program
from tests.cli.shop import failed_ones

LATE = Failure("timeout", "took too long", "Traceback of [it]")


def ids_of(ended: Ended) -> list[int]:
    return [each["id"] for each in ended.json["failed"]]


def left(ledger: Ledger) -> list[int]:
    with ledger.reading() as tx:
        return [row.id for row in tx.failed.find().rows]


def malformed(ledger: Ledger) -> int:
    """Something that nobody could read."""
    with ledger.transaction() as tx:
        failed.put(
            tx,
            ledger.registry,
            Raw(body=b"\xff\x00", content_type="image/png", headers={"odd": b"\xfe"}),
            consumer="",
            failure=Failure("bad_input", "the message has no name"),
            attempts=1,
            origin="orders",
        )
    return left(ledger)[0]


def doubled(ledger: Ledger, *, times: int) -> None:
    """Each time there are twice as many failed messages."""
    table = ledger.registry.shared.failed
    columns = [column for column in table.c if column.name != "id"]
    with ledger.transaction() as tx:
        for _ in range(times):
            every = insert(table).from_select([column.name for column in columns], select(*columns))
            tx.execute(every)


def test_they_are_listed(program: Program, home: Home, ledger: Ledger) -> None:
    """Newest first, a page at a time, by each filter, and by cause."""
    old = failed_ones(ledger, "order.placed", "order.paid")
    (late,) = failed_ones(ledger, "order.paid", consumer="stock", failure=LATE, origin="orders")
    (refused,) = failed_ones(ledger, "order.paid", consumer=None, origin="broker")

    def show(*arguments: Any) -> Ended:
        return program.run("--url", home.url, "failed", "show", *arguments, "--json")

    first = show("--limit", 3)
    rest = show("--limit", 3, "--cursor", first.json["next"])
    filters = {
        ("--consumer", "stock"): [late],
        ("--name", "order.placed"): [old[0]],
        ("--code", "timeout"): [late],
        ("--origin", "broker"): [refused],
        ("--since", "1h"): [refused, late, *old[::-1]],
        ("--since", "2999-01-01T00:00:00Z"): [],
    }
    found = {given: ids_of(show(*given)) for given in filters}
    groups = show("--group").json["groups"]
    shown = program.run("--url", home.url, "failed", "show")

    assert ids_of(first) + ids_of(rest) == [refused, late, *old[::-1]]
    assert rest.json["next"] is None
    assert found == filters
    assert sorted((each["consumer"] or "", each["name"], each["count"]) for each in groups) == [
        ("", "order.paid", 1),
        ("mailer", "order.paid", 1),
        ("mailer", "order.placed", 1),
        ("stock", "order.paid", 1),
    ]
    assert "→ broker" in shown.out
    assert max(map(len, shown.out.splitlines())) <= COLUMNS


def test_one_is_shown_with_all_that_is_known(program: Program, embedded: Ledger) -> None:
    """Why, whose, its body and headers, what is on record, where it failed, and what to do."""
    (each,) = failed_ones(embedded, "order.placed", failure=LATE)

    shown = program.run("failed", "show", each)
    told = program.run("failed", "show", each, "--json").json

    said = " ".join(shown.out.split())
    assert f"`ledgerstone failed retry {each}` sends it again" in said
    assert "why timeout: took too long" in said
    assert '"order": 7' in said
    assert "tenant: seven" in said
    assert "Traceback of [it]" in said
    assert "X-Message-Stamp" not in said
    assert told["failed"]["body"] == {"order": 7}
    assert (told["failed"]["attempts"], told["failed"]["partition"]) == (4, "order-7")
    assert [entry["entry"]["what"] for entry in told["record"]] == ["failed"]


def test_what_nobody_could_read_is_shown(program: Program, embedded: Ledger) -> None:
    """Its bytes are shown as far as they can be; it can only be removed, and that is said."""
    each = malformed(embedded)

    shown = program.run("failed", "show", each)
    told = program.run("failed", "show", each, "--json")
    retried = program.run("failed", "retry", each)
    every = program.run("failed", "retry", "--all", "--force")
    removed = program.run("failed", "remove", each)

    assert f"`ledgerstone failed remove {each}` removes it" in " ".join(shown.out.split())
    assert told.code == 0
    assert retried.code == 1
    assert "hint: remove it, and correct the program that sent it" in retried.err
    assert f"1 cannot be sent again, as {each}" in every.out
    assert removed.out == "1 removed\n"
    assert left(embedded) == []


def test_one_is_sent_again_once(program: Program, home: Home, ledger: Ledger) -> None:
    """It leaves the failed table for the outbox with its id; who did it is on record."""
    (each,) = failed_ones(ledger, "order.placed")
    with ledger.reading() as tx:
        before = tx.failed.get(each)

    dry = program.run("--url", home.url, "failed", "retry", each, "--dry-run")
    untouched = left(ledger)
    done = program.run("--url", home.url, "failed", "retry", each, "--by", "ann", "--json")
    again = program.run("--url", home.url, "failed", "retry", each)

    assert dry.out == "1 would be sent again\n"
    assert untouched == [each]
    assert done.json == {
        "count": 1,
        "retried": [each],
        "refused": [],
        "left": [],
        "next": None,
        "dry_run": False,
    }
    assert again.code == 1
    assert "hint: `ledgerstone failed show` lists the ids" in again.err
    with ledger.reading() as tx:
        rows = tx.outbox.find(destination=RETRY).rows
        assert before.message_id is not None
        events = record.of_message(tx, before.message_id).rows
    assert [row.message_id for row in rows] == [before.message_id]
    assert [(one.entry.what.value, one.entry.who) for one in events] == [
        ("failed", None),
        ("retried", "ann"),
    ]


def test_one_that_is_refused_holds_no_other_up(program: Program, embedded: Ledger) -> None:
    """Of several ids each is dealt with by itself; exit 1 says that some were refused."""
    first, second = failed_ones(embedded, "order.placed", "order.paid")

    ended = program.run("failed", "remove", first, 999, second, first)

    assert ended.code == 1
    assert ended.out == "2 removed\n999: no failed message has the id 999\n"
    assert left(embedded) == []


def test_all_is_meant_only_with_force(program: Program, home: Home, ledger: Ledger) -> None:
    """A dry run shows the first five and the count; where nobody can be asked, --force is said."""
    ids = failed_ones(ledger, *["order.placed"] * 6, "order.paid")
    named = ("--url", home.url, "failed", "retry", "--all", "--name", "order.placed")

    dry = program.run(*named, "--dry-run")
    refused = program.run(*named)
    untouched = left(ledger)
    some = program.run(*named, "--force", "--limit", 4)
    rest = program.run(*named, "--force")
    none = program.run(*named, "--force")

    lines = dry.out.splitlines()
    assert [int(line.split()[0]) for line in lines[2:7]] == ids[:5]
    assert lines[-1] == "6 would be sent again"
    assert "and 1 more" in dry.out
    assert refused.code == 1
    assert "error: 6 failed messages would be sent again; nothing was done" in refused.err
    assert "hint: --force does it" in refused.err
    assert untouched == ids[::-1]
    assert some.out.startswith("4 sent again\nthere may be more")
    assert rest.out == "2 sent again\n"
    assert none.out == "no failed message matches these filters\n"
    assert left(ledger) == [ids[-1]]


@pytest.mark.slow
def test_all_are_more_than_a_transaction_takes(program: Program, embedded: Ledger) -> None:
    """Without --limit it goes on in steps until all are done, and a dry run shows the first."""
    failed_ones(embedded, *["order.placed"] * 8)
    doubled(embedded, times=8)

    refused = program.run("failed", "retry", "--all")
    some = program.run("failed", "retry", "--all", "--force", "--limit", 1100, "--json")
    rest = program.run("failed", "retry", "--all", "--force")

    assert "error: 1,000+ failed messages would be sent again" in refused.err
    assert (some.json["count"], len(some.json["retried"])) == (1100, 1100)
    assert some.json["next"] is not None
    assert rest.out == "948 sent again\n"
    assert left(embedded) == []


@pytest.mark.slow
@pytest.mark.parametrize("action", ["retry", "remove"])
def test_a_filter_reaches_the_end(program: Program, embedded: Ledger, action: str) -> None:
    """A message behind more others than a page looks through is found, with --dry-run too."""
    failed_ones(embedded, *["order.placed"] * 8)
    doubled(embedded, times=11)
    (rare,) = failed_ones(embedded, "order.rare")
    named = ("failed", action, "--all", "--name", "order.rare")

    dry = program.run(*named, "--dry-run", "--json")
    done = program.run(*named, "--force", "--json")
    none = program.run(*named, "--force")

    key = "retried" if action == "retry" else "removed"
    assert dry.json[key] == done.json[key] == [rare]
    assert done.json["next"] is None
    assert none.out == "no failed message matches these filters\n"


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True])
def test_a_page_that_is_not_the_last(
    home: Home,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    grouped: bool,
) -> None:
    """If the pages that were read have no row, and there are more, none is said to match so far."""
    monkeypatch.setattr(calls, "PAGES_MAX", 0)
    failed_ones(ledger, *["order.placed"] * 8)
    doubled(ledger, times=11)

    failed_commands.show(Call(url=home.url), name="order.rare", grouped=grouped)

    said = capsys.readouterr().out
    assert said.startswith("no message so far matches these filters")
    assert ("--cursor" in said) is not grouped


@pytest.mark.parametrize(("action", "verb"), [("retry", "sent again"), ("remove", "removed")])
def test_it_is_shown_on_a_terminal(
    program: Program, embedded: Ledger, action: str, verb: str
) -> None:
    """A bar while it goes on, and the count at the end."""
    failed_ones(embedded, *["order.placed"] * 3)

    with program.show("failed", action, "--all", "--force") as running:
        code = running.ended()

    assert code == 0
    assert "Failed messages" in running.said
    assert running.said.count(f"3 {verb}") > 1
    assert running.said.splitlines()[-1] == f"3 {verb}"
    assert left(embedded) == []


def test_what_fails_again_meanwhile_is_left_alone(
    embedded: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry of all ends, also if each message fails again at once."""
    monkeypatch.setattr(failed_commands, "RETRY_MAX", 2)
    ids = failed_ones(embedded, *["order.placed"] * 5)

    def retry_in_vain(tx: Transaction, each: int) -> None:
        found = tx.failed.get(each)
        tx.failed.retry(each)
        assert found.message is not None
        failed.put(
            tx,
            embedded.registry,
            found.message,
            consumer="mailer",
            failure=Failure("LookupError", "again"),
            attempts=1,
            origin="local",
        )

    act = failed_commands._Act(
        "retried",
        ("", ""),
        retry_in_vain,
        lambda tx, most, at: tx.failed.retry_all(limit=most, cursor=at, dry_run=True),
    )
    done = failed_commands._Done()
    pages = failed_commands._pages(embedded, act, failed_commands._All(None, None), done)

    counts = list(failed_commands._acted(embedded, act, pages, done))

    assert counts == [2, 2, 1]
    assert (done.ids, done.next) == (ids, None)
    assert len(left(embedded)) == len(ids)


@pytest.mark.slow
def test_somebody_at_a_terminal_is_asked(program: Program, embedded: Ledger) -> None:
    """No leaves all as it is, with exit 1; yes does it."""
    failed_ones(embedded, "order.placed", "order.paid")

    no = program.answered("n", "failed", "remove", "--all")
    kept = left(embedded)
    yes = program.answered("y", "failed", "remove", "--all")

    assert (no.code, yes.code) == (1, 0)
    assert "2 failed messages would be removed. Continue?" in no.out
    assert no.out.endswith("nothing was done\n")
    assert len(kept) == 2
    assert left(embedded) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["retry", "1", "--cursor", "x"],
        ["retry"],
        ["retry", "1", "--all"],
        ["retry", "1", "--code", "timeout"],
        ["remove", "1", "--force"],
        ["retry", "--all", "--limit", "0"],
        ["show", "1", "--group"],
        ["show", "one"],
    ],
)
def test_what_does_not_go_together_is_wrong_usage(program: Program, arguments: list[str]) -> None:
    """Ids or --all, and filters with --all: anything else is exit 2."""
    assert program.run("failed", *arguments).code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "7"], "no failed message has the id 7"),
        (["retry", "7"], "no failed message has the id 7"),
        (["show", "--since", "yesterday"], "--since is no time: 'yesterday'"),
    ],
)
def test_what_is_not_there_is_told(program: Program, arguments: list[str], words: str) -> None:
    """An id that is not there, or a moment that is none: exit 1 and a hint."""
    program.run("migrate")

    ended = program.run("failed", *arguments)

    assert ended.code == 1
    assert words in ended.err
    assert "\nhint: " in ended.err


def test_nothing_is_told_as_such(program: Program) -> None:
    """Where none has failed that is said, also of groups; no file is made to say it."""
    missing = program.run("failed", "show")
    empty = list(program.folder.iterdir())
    program.run("migrate")

    said = [
        program.run("failed", "show").out,
        program.run("failed", "show", "--group", "--code", "x").out,
    ]

    assert missing.code == 1
    assert empty == []
    assert said == ["no message has failed\n", "no failed message matches these filters\n"]

"""`ledgerstone outbox`: publishing, and what is seen and done to what waits."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from sqlalchemy import update

from ledgerstone.ledger import Ledger
from ledgerstone.messaging import retention
from ledgerstone.messaging.outbox.outbox import OutboxRow
from ledgerstone.messaging.outbox.publishing import NewMessage
from ledgerstone.messaging.tables import event, lane
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.cli.program import COLUMNS, Program
from tests.cli.shop import delivered, ledger_in, open_shop, published

PARKED = 1010
ROUTES = """
[messaging]
routes = { "order.*" = ["broker", "local"] }
[messaging.destinations.broker]
url = "amqp://guest:hunter2@127.0.0.1:1/"
"""


def rows(ledger: Ledger) -> list[OutboxRow]:
    with ledger.reading() as tx:
        return tx.outbox.find().rows


def test_one_is_published(program: Program, home: Home, ledger: Ledger) -> None:
    """A message lies in the outbox as it was given; the list shows it."""
    said = program.run(
        *("--url", home.url, "outbox", "publish", "order.placed", '{"order": 7}', "--json"),
        *("--partition", "order-7", "--header", "tenant=a=b", "--key", "k"),
    )
    listed = program.run("--url", home.url, "outbox", "list", "--json")
    shown = program.run("--url", home.url, "outbox", "list")

    (row,) = rows(ledger)
    assert said.json == {"id": row.message_id, "accepted": "created", "destinations": ["local"]}
    assert (row.name, row.partition, row.body) == ("order.placed", "order-7", '{"order":7}')
    assert row.headers["tenant"] == "a=b"
    assert [each["message_id"] for each in listed.json["messages"]] == [row.message_id]
    assert listed.json["next"] is None
    assert shown.out.splitlines()[2].split()[1:5] == ["order.placed", "local", "order-7", "waiting"]
    assert max(map(len, shown.out.splitlines())) <= COLUMNS


@pytest.mark.slow
def test_a_key_makes_it_one(program: Program) -> None:
    """The same key and content is the message there is; other content is exit 1 with a hint."""
    first = program.run("outbox", "publish", "order.placed", "1", "--key", "k", "--json")

    again = program.run("outbox", "publish", "order.placed", "1", "--key", "k")
    other = program.run("outbox", "publish", "order.placed", "2", "--key", "k")

    assert again.out == f"{first.json['id']}  existing: same key, same content\n"
    assert other.code == 1
    assert "hint: different content needs another key\n" in other.err


def test_it_goes_to_every_destination(program: Program) -> None:
    """Where the routes lead is told, and each destination has its own row."""
    open_shop(program, ROUTES)

    said = program.run("outbox", "publish", "order.placed")
    listed = program.run("outbox", "list", "--destination", "broker", "--json").json

    assert said.out.endswith("published, for broker, local\n")
    assert [row["destination"] for row in listed["messages"]] == ["broker"]


@pytest.mark.slow
def test_a_body_is_read_from_stdin(program: Program) -> None:
    """`-` reads it, up to the largest body that is allowed; of a larger one no part is taken."""
    program.run("migrate")

    def publish(body: bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*program.command, "outbox", "publish", "order.placed", "-"],
            cwd=program.folder,
            env=program.environment | environment,
            input=body,
            capture_output=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )

    fits = publish(b"[1, 2]")
    too_large = publish(b"1" + b" " * 2000 + b"2", LEDGERSTONE_MESSAGING_BODY_BYTES_MAX="1024")

    with ledger_in(program) as ledger:
        assert [row.body for row in rows(ledger)] == ["[1,2]"]
    assert (fits.returncode, too_large.returncode) == (0, 1)
    assert b"messaging.body_bytes_max" in too_large.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["order"], 1, "is not a valid message name"),
        (["order.placed", "{"], 1, "the body is not JSON"),
        (["order.placed", "1", "--header", "tenant"], 1, "a header is NAME=VALUE, not 'tenant'"),
        (["order.placed", "1", "--header", "type=x"], 1, "the header type is reserved"),
        (["order.placed", "1", "--available-at", "2027-01-31"], 1, "has no time zone"),
        (["order.placed", "1", "--available-at", "soon"], 1, "--available-at is no time: 'soon'"),
        (
            ["order.placed", "1", "--delay", "5", "--available-at", "2027-01-31T08:00:00Z"],
            2,
            "do not go together",
        ),
        (["order.placed", "1", "--delay", "-1"], 2, "--delay"),
    ],
    ids=["name", "body", "header", "reserved", "no zone", "no time", "two times", "past"],
)
def test_bad_input_is_told(program: Program, arguments: list[str], code: int, words: str) -> None:
    """What cannot be published is refused, says why, and leaves nothing behind."""
    program.run("migrate")

    ended = program.run("outbox", "publish", *arguments)

    with ledger_in(program) as ledger:
        assert rows(ledger) == []
    assert ended.code == code
    assert words in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_one_that_may_leave_later_is_shown_so(program: Program) -> None:
    """How long it waits is shown, in the list and in its lane."""
    program.run("outbox", "publish", "order.placed", "--delay", 18_000)

    listed = program.run("outbox", "list")
    lanes = program.run("outbox", "lanes", "local")

    assert "in 5 h" in listed.out
    assert "in 5 h" in lanes.out


def test_lists_come_in_pages(program: Program, embedded: Ledger) -> None:
    """Newest first; the cursor leads on, and one of another list is refused."""
    ids = published(embedded, *["order.placed"] * 5)

    first = program.run("outbox", "list", "--limit", 2)
    cursor = first.out.split("--cursor ")[1].strip()
    second = program.run("outbox", "list", "--limit", 3, "--cursor", cursor, "--json").json
    foreign = program.run("outbox", "list", "--waiting", "--cursor", cursor)

    assert [row["message_id"] for row in second["messages"]] == ids[2::-1]
    assert second["next"] is None
    assert foreign.code == 1
    assert "hint: begin again without a cursor" in foreign.err


@pytest.mark.slow
def test_what_was_delivered_is_left_out(program: Program, embedded: Ledger) -> None:
    """--waiting lists only what waits; an empty list says so."""
    published(embedded, "order.placed")
    delivered(embedded, days_ago=1)

    every = program.run("outbox", "list")
    waiting = program.run("outbox", "list", "--waiting")

    assert "delivered" in every.out
    assert waiting.out == "no message matches these filters\n"


def test_wide_values_are_cut(program: Program, embedded: Ledger) -> None:
    """A row stays a line on a narrow terminal, however long names and partitions are."""
    published(embedded, "order." + "x" * 200, partition="p" * 200)

    shown = program.run("outbox", "list")
    lanes = program.run("outbox", "lanes", "local")

    assert len(shown.out.splitlines()) == len(lanes.out.splitlines()) == 3
    assert max(map(len, (shown.out + lanes.out).splitlines())) <= COLUMNS


@pytest.mark.slow
def test_a_row_that_nobody_can_read_is_listed(program: Program, embedded: Ledger) -> None:
    """What others wrote is shown also where it is no message."""
    published(embedded, "order.placed")
    with embedded.transaction() as tx:
        tx.execute(update(embedded.registry.shared.outbox).values(headers="nonsense"))

    shown = program.run("outbox", "list")

    assert shown.code == 0
    assert "(no name)" in shown.out


@pytest.mark.slow
def test_a_destination_is_paused_and_resumed(program: Program, home: Home, ledger: Ledger) -> None:
    """Nothing leaves while it is paused; who did it is on record, and `status` shows it."""
    published(ledger, "order.placed")
    paused = program.run("--url", home.url, "outbox", "pause", "local", "--by", "ann")
    twice = program.run("--url", home.url, "outbox", "pause", "local")
    standing = program.run("--url", home.url, "status", "--json").json["messages"]

    resumed = program.run("--url", home.url, "outbox", "resume", "local", "--by", "bob", "--json")

    found = {each["destination"]: each for each in standing}
    assert "`ledgerstone outbox resume local` resumes it" in paused.out
    assert twice.code == 1
    assert (found["local"]["paused"], found["local"]["waiting"]) == (True, 1)
    assert resumed.json["paused"] is False
    with ledger.reading() as tx:
        recorded = tx.execute(event.select().order_by(event.c.id)).mappings().all()
    assert [(each["what"], each["who"]) for each in recorded] == [
        ("paused", "ann"),
        ("resumed", "bob"),
    ]


@pytest.mark.slow
def test_a_partition_is_paused_and_resumed(program: Program, home: Home, ledger: Ledger) -> None:
    """Its lane says so; the empty partition is one like any other."""
    published(ledger, "order.placed", partition="order-7")
    published(ledger, "order.placed")

    def lanes(*arguments: str) -> dict[str, Any]:
        ended = program.run("--url", home.url, "outbox", "lanes", "local", "--json", *arguments)
        return {lane["partition"]: lane["state"] for lane in ended.json["lanes"]}

    program.run("--url", home.url, "outbox", "pause", "local", "--partition", "")
    during, only = lanes(), lanes("--state", "paused")
    shown = program.run("--url", home.url, "outbox", "lanes", "local")
    program.run("--url", home.url, "outbox", "resume", "local", "--partition", "")

    assert during == {"": "paused", "order-7": "open"}
    assert only == {"": "paused"}
    assert "(empty)" in shown.out
    assert lanes() == {"": "open", "order-7": "open"}


@pytest.mark.slow
def test_parked_partitions_are_resumed(program: Program, home: Home, ledger: Ledger) -> None:
    """All go on with --all, more than one transaction takes; without --yes nothing is done."""
    with ledger.transaction() as tx:
        lanes = [
            NewMessage(name="order.placed", partition=f"p{number:04}") for number in range(PARKED)
        ]
        tx.outbox.publish_many(lanes)
    with ledger.transaction() as tx:
        tx.execute(update(lane).values(state="parked", code="unroutable"))
    resume = ("--url", home.url, "outbox", "resume", "local", "--all", "--code", "unroutable")

    dry = program.run(*resume, "--dry-run", "--json")
    refused = program.run(*resume)
    other = program.run(*resume[:-1], "gone", "--yes")
    done = program.run(*resume, "--yes", "--json")

    assert (len(dry.json["found"]), dry.json["full"], dry.json["resumed"]) == (1000, True, 0)
    assert (refused.code, "--yes" in refused.err) == (1, True)
    assert other.out == "no partition of local is parked with gone\n"
    assert done.json["resumed"] == PARKED


def test_a_destination_that_is_gone_is_discarded(
    program: Program, home: Home, ledger: Ledger
) -> None:
    """With --yes all its messages go; one of the settings is refused."""
    published(ledger, "order.placed")
    with ledger.transaction() as tx:
        outbox = ledger.registry.shared.outbox
        tx.execute(update(outbox).values(queue_name="former"))
    discard = ("--url", home.url, "outbox", "discard")

    refused = program.run(*discard, "former")
    kept = program.run(*discard, "local", "--yes")
    done = program.run(*discard, "former", "--yes", "--json")

    assert (refused.code, kept.code) == (1, 1)
    assert (done.json["removed"], rows(ledger)) == (1, [])


@pytest.mark.slow
def test_lanes_say_why_they_stand(program: Program, home: Home, ledger: Ledger) -> None:
    """A lane whose message is refused shows attempts, when it is tried again, and the reason."""
    published(ledger, "order.placed", partition="order-7")
    ledger.worker(ledger.relay_source("local")).tick()

    told = program.run("--url", home.url, "outbox", "lanes", "local", "--json").json["lanes"]
    shown = program.run("--url", home.url, "outbox", "lanes", "local")

    assert [(lane["attempts"], lane["code"]) for lane in told] == [(0, "no_consumer")]
    assert "no_consumer: this process has no consumer" in " ".join(shown.out.split())
    assert max(map(len, shown.out.splitlines())) <= COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lanes", "nowhere"], "hint: the settings have local"),
        (["pause", "nowhere"], "hint: the settings have local"),
        (["resume", "local"], "local is not paused"),
        (["pause", "local", "--partition", "none"], "local has no partition 'none'"),
        (["list", "--destination", "nowhere"], "hint: the settings have local"),
        (["list", "--limit", "0"], "a page has 1 to 1000 rows"),
        (["cleanup", "--days", "99999"], "from 0 to 36500"),
    ],
)
def test_what_is_not_there_is_told(program: Program, arguments: list[str], words: str) -> None:
    """A destination, partition or page that cannot be meant is exit 1, with what there is."""
    program.run("migrate")

    ended = program.run("outbox", *arguments)

    assert ended.code == 1
    assert words in ended.err


def test_delivered_ones_are_removed(program: Program, home: Home, ledger: Ledger) -> None:
    """In as many steps as it takes; what waits, and what was delivered since, stays."""
    published(ledger, *["order.placed"] * (2 * retention.ROWS_MAX + 1))
    delivered(ledger, days_ago=8)
    waiting = published(ledger, "order.placed")

    early = program.run("--url", home.url, "outbox", "cleanup", "--days", 9, "--json")
    ended = program.run("--url", home.url, "outbox", "cleanup")

    assert early.json == {"removed": 0, "days": 9.0, "destination": None}
    assert ended.out == "2,001 removed that were delivered more than 7 days ago\n"
    assert [row.message_id for row in rows(ledger)] == waiting


@pytest.mark.slow
def test_removing_is_shown_on_a_terminal(program: Program, embedded: Ledger) -> None:
    """A bar while it goes on, and the count at the end."""
    published(embedded, *["order.placed"] * 3)
    delivered(embedded, days_ago=8)

    with program.show("outbox", "cleanup", "--days", 7) as running:
        code = running.ended()

    assert code == 0
    assert "Delivered messages" in running.said
    assert "3 removed that were delivered more than 7 days ago" in running.said


def test_resuming_is_shown_on_a_terminal(program: Program, embedded: Ledger) -> None:
    """A bar while it goes on, and the count at the end."""
    for partition in ("p1", "p2", "p3"):
        published(embedded, "order.placed", partition=partition)
    with embedded.transaction() as tx:
        tx.execute(update(lane).values(state="parked", code="unroutable"))

    with program.show("outbox", "resume", "local", "--all", "--yes") as running:
        code = running.ended()

    assert code == 0
    assert "Parked partitions" in running.said
    assert "3 go on" in running.said
    assert "3 partitions of local are resumed" in running.said


def test_it_makes_no_file(program: Program) -> None:
    """Looking where no database is makes none; publishing does."""
    looks = [["list"], ["lanes", "local"], ["pause", "local"], ["cleanup"]]

    ended = [program.run("outbox", *look) for look in looks]
    empty = list(program.folder.iterdir())
    made = program.run("outbox", "publish", "order.placed")

    assert [each.code for each in ended] == [1] * len(looks)
    assert all("hint: run `ledgerstone migrate`" in each.err for each in ended)
    assert empty == []
    assert made.code == 0

"""`ledgerstone messaging`: the shared tables, and what a broker has to have."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import create_engine, inspect, text

from ledgerstone.store.dialects.by_url import dialect_of
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import HOST, free_port
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from tests.cli.program import ROOT, Program
from tests.cli.shop import open_shop

TABLES = {"messenger_outbox", "messenger_messages", "message_broker_deduplication"}
UNASKED = {"LEDGERSTONE_MESSAGING_AUTO_SETUP": "false"}


def to_broker(port: int, kind: str = "topic") -> str:
    return f"""
[messaging.destinations.broker]
url = "amqp://guest:guest@{HOST}:{port}/"
[messaging.exchanges.events]
type = "{kind}"
[messaging.queues.orders]
bindings = {{ events = ["order.*", "bill.*"] }}
"""


def tables(home: Home) -> set[str]:
    url, _ = dialect_of(home.url)
    engine = create_engine(url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found


@pytest.mark.slow
def test_tables_are_made_when_asked(program: Program, home: Home) -> None:
    """With auto_setup off `migrate` makes none; a dry run shows the SQL, --apply does it once."""
    url = ("--url", home.url)
    program.run(*url, "migrate", **UNASKED)
    before = tables(home)
    examined = program.run(*url, "doctor", "--json", **UNASKED).json["checks"]

    dry = program.run(*url, "messaging", "setup", "--apply", "--dry-run", **UNASKED)
    between = tables(home)
    done = program.run(*url, "messaging", "setup", "--apply", **UNASKED)
    again = program.run(*url, "messaging", "setup", "--apply", "--json", **UNASKED)

    found = {check["name"]: check for check in examined}
    assert not before & TABLES
    assert found["messages"]["verdict"] == "warning"
    assert "`ledgerstone messaging setup --apply`" in found["messages"]["todo"]
    assert "CREATE TABLE" in dry.out
    assert between == before
    assert done.out.startswith("done:\n  make messenger_outbox\n")
    assert tables(home) >= TABLES
    assert again.json == {"steps": [], "dry_run": False}


def test_migrate_makes_them(program: Program, home: Home) -> None:
    """Unless the settings say otherwise, with the rest; what was made is told."""
    ended = program.run("--url", home.url, "migrate", "--json")
    again = program.run("--url", home.url, "migrate")

    assert "make messenger_outbox" in ended.json["set_up"]
    assert tables(home) >= TABLES
    assert again.out.endswith("nothing to do\n")


def test_a_first_use_says_what_to_run(program: Program, home: Home) -> None:
    """A table that may not be made unasked: exit 1, and the command that makes it."""
    url = ("--url", home.url)
    program.run(*url, "migrate", **UNASKED)

    refused = program.run(*url, "outbox", "list", **UNASKED)
    handled = program.run(*url, "inbox", "list")
    listed = program.run(*url, "outbox", "list")

    embedded = home.server is None
    hint = "hint: run `ledgerstone messaging setup --apply`"
    assert (refused.code, listed.code) == (1, 0)
    assert hint in refused.err
    assert (handled.code, hint in handled.err) == ((0, False) if embedded else (1, True))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql", "mariadb"])
def test_the_sql_is_printed(program: Program, kind: str) -> None:
    """For each kind of database, without connecting to any."""
    ended = program.run("messaging", "setup", "--dialect", kind, "--json")

    assert ended.json["kind"] == kind
    assert all(f"CREATE TABLE IF NOT EXISTS {name}" in ended.json["sql"] for name in TABLES)
    assert list(program.folder.iterdir()) == []


def test_names_of_tables_are_settings(program: Program) -> None:
    """The SQL is for the tables that the settings name."""
    open_shop(program, '[messaging]\noutbox_table = "letters"\n')

    ended = program.run("messaging", "setup")

    assert "CREATE TABLE IF NOT EXISTS letters" in ended.out
    assert "messenger_outbox" not in ended.out


def test_receipts_that_name_no_consumer_need_one(program: Program, home: Home) -> None:
    """Receipts of before are kept under the consumer that is named; without one it is refused."""
    url, _ = dialect_of(home.url)
    column = {"sqlite": "BLOB", "postgres": "BYTEA", "mysql": "BINARY(16)"}[home.kind]
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                f"CREATE TABLE message_broker_deduplication (message_id {column} PRIMARY KEY,"
                " message_name VARCHAR(255) NOT NULL, processed_at TIMESTAMP NOT NULL)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO message_broker_deduplication"
                " VALUES (:id, 'order.placed', '2026-01-01 00:00:00')"
            ),
            {"id": bytes(range(16))},
        )
    engine.dispose()
    program.run("--url", home.url, "migrate", **UNASKED)

    refused = program.run("--url", home.url, "messaging", "setup", "--apply")
    done = program.run("--url", home.url, "messaging", "setup", "--apply", "--consumer", "mailer")

    listed = program.run("--url", home.url, "inbox", "list", "--json").json["receipts"]
    assert refused.code == 1
    assert "has 1 receipts without a consumer" in refused.err
    assert "--consumer NAME" in refused.err
    assert done.code == 0
    assert [(each["consumer"], each["message_name"]) for each in listed] == [
        ("mailer", "order.placed")
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["setup", "--consumer", "mailer"],
        ["setup", "--dry-run"],
        ["setup", "--apply", "--dialect", "mysql"],
        ["topology", "--vhost", "/shop"],
        ["topology", "--export", "--dry-run"],
        ["setup", "--dialect", "oracle"],
    ],
)
def test_what_does_not_go_together_is_wrong_usage(program: Program, arguments: list[str]) -> None:
    """Options that belong to something else are exit 2."""
    assert program.run("messaging", *arguments).code == 2


def test_a_topology_is_shown_and_exported(program: Program) -> None:
    """Neither needs the broker; a file is written where it is named."""
    open_shop(program, to_broker(free_port()))

    planned = program.run("messaging", "topology", "--dry-run")
    printed = program.run("messaging", "topology", "--export", "--vhost", "/shop")
    written = program.run("messaging", "topology", "--export", "-o", "broker.json")
    nowhere = program.run("messaging", "topology", "--export", "-o", "no/such/folder")

    definitions = msgspec.json.decode((program.folder / "broker.json").read_bytes())
    assert "queue orders (quorum)" in planned.out
    assert "guest:guest" not in planned.out
    assert printed.json["queues"][0]["vhost"] == "/shop"
    assert [each["routing_key"] for each in definitions["bindings"]] == ["order.*", "bill.*"]
    assert "rabbitmqctl import_definitions broker.json" in written.out
    assert nowhere.code == 1
    assert "cannot be written" in nowhere.err


def test_a_topology_needs_something_and_somewhere(program: Program) -> None:
    """Settings without exchanges and queues, or without RabbitMQ, are told; and who is unknown."""
    none = program.run("messaging", "topology")
    open_shop(program, "[messaging.exchanges.events]\n")
    nowhere = program.run("messaging", "topology")
    open_shop(program, to_broker(free_port()))
    unknown = program.run("messaging", "topology", "--destination", "local")
    away = program.run("messaging", "topology")

    assert [each.code for each in (none, nowhere, unknown, away)] == [1, 1, 1, 4]
    assert "the settings have no exchange and no queue" in none.err
    assert "the settings have no RabbitMQ" in nowhere.err
    assert "hint: there are broker" in unknown.err
    assert "broker is out of reach" in away.err


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_a_topology_is_declared(program: Program, broker: PrivateRabbitMQ) -> None:
    """Each item by itself: one that is there in another shape is an error, and exit 1.

    Before it is, `doctor` says that it has to be.
    """
    open_shop(program, to_broker(broker.port))
    program.run("migrate")
    early = program.run("doctor", "--json").json["checks"]
    done = program.run("messaging", "topology")
    examined = program.run("doctor", "--json").json["checks"]
    again = program.run("messaging", "topology", "--destination", "broker", "--json")
    open_shop(program, to_broker(broker.port, "fanout"))
    refused = program.run("messaging", "topology")

    found = [
        {check["name"]: check for check in checks}["destination broker"]
        for checks in (early, examined)
    ]
    assert [check["verdict"] for check in found] == ["problem", "ok"]
    assert "the exchange events: 404" in found[0]["found"]
    assert "run `ledgerstone messaging topology`" in found[0]["todo"]
    assert done.code == 0
    assert done.out.count("OK ") == 4
    assert all(each["ok"] for each in again.json["items"])
    assert refused.code == 1
    assert "ERROR  exchange events (fanout)" in refused.out
    assert "PRECONDITION_FAILED" in refused.out
    assert refused.out.count("OK ") == 3


def test_the_settings_of_the_document_are_right(program: Program) -> None:
    """The settings in the how-to lead somewhere, and their topology can be declared."""
    document = (ROOT / "docs" / "how-to" / "carry-messages.md").read_text()
    blocks = [block.partition("```")[0] for block in document.split("```toml\n")[1:]]
    open_shop(program, "\n".join(blocks))

    planned = program.run("messaging", "topology", "--dry-run", "--json")
    published = program.run("outbox", "publish", "order.placed", "--json")

    assert planned.json["items"]
    assert "broker" in published.json["destinations"]

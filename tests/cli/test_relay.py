"""`ledgerstone outbox relay`: it carries, says what it carried, and outlives its destinations."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import HOST, free_port
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import until
from tests.brokers import connected
from tests.cli.program import Program
from tests.cli.shop import handled, ledger_in, open_shop, published

STARTED = "up: ledgerstone"
RELAY = ("outbox", "relay")
SHOP = ("-A", "shop:ledger")
PASSWORD = "hunter2"
HOUR_MS = 3_600_000


def to_broker(port: int) -> str:
    return f"""
[messaging]
routes = {{ "order.*" = ["broker"] }}
[messaging.destinations.broker]
url = "amqp://guest:guest@{HOST}:{port}/"
backoff_seconds = 0.1
on_failure = "park"
[messaging.exchanges.events]
[messaging.queues.orders]
type = "classic"
bindings = {{ events = ["order.placed"] }}
[engine]
breaker_cooldown_seconds = 0.5
"""


@pytest.mark.slow
def test_it_carries_to_consumers(program: Program, home: Home, ledger: Ledger) -> None:
    """With -A messages reach the consumers of the code; SIGTERM ends it with exit 0."""
    open_shop(program)

    with program.start(*RELAY, *SHOP, LEDGERSTONE_URL=home.url) as running:
        running.says(STARTED)
        published(ledger, "order.placed", "order.paid")
        until(lambda: handled(program) == ["order.placed", "order.paid"])
        running.says("local: delivered 2")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert "sends messages to local (local:), retry (local:)" in running.said
    assert "stopped after" in running.said
    assert "Traceback" not in running.said


def test_it_ends_with_one_document(program: Program) -> None:
    """With --json the last word is one document, with what each relay carried."""
    open_shop(program)
    program.run("outbox", "publish", "order.placed")

    with program.start(*RELAY, *SHOP, "--concurrency", 3, "--json") as running:
        until(lambda: handled(program) == ["order.placed"])
        running.says(STARTED)
        running.terminate()
        code = running.ended()

    facts = msgspec.json.decode(running.said[running.said.index("\n{") :])
    carried = {each["destination"]: each["delivered"] for each in facts["carried"]}
    assert code == 0
    assert carried == {"local": 1, "retry": 0}
    assert (facts["concurrency"], facts["state"]) == (3, "stopped")


def test_it_has_a_screen(program: Program) -> None:
    """On a terminal there is a table of the destinations and a live screen below it."""
    open_shop(program, to_broker(free_port()))

    with program.show(*RELAY, *SHOP, NO_COLOR="1") as running:
        running.says("Ctrl-C stops it")
        running.interrupt()
        code = running.ended()

    assert code == 0
    assert "by partition" in running.said
    assert "guest:***@" in running.said
    assert "guest:guest@" not in running.said


def test_it_carries_only_where_it_is_told(program: Program) -> None:
    """With --destination others wait, also those of consumers."""
    open_shop(program, to_broker(free_port()))

    with program.start(*RELAY, *SHOP, "--destination", "local") as running:
        running.says(STARTED)
        running.terminate()
        running.ended()

    assert "sends messages to local (local:)\n" in running.said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no destination to send messages to"),
        (["--destination", "local"], "local needs consumers, and this process has none"),
        (["--destination", "nowhere"], "no destination is named 'nowhere'"),
        (["-A", "nowhere:ledger"], "there is no module nowhere"),
    ],
    ids=["none", "no consumers", "unknown", "no module"],
)
def test_what_cannot_be_carried_is_told(program: Program, arguments: list[str], words: str) -> None:
    """Where there is nothing to do it ends at once: exit 1, and a hint."""
    program.run("migrate")

    ended = program.run(*RELAY, *arguments)

    assert ended.code == 1
    assert words in ended.err
    assert "\nhint: " in ended.err


def test_routes_that_lead_nowhere_are_told(program: Program) -> None:
    """Settings that cannot be meant together are all told, by every command; no password is."""
    open_shop(
        program,
        '[messaging]\nroutes = { "order.*" = ["nowhere"] }\n'
        f'[messaging.destinations.retry]\nurl = "amqp://u:{PASSWORD}@there"\n',
    )

    ended = [program.run(*RELAY), program.run("status"), program.run("doctor")]

    said = [" ".join((each.out + each.err).split()) for each in ended]
    assert [each.code for each in ended] == [1, 1, 1]
    assert all("no destination is named 'nowhere'" in each for each in said)
    assert all("messaging.destinations.retry: reserved name" in each for each in said)
    assert all(PASSWORD not in each for each in said)


def test_a_destination_out_of_reach_is_waited_for(program: Program) -> None:
    """It is said once, costs no attempt and is no reason to end; `doctor` finds it too."""
    open_shop(program, to_broker(free_port()))
    program.run("migrate")

    with program.start(*RELAY) as running, ledger_in(program) as ledger:
        running.says(STARTED)
        published(ledger, "order.placed")
        running.says("messages wait until it is back")
        published(ledger, "order.placed", partition="other")
        told = program.run("outbox", "lanes", "broker", "--json").json["lanes"]
        running.terminate()
        code = running.ended()
    examined = program.run("doctor", "--json")

    found = {check["name"]: check for check in examined.json["checks"]}
    assert code == 0
    assert running.said.count("broker is out of reach") == 1
    assert all(lane["attempts"] == 0 for lane in told)
    assert found["destination broker"]["verdict"] == "problem"
    assert "out of reach" in found["destination broker"]["found"]
    assert examined.code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["up"], id="up"),
        pytest.param(["work"], id="work"),
        pytest.param(
            ["work", "--processes", "2"], id="work in two processes", marks=pytest.mark.slow
        ),
    ],
)
def test_consumers_are_served_with_the_rest(program: Program, command: list[str]) -> None:
    """What runs an application hands its messages to its consumers too, and counts them."""
    open_shop(program)
    program.run("migrate")

    with program.start(*command, *SHOP) as running, ledger_in(program) as ledger:
        published(ledger, "order.placed")
        until(lambda: handled(program) == ["order.placed"])
        running.says("local: delivered 1" if "2" not in command else "messages 1")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert "Traceback" not in running.said


@pytest.mark.slow
def test_a_handler_that_fails_is_told(program: Program) -> None:
    """That its lane waits is told once; each attempt is logged; the message waits meanwhile."""
    open_shop(program)
    program.run("migrate")

    with program.start(*RELAY, *SHOP) as running, ledger_in(program) as ledger:
        published(ledger, "order.broken")
        running.says("local has messages waiting: ValueError: mailer: no such order")
        (program.folder / "mended").touch()
        until(lambda: handled(program) == ["order.broken"])
        running.terminate()
        running.ended()

    assert running.said.count("has messages waiting") == 1
    assert "order.broken" in running.said


def test_status_shows_what_waits(program: Program, home: Home, ledger: Ledger) -> None:
    """For each destination how many, since when, and which are paused; nothing is said as such."""
    empty = program.run("--url", home.url, "status")
    published(ledger, "order.placed", "order.paid")

    told = program.run("--url", home.url, "status", "--json").json["messages"]
    shown = program.run("--url", home.url, "status")

    found = {each["destination"]: each for each in told}
    assert empty.out.endswith("Messages  none waits\n")
    assert (found["local"]["waiting"], found["local"]["parked"]) == (2, 0)
    assert 0 <= found["local"]["oldest_ms"] < HOUR_MS
    assert found["retry"]["oldest_ms"] is None
    assert [line.split()[:2] for line in shown.out.splitlines()[-1:]] == [["local", "2"]]


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_it_carries_when_the_broker_comes(program: Program) -> None:
    """What was published before is delivered; a message for nobody is parked with its reason."""
    port = free_port()
    open_shop(program, to_broker(port))
    program.run("migrate")
    waiting = program.run("messaging", "topology")

    with PrivateRabbitMQ(port=port) as server:
        declared = program.run("messaging", "topology")
        server.write_out()
        server.kill()
        with program.start("up") as running, ledger_in(program) as ledger:
            published(ledger, "order.placed", partition="order-7")
            published(ledger, "order.lost", partition="order-8")
            running.says("broker is out of reach")
            server.restart()
            running.says("broker is back")
            running.says("broker: delivered 1, ")
            running.says(", parked 1")
            examined = program.run("doctor", "--json").json["checks"]
            parked = program.run("outbox", "lanes", "broker", "--state", "parked", "--json").json
            with connected(server.url) as connection:
                _, properties, body = connection.channel().basic_get("orders")
            standing = program.run("status")
            running.terminate()
            code = running.ended()

    assert waiting.code == 4
    assert declared.code == 0
    assert declared.out.count("OK ") == 3
    assert code == 0
    assert running.said.count("broker is back") == 1
    assert (properties.type, body) == ("order.placed", b'{"n":1}')
    assert [(lane["partition"], lane["code"]) for lane in parked["lanes"]] == [
        ("order-8", "unroutable")
    ]
    assert {check["name"]: check["verdict"] for check in examined}["destination broker"] == "ok"
    assert "broker" in standing.out

"""`ledgerstone inbox`: receiving for consumers, and what was handled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pika
import pytest
from sqlalchemy import update

from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import HOST, free_port
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import until
from tests.brokers import connected
from tests.cli.program import COLUMNS, Program
from tests.cli.shop import handled, open_shop, published

CONSUME = ("inbox", "consume", "orders", "-A", "shop:ledger")
STARTED = "up: ledgerstone"


def from_broker(port: int) -> str:
    return f"""
[messaging]
retries_max = 0
routes = {{ "order.*" = ["broker"] }}
[messaging.destinations.broker]
url = "amqp://guest:guest@{HOST}:{port}/"
[messaging.subscriptions.orders]
url = "amqp://guest:guest@{HOST}:{port}/"
queue = "orders"
[messaging.exchanges.events]
[messaging.queues.orders]
type = "classic"
bindings = {{ events = ["order.*"] }}
"""


def handle(ledger: Ledger, *names: str) -> list[str]:
    """Messages that two consumers have handled; their ids."""
    for consumer in ("mailer", "stock"):
        if ledger.registry.consumers.get(consumer) is None:
            ledger.consumer("order.*", name=consumer)(lambda *_: None)
    ids = published(ledger, *names)
    worker = ledger.worker(ledger.relay_source("local"))
    for _ in names:
        worker.tick()
    return ids


def grown_old(ledger: Ledger, days: float) -> None:
    """As if everything had been handled so long ago."""
    then = datetime.now(UTC).replace(tzinfo=None, microsecond=0) - timedelta(days=days)
    with ledger.transaction() as tx:
        tx.execute(update(ledger.registry.shared.receipt).values(processed_at=then))


def test_it_lists_what_was_handled(program: Program, home: Home, ledger: Ledger) -> None:
    """Each message once for each consumer, a page at a time, all or those of one consumer."""
    ids = handle(ledger, "order.placed", "order.paid")

    every = program.run("--url", home.url, "inbox", "list", "--json").json["receipts"]
    first = program.run(
        "--url", home.url, "inbox", "list", "--consumer", "mailer", "--limit", 1, "--json"
    ).json
    rest = program.run(
        *("--url", home.url, "inbox", "list", "--consumer", "mailer", "--json"),
        *("--cursor", first["next"]),
    ).json
    shown = program.run("--url", home.url, "inbox", "list")

    assert sorted((each["message_id"], each["consumer"]) for each in every) == sorted(
        (each, consumer) for each in ids for consumer in ("mailer", "stock")
    )
    both = [*first["receipts"], *rest["receipts"]]
    assert {(each["message_id"], each["consumer"]) for each in both} == {
        (each, "mailer") for each in ids
    }
    assert rest["next"] is None
    assert all(each in shown.out for each in ids)
    assert max(map(len, shown.out.splitlines())) <= COLUMNS


def test_receipts_are_removed(program: Program, home: Home, ledger: Ledger) -> None:
    """What is older goes; below what can still arrive again it is refused, and says so."""
    handle(ledger, "order.placed")
    grown_old(ledger, 40)
    handle(ledger, "order.paid")

    refused = program.run("--url", home.url, "inbox", "cleanup", "--days", 3)
    removed = program.run("--url", home.url, "inbox", "cleanup", "--days", 30, "--json")
    again = program.run("--url", home.url, "inbox", "cleanup")

    left = program.run("--url", home.url, "inbox", "list", "--json").json["receipts"]
    assert refused.code == 1
    assert "hint: give at least 7 days, or lower messaging.redelivery_days_max" in refused.err
    assert removed.json == {"removed": 2, "days": 30.0}
    assert again.out == "0 receipts removed that are older than 30 days\n"
    assert {each["message_name"] for each in left} == {"order.paid"}


def test_nothing_is_told_as_such(program: Program) -> None:
    """An empty inbox, and filters that nothing meets."""
    program.run("migrate")

    empty = program.run("inbox", "list")
    none = program.run("inbox", "list", "--consumer", "mailer")

    assert empty.out == "no message was handled yet\n"
    assert none.out == "no receipt matches these filters\n"


def test_what_cannot_be_consumed_is_told(program: Program) -> None:
    """A subscription that is not set, or code without consumers: exit 1, and what to do."""
    open_shop(program)
    unset = program.run(*CONSUME)
    open_shop(program, from_broker(free_port()))
    (program.folder / "bare.py").write_text("from ledgerstone import Ledger\nledger = Ledger()\n")

    unknown = program.run("inbox", "consume", "bills", "-A", "shop:ledger")
    deaf = program.run("inbox", "consume", "orders", "-A", "bare:ledger")
    bare = program.run("inbox", "consume", "orders")

    assert [each.code for each in (unset, unknown, deaf, bare)] == [1, 1, 1, 2]
    assert "hint: add [messaging.subscriptions.NAME]" in unset.err
    assert "hint: there are orders" in unknown.err
    assert "bare:ledger has no consumers" in deaf.err


@pytest.mark.slow
def test_a_broker_out_of_reach_is_waited_for(program: Program) -> None:
    """It is said, and is no reason to end; SIGTERM is, with exit 0."""
    open_shop(program, from_broker(free_port()))

    with program.start(*CONSUME) as running:
        running.says("trouble: orders: ")
        running.terminate()
        code = running.ended()

    assert code == 0
    assert "hands messages from the queue orders of amqp://guest:***@" in running.said
    assert running.said.count("trouble: orders: ") == 1


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_a_message_goes_its_way(
    program: Program, embedded: Ledger, broker: PrivateRabbitMQ
) -> None:
    """Published, relayed, received, handled; one that fails is retried and handled then."""
    open_shop(program, from_broker(broker.port))
    program.run("messaging", "topology")
    program.run("outbox", "publish", "order.placed")
    program.run("outbox", "publish", "order.broken")
    with program.start("up") as relay, program.start(*CONSUME) as running:
        relay.says("broker: delivered 2")
        running.says("received 2, handled 1, failed 1")
        (failed,) = program.run("failed", "show", "--json").json["failed"]
        (program.folder / "mended").touch()
        retried = program.run("failed", "retry", failed["id"])
        running.says("retry: delivered 1")
        running.terminate()
        relay.terminate()
        codes = running.ended(), relay.ended()
    with connected(broker.url) as connection:
        queue = connection.channel().queue_declare("orders", passive=True, durable=True)

    assert codes == (0, 0)
    assert handled(program) == ["order.placed", "order.broken"]
    assert (failed["consumer"], failed["origin"], failed["attempts"]) == ("mailer", "orders", 1)
    assert retried.out == "1 sent again\n"
    assert queue.method.message_count == 0
    with embedded.reading() as tx:
        assert tx.inbox.count(consumer="mailer") == 2


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_a_second_signal_gives_back_what_runs(program: Program, broker: PrivateRabbitMQ) -> None:
    """The first waits for the handler; the second does not, and the broker has the message."""
    open_shop(program, from_broker(broker.port))
    (program.folder / "slow.py").write_text(SLOW)
    program.run("messaging", "topology")
    with connected(broker.url) as connection:
        properties = pika.BasicProperties(
            type="order.placed",
            message_id="01982f60-7a5e-7c11-a3a4-5f7e9b1c2d3e",
            content_type="application/json",
        )
        connection.channel().basic_publish("events", "order.placed", b"1", properties)
    with program.start("inbox", "consume", "orders", "-A", "slow:ledger") as running:
        until((program.folder / "begun").exists, what="the handler began")
        running.terminate()
        running.says("stopping: 1 running")
        running.terminate()
        code = running.ended()
    with connected(broker.url) as connection:
        channel = connection.channel()
        until(lambda: channel.basic_get("orders")[0], what="the message is back")

    assert code == 0


SLOW = """
import time
from pathlib import Path
from ledgerstone import Ledger

ledger = Ledger()

@ledger.consumer("order.*", name="slow")
def slow(tx, message):
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""

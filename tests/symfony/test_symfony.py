"""Tables that are shared with the real Symfony Messenger, on every database that PHP reaches."""

from __future__ import annotations

import logging
import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import inspect, select, update
from sqlalchemy.engine import make_url

from ledgerstone.cli.checks import diagnose
from ledgerstone.console.moments import now_of
from ledgerstone.engine.source import Failure
from ledgerstone.errors import StoreError
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.failed.rows import Raw
from ledgerstone.messaging.symfony import foreign_rows as foreign
from ledgerstone.messaging.tables import OWN_FAILED_QUEUE, SYMFONY_FAILED_QUEUE
from ledgerstone.room import CheckStatus
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import find_program
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.failed import message_of, put
from tests.contract.messaging.inbox import new_office
from tests.harness.ledgers import opened

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "messenger.php"
PAGE = ROOT / "docs" / "how-to" / "share-with-symfony.md"
DRIVERS = {"sqlite": "pdo_sqlite", "postgresql": "pdo_pgsql", "mysql": "pdo_mysql"}
HOUR = timedelta(hours=1)
OUTBOX, FAILED = "messenger_outbox", "messenger_messages"


class Application:
    """A PHP application with Symfony Messenger on the ledger's database."""

    def __init__(self, home: Home, **given: str) -> None:
        url = make_url(home.url)
        kind = url.get_backend_name()
        self._connection: dict[str, Any] = {"driver": DRIVERS[kind], "path": url.database}
        if kind != "sqlite":
            self._connection = {
                "driver": DRIVERS[kind],
                "host": url.host,
                "port": url.port,
                "user": url.username,
                "password": url.password or "",
                "dbname": url.database,
                "charset": "utf8mb4" if kind == "mysql" else "utf8",
            }
        self._given = given

    def says(self, act: str, *arguments: str, table: str, queue: str, **given: str) -> Any:
        """What an act answers; a failed one is an AssertionError, unless it is a refusal."""
        asked = {
            "connection": self._connection,
            "table": table,
            "queue": queue,
            "serializer": "json",
            **self._given,
            **given,
        }
        ended = subprocess.run(
            [
                find_program("php", install="apt-get install php-cli"),
                PROGRAM,
                msgspec.json.encode(asked).decode(),
                act,
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=True,
        )
        return msgspec.json.decode(ended.stdout)


@pytest.fixture
def application(home: Home) -> Application:
    return Application(home)


@pytest.fixture
def serializer(tmp_path: Path) -> str:
    """The serialiser of the document."""
    block = re.search(r"^```php\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    file = tmp_path / "LedgerstoneSerializer.php"
    file.write_text(block[1])
    return str(file)


def doctor(ledger: Ledger) -> dict[str, tuple[CheckStatus, str]]:
    """What the doctor finds, by the name of the check."""
    checks = diagnose(lambda: ledger.settings).checks
    return {check.name: (check.verdict, check.found) for check in checks}


def rows_of(ledger: Ledger, table: Any) -> list[Any]:
    with ledger.reading() as tx:
        return list(tx.execute(select(table)).all())


@pytest.mark.parametrize("serializing", ["json", "php"])
@pytest.mark.parametrize("act", ["show", "get"])
def test_none_is_deleted(
    ledger: Ledger, application: Application, act: str, serializing: str
) -> None:
    """Looking at what failed with Symfony leaves our failed messages alone, whichever they are."""
    registry = new_office(ledger)
    put(ledger, registry)
    put(ledger, registry, message_of("App\\Message\\OrderPlaced"))
    put(ledger, registry, Raw(body=b"{oops\xff"), consumer="")
    before = rows_of(ledger, registry.shared.failed)

    application.says(act, table=FAILED, queue=SYMFONY_FAILED_QUEUE, serializer=serializing)

    assert rows_of(ledger, registry.shared.failed) == before
    assert len(before) == 3


def test_what_would_happen(ledger: Ledger, application: Application) -> None:
    """Where its transport does look, Symfony deletes what it cannot read, by only listing it."""
    registry = new_office(ledger)
    put(ledger, registry)
    with ledger.transaction() as tx:
        tx.execute(update(registry.shared.failed).values(queue_name=SYMFONY_FAILED_QUEUE))

    said = application.says("show", table=FAILED, queue=SYMFONY_FAILED_QUEUE)

    assert "MessageDecodingFailedException" in said["error"]
    with ledger.reading() as tx:
        assert Failed(tx, registry).find().rows == []
        assert Failed(tx, registry).count(most=10) == 0


def test_shown_by_symfony(ledger: Ledger, application: Application, serializer: str) -> None:
    """With the serialiser of the document `messenger:failed:show` shows every one of them."""
    registry = new_office(ledger)
    put(ledger, registry)
    put(ledger, registry, Raw(body=b""), consumer="", failure=Failure("bad_input", "no JSON"))
    before = rows_of(ledger, registry.shared.failed)
    named = {"table": FAILED, "queue": OWN_FAILED_QUEUE, "serializer": serializer}

    listed = application.says("show", **named)["answer"]
    whole = application.says("show", str(before[0].id), **named)["answer"]

    assert "no such order" in listed
    assert "no JSON" in listed
    assert "LookupError" in whole
    assert rows_of(ledger, registry.shared.failed) == before


def test_failed_there(ledger: Ledger, application: Application) -> None:
    """What Symfony put into the failed table is shown here, and no more once Symfony has taken it.

    On MySQL such a row stays, marked, until Symfony reads the next one.
    """
    registry = new_office(ledger)
    named = {"table": FAILED, "queue": SYMFONY_FAILED_QUEUE}
    application.says("fail", **named)
    with ledger.reading() as tx:
        (shown,) = Failed(tx, registry).find().rows

    got = application.says("get", **named)

    assert (shown.name, shown.origin, shown.reason) == ("OrderPlaced", "async", "no such order")
    assert got["answer"] == [["OrderPlaced", {"order": 7}]]
    with ledger.reading() as tx:
        rooms = Failed(tx, registry)
        assert rooms.find().rows == []
        assert rooms.count(most=10) == 0
        assert rooms.groups().groups == []


@pytest.mark.parametrize("serializing", ["json", "php"])
def test_published_there(ledger: Ledger, application: Application, serializing: str) -> None:
    """A row that Symfony wrote as JSON is handled; one in PHP's own format waits for people."""
    came: list[Any] = []
    ledger.consumer("*", name="all")(lambda _, message: came.append((message.name, message.raw)))
    application.says("send", table=OUTBOX, queue="local", serializer=serializing)

    worker = ledger.worker(ledger.relay_source())
    for _ in range(3):
        worker.tick()
    worker.stop()

    assert came == ([("OrderPlaced", b'{"order":7}')] if serializing == "json" else [])


def test_its_setup(
    ledger: Ledger, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """Symfony's setup() drops our column and indexes: that is noticed, said, and made good."""
    with ledger.transaction() as tx:
        for n in range(3):
            tx.outbox.publish("order.placed", {"n": n}, partition=f"order-{n}")
    setup = ledger.registry.setup
    assert (setup.lost(ledger.database), setup.shared_setup(ledger.database)) == (None, False)

    for table, queue in ((OUTBOX, "local"), (FAILED, SYMFONY_FAILED_QUEUE)):
        assert application.says("setup", table=table, queue=queue) == {"answer": None}

    ledger.database.engine.dispose()
    columns = {each["name"] for each in inspect(ledger.database.engine).get_columns(OUTBOX)}
    assert "partition_key" not in columns
    lost = setup.lost(ledger.database)
    assert lost is not None
    assert "3 messages that wait have lost their partition" in lost
    assert doctor(ledger)["messages"] == (CheckStatus.PROBLEM, lost)
    with pytest.raises(StoreError) as raised, ledger.transaction() as tx:
        tx.outbox.publish("order.placed", {"n": 3}, partition="order-3")
    assert "ledgerstone doctor" in str(raised.value)
    relay = ledger.worker(ledger.relay_source())
    with pytest.raises(StoreError, match="ledgerstone doctor"):
        relay.tick()

    with Ledger(ledger.settings.url) as next_start, caplog.at_level(logging.WARNING):
        with next_start.transaction() as tx:
            tx.outbox.publish("order.placed", {"n": 4}, partition="order-4")
            assert tx.failed.find().rows == []
        assert (setup.lost(next_start.database), setup.plan(next_start.database)) == (None, [])
        assert setup.shared_setup(next_start.database)
        told = doctor(next_start)
        assert (told["messages"][0], told["symfony"][0]) == (CheckStatus.OK, CheckStatus.WARNING)

    assert any("has lost its column partition_key" in each.message for each in caplog.records)


def test_a_table_that_is_symfonys(ledger: Ledger, application: Application) -> None:
    """A table that Symfony made, and that we have never used, has lost nothing."""
    with ledger.transaction() as tx:
        tx.connection.exec_driver_sql(f"DROP TABLE {OUTBOX}")
    application.says("setup", table=OUTBOX, queue="local")
    setup = ledger.registry.setup

    assert setup.lost(ledger.database) is None
    assert setup.plan(ledger.database) != []


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_time_zones(ledger: Ledger, home: Home, zone: str) -> None:
    """Rows whose moments are those of another time zone, ahead of the set one, are noticed."""
    application = Application(home, time_zone=zone)
    application.says("send", table=OUTBOX, queue="local")

    with ledger.reading() as tx:
        ahead = foreign.from_the_future(tx, ledger.registry)

    assert ahead == (0 if zone == "UTC" else 1)
    assert ("time zones" in doctor(ledger)) == bool(ahead)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "Europe/Berlin"])
def test_a_time_zone_that_is_set(home: Home, zone: str, serializer: str) -> None:
    """Rows of Symfony leave when they are due, and not before; ours are due for Symfony."""
    application = Application(home, time_zone=zone)
    with opened(home.url, messaging={"time_zone": zone}) as ledger:
        came: list[object] = []
        ledger.consumer("*", name="shop")(lambda _, message: came.append(message.body))
        with ledger.transaction() as tx:
            tx.outbox.publish("order.placed", {"order": 8})
        application.says("send", table=OUTBOX, queue="local")
        application.says(
            "send", str(HOUR // timedelta(milliseconds=1)), table=OUTBOX, queue="local"
        )

        worker = ledger.worker(ledger.relay_source())
        for _ in range(3):
            worker.tick()
        worker.stop()
        with ledger.reading() as tx:
            rows = tx.outbox.find(destination="local").rows
            now = now_of(tx)
        with ledger.transaction() as tx:
            tx.outbox.publish("order.placed", {"order": 9})
        outbox = ledger.registry.shared.outbox
        with ledger.transaction() as tx:
            ours = outbox.c.body.like("%9%")
            tx.execute(update(outbox).where(ours).values(queue_name="php"))
        told = doctor(ledger)
        asked = application.says("get", table=OUTBOX, queue="php", serializer=serializer)

    assert came == [{"order": 8}, {"order": 7}]
    assert [row.delivered_at is None for row in rows] == [True, False, False]
    late = rows[0].available_at - now
    assert HOUR / 2 < late < 2 * HOUR
    assert all(abs(row.created_at - now) < HOUR / 2 for row in rows)
    assert "time zones" not in told
    ((_, taken),) = asked["answer"]
    assert taken["body"] == '{"order":9}'


def test_a_delayed_row(ledger: Ledger, application: Application) -> None:
    """A row with a delay holds those behind it that have no partition either: that is noticed."""
    application.says("send", "3600000", table=OUTBOX, queue="local")
    with ledger.reading() as tx:
        before = foreign.held_up(tx, ledger.registry)
    application.says("send", table=OUTBOX, queue="local")

    with ledger.reading() as tx:
        after = foreign.held_up(tx, ledger.registry)

    assert (before, after) == ([], ["local"])
    verdict, found = doctor(ledger)["partitions"]
    assert verdict is CheckStatus.WARNING
    assert "local" in found

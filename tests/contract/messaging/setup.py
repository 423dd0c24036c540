"""The contract of setting up the tables that are shared with Symfony Messenger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import inspect, text

from ledgerstone.errors import BadInput, NotAllowedNow, SchemaMissing, SettingsError
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.messaging.destination import NAME, REFUSED, SHOP, Shop
from tests.harness.joinable import guest_on
from tests.harness.ledgers import Undone
from tests.harness.threads import aside, still_waits, together

OUTBOX, FAILED, RECEIPTS = "messenger_outbox", "messenger_messages", "message_broker_deduplication"
NAMES = {"outbox_table": "Shop_Outbox", "failed_table": "order", "deduplication_table": "seen_2"}
BAD_NAMES = ["", "a b", "a-b", "1a", "a;b", 'a"b', "a.b", "ä", "a" * 65, "a\n"]
SETTERS_UP = 4

STANDARD = {
    "sqlite": """
        CREATE TABLE messenger_outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, body CLOB NOT NULL,
            headers CLOB NOT NULL, queue_name VARCHAR(190) NOT NULL, created_at DATETIME NOT NULL,
            available_at DATETIME NOT NULL, delivered_at DATETIME DEFAULT NULL);
        CREATE INDEX idx_queue ON messenger_outbox (queue_name)
    """,
    "postgres": """
        CREATE TABLE messenger_outbox (
            id BIGSERIAL NOT NULL PRIMARY KEY, body TEXT NOT NULL, headers TEXT NOT NULL,
            queue_name VARCHAR(190) NOT NULL, created_at TIMESTAMP(0) WITHOUT TIME ZONE NOT NULL,
            available_at TIMESTAMP(0) WITHOUT TIME ZONE NOT NULL,
            delivered_at TIMESTAMP(0) WITHOUT TIME ZONE DEFAULT NULL);
        CREATE INDEX idx_queue ON messenger_outbox (queue_name)
    """,
    "mysql": """
        CREATE TABLE messenger_outbox (
            id BIGINT AUTO_INCREMENT NOT NULL PRIMARY KEY, body LONGTEXT NOT NULL,
            headers LONGTEXT NOT NULL, queue_name VARCHAR(190) NOT NULL,
            created_at DATETIME NOT NULL, available_at DATETIME NOT NULL,
            delivered_at DATETIME DEFAULT NULL, INDEX idx_queue_name (queue_name),
            INDEX idx_available_at (available_at), INDEX idx_delivered_at (delivered_at)
        ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci
    """,
}
"""The outbox as Symfony Messenger makes it."""
KEYED_BY_MESSAGE = {
    "sqlite": """
        CREATE TABLE message_broker_deduplication (
            message_id BLOB NOT NULL PRIMARY KEY, message_name VARCHAR(255) NOT NULL,
            processed_at DATETIME NOT NULL)
    """,
    "postgres": """
        CREATE TABLE message_broker_deduplication (
            message_id BYTEA NOT NULL PRIMARY KEY, message_name VARCHAR(255) NOT NULL,
            processed_at TIMESTAMP(0) NOT NULL);
        CREATE INDEX idx_dedup_processed_at ON message_broker_deduplication (processed_at)
    """,
    "mysql": """
        CREATE TABLE message_broker_deduplication (
            message_id BINARY(16) NOT NULL PRIMARY KEY COMMENT '(DC2Type:id_binary)',
            message_name VARCHAR(255) NOT NULL, processed_at DATETIME NOT NULL,
            INDEX idx_dedup_processed_at (processed_at)
        ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci
    """,
}
"""The receipts as they are documented, without a consumer."""
WORDS = {"sqlite": ["sqlite"], "postgres": ["postgresql"], "mysql": ["mysql", "mariadb"]}
"""What a kind of database is called where SQL is printed."""

PARTITION = "partition_key VARCHAR(255) NOT NULL DEFAULT ''"
"""A partition as others may have added it: compared as the rest of their table is."""

Opening = Callable[..., Ledger]


class SetupContract:
    """What holds for the shared tables. Fixtures: `home` (a fresh one for each clause), `clock`."""

    @pytest.fixture
    def opening(self, home: Home) -> Iterator[Opening]:
        """Opens ledgers with these settings of messaging, without any migration."""

        def opened(**messaging: Any) -> Ledger:
            settings = Settings.load(
                url=home.url, environ={}, messaging=messaging, store={"auto_migrate": "never"}
            )
            return ledgers.enter_context(Ledger(home.url, settings=settings))

        with ExitStack() as ledgers:
            yield opened

    @pytest.mark.parametrize("names", [{}, NAMES], ids=["documented names", "other names"])
    def test_what_is_missing_is_made(self, opening: Opening, names: dict[str, str]) -> None:
        """Tables, columns and indexes are made under their names; a second time nothing is."""
        ledger = opening(**names)
        setup = ledger.registry.setup
        planned = setup.plan(ledger.database)

        done = setup.apply(ledger.database)
        again = setup.apply(ledger.database)

        outbox = names.get("outbox_table", OUTBOX)
        assert done == planned
        assert (again, setup.plan(ledger.database)) == ([], [])
        assert tables_of(ledger) >= set(names.values() or (OUTBOX, FAILED, RECEIPTS))
        assert len([name for name in indexes_of(ledger, outbox) if name.endswith("waiting")]) == 1
        if not names:
            assert {"idx_outbox_available", "idx_outbox_partition_order"} <= indexes_of(
                ledger, outbox
            )

    def test_names_of_the_greatest_length(self, opening: Opening, home: Home) -> None:
        """Tables have their indexes under any name that the database takes, and differ by it."""
        chars = {"sqlite": 64, "postgres": 63, "mysql": 64}[home.kind]
        names = {
            "outbox_table": "o" * (chars - 1) + "1",
            "failed_table": "o" * (chars - 1) + "2",
            "deduplication_table": "r" * chars,
        }
        ledger = opening(**names)

        done = ledger.registry.setup.apply(ledger.database)
        again = ledger.registry.setup.plan(ledger.database)

        assert (bool(done), again) == (True, [])
        assert tables_of(ledger) >= set(names.values())
        outbox = indexes_of(ledger, names["outbox_table"])
        assert len([name for name in outbox if name.endswith("waiting")]) == 1

    def test_a_name_that_is_too_long(self, opening: Opening, home: Home) -> None:
        """A name that the database would cut is refused, with how long it may be."""
        if home.kind != "postgres":
            return
        ledger = opening(outbox_table="o" * 64)

        with pytest.raises(NotAllowedNow, match="63 characters"):
            ledger.registry.setup.apply(ledger.database)

    def test_a_standard_outbox_gets_partitions(self, home: Home, clock: ManualClock) -> None:
        """A standard outbox is given partitions and indexes, keeps its rows, and they leave."""
        with Shop(home.url, clock) as shop:
            engine = shop.ledger.database.engine
            with engine.begin() as connection:
                connection.execute(text(f"DROP TABLE IF EXISTS {OUTBOX}"))
            run(shop.ledger, STANDARD[home.kind])
            with engine.begin() as connection:
                for number in range(3):
                    connection.execute(
                        text(
                            f"INSERT INTO {OUTBOX} (body, headers, queue_name, created_at,"  # noqa: S608 - fixed names
                            " available_at) VALUES (:body, :headers, :queue, :now, :now)"
                        ),
                        {
                            "body": str(number),
                            "headers": '{"type":"order.placed"}',
                            "queue": SHOP,
                            "now": "2023-11-01 12:00:00",
                        },
                    )

            shop.ledger.migrate()
            shop.publish(3, partition="Ann")
            shop.publish(4, partition="ann")
            shop.tick(2)

            assert [row["partition_key"] for row in shop.rows()] == ["", "", "", "Ann", "ann"]
            assert shop.shelf.bodies_of("") == [0, 1, 2]
            assert sorted(shop.shelf.bodies) == [0, 1, 2, 3, 4]
            assert shop.ledger.registry.setup.plan(shop.ledger.database) == []

    def test_partitions_of_others_are_told_apart(self, home: Home, clock: ManualClock) -> None:
        """A column for partitions that others made compares letter by letter from then on."""
        with Shop(home.url, clock) as shop:
            shop.ledger.migrate()
            run(shop.ledger, f"DROP TABLE {OUTBOX}")
            run(shop.ledger, STANDARD[home.kind])
            run(shop.ledger, f"ALTER TABLE {OUTBOX} ADD COLUMN {PARTITION}")

            shop.ledger.registry.setup.apply(shop.ledger.database)
            shop.shelf.tell(1, REFUSED)
            shop.publish(1, partition="ann")
            shop.publish(2, partition="Ann")
            shop.tick(2)

            assert shop.shelf.bodies == [2]
            assert shop.waiting() == [1]
            assert shop.ledger.registry.setup.plan(shop.ledger.database) == []

    def test_tables_of_any_name_are_changed(self, opening: Opening, home: Home) -> None:
        """Tables with capitals in their names, or words of SQL as names, are changed as well."""
        ledger = opening(outbox_table="Group", deduplication_table="Order")
        quote = ledger.database.engine.dialect.identifier_preparer.quote
        run(ledger, STANDARD[home.kind].replace(OUTBOX, quote("Group")))
        run(ledger, KEYED_BY_MESSAGE[home.kind].replace(RECEIPTS, quote("Order")))

        ledger.registry.setup.apply(ledger.database)

        assert "partition_key" in columns_of(ledger, "Group")
        assert key_of(ledger, "Order") == ["message_id", "consumer"]
        assert ledger.registry.setup.plan(ledger.database) == []

    def test_tables_of_any_name_are_used(self, home: Home, clock: ManualClock) -> None:
        """Publishing, delivering, setting aside and cleaning up work under other names."""
        options: dict[str, Any] = {"messaging": NAMES, "on_failure": "skip", "max_attempts": 1}
        with Shop(home.url, clock, **options) as shop:
            shop.ledger.migrate()
            shop.shelf.tell("poison", REFUSED)
            shop.publish(1, "poison", 2, partition="ann")
            shop.tick(3)
            clock.advance(86_400)
            with shop.ledger.transaction() as tx:
                removed = tx.outbox.cleanup(days=0.5)
                failed = tx.failed.find().rows

            assert (shop.shelf.bodies, removed, len(failed)) == ([1, 2], 2, 1)
            assert shop.rows() == []

    def test_receipts_get_a_consumer(self, opening: Opening, home: Home) -> None:
        """Receipts without a consumer need its name, are given it, and are kept by both."""
        ledger = opening()
        setup = ledger.registry.setup
        run(ledger, KEYED_BY_MESSAGE[home.kind])
        message = UUID(new_id()).bytes
        add_receipt(ledger, message)

        with pytest.raises(NotAllowedNow, match="1 receipts") as raised:
            setup.apply(ledger.database)
        untouched = columns_of(ledger, RECEIPTS)
        setup.apply(ledger.database, consumer="mailer")

        assert "--consumer" in str(raised.value)
        assert "consumer" not in untouched
        assert key_of(ledger) == ["message_id", "consumer"]
        with ledger.database.engine.connect() as connection:
            rows = connection.execute(text(f"SELECT message_id, consumer FROM {RECEIPTS}"))  # noqa: S608 - fixed
            assert [(bytes(row[0]), row[1]) for row in rows] == [(message, "mailer")]
        assert setup.plan(ledger.database) == []

    def test_without_receipts_no_name_is_needed(self, opening: Opening, home: Home) -> None:
        """A table without receipts is given the new key unasked."""
        ledger = opening()
        run(ledger, KEYED_BY_MESSAGE[home.kind])

        ledger.registry.setup.apply(ledger.database)

        assert key_of(ledger) == ["message_id", "consumer"]
        assert ledger.registry.setup.plan(ledger.database) == []

    def test_an_interrupted_change_is_taken_up(self, opening: Opening, home: Home) -> None:
        """Where the column was added and the key not changed yet, the rest is done."""
        ledger = opening()
        run(ledger, KEYED_BY_MESSAGE[home.kind])
        run(ledger, f"ALTER TABLE {RECEIPTS} ADD COLUMN consumer VARCHAR(190) NOT NULL DEFAULT ''")

        ledger.registry.setup.apply(ledger.database)

        assert key_of(ledger) == ["message_id", "consumer"]

    def test_another_table_is_left_alone(self, opening: Opening) -> None:
        """A table of this name that is something else is refused and not changed."""
        ledger = opening(outbox_table="orders")
        run(ledger, "CREATE TABLE orders (id INTEGER PRIMARY KEY, body VARCHAR(20))")

        with pytest.raises(NotAllowedNow, match="orders has no column"):
            ledger.registry.setup.apply(ledger.database)

        assert columns_of(ledger, "orders") == ["id", "body"]

    def test_several_at_once(self, opening: Opening) -> None:
        """Several that set up at once take turns: one makes everything, the others nothing."""
        ledgers = [opening() for _ in range(SETTERS_UP)]
        # The file of an embedded database is there.
        ledgers[0].registry.setup.plan(ledgers[0].database)

        done = together(
            *[lambda each=each: each.registry.setup.apply(each.database) for each in ledgers]
        )

        assert sorted(len(steps) > 0 for steps in done) == [False] * (SETTERS_UP - 1) + [True]
        assert ledgers[0].registry.setup.plan(ledgers[0].database) == []

    def test_one_waits_for_another(self, opening: Opening) -> None:
        """One that sets up waits until another one that migrates or sets up has ended."""
        database, other = opening().database, opening()
        if database.dialect.one_writer:
            # There the file itself lets one write at a time.
            return
        with ExitStack() as turn:
            connection = turn.enter_context(database.engine.connect())
            turn.enter_context(database.dialect.migrating(connection, database.namespace))
            with aside(lambda: other.registry.setup.apply(other.database)) as setting_up:
                waits = still_waits(setting_up)
                turn.close()

        assert waits
        assert setting_up.result()

    def test_off_means_that_people_do_it(self, opening: Opening) -> None:
        """With auto_setup off the first use is SchemaMissing, and says which command to run."""
        ledger = opening(auto_setup=False)
        ledger.migrate()

        with ledger.transaction() as tx, pytest.raises(SchemaMissing) as raised:
            tx.outbox.publish(NAME, 1)
        ledger.registry.setup.apply(ledger.database)
        with ledger.transaction() as tx:
            published = tx.outbox.publish(NAME, 1)

        assert "ledgerstone messaging setup --apply" in str(raised.value)
        assert published.created

    def test_the_first_use_makes_it(self, opening: Opening, home: Home) -> None:
        """The first use inside a transaction makes the table, also if that is rolled back."""
        migrated(opening)
        first, second, third = opening(), opening(), opening()

        with pytest.raises(Undone), first.transaction() as tx:
            tx.outbox.publish(NAME, 1)
            tx.outbox.publish(NAME, 2)
            raise Undone
        with first.transaction() as tx:
            tx.outbox.publish(NAME, 3)
        with guest_on("driver", home.url) as guest:
            guest.begin()
            guest.joined(second, lambda tx: tx.outbox.publish(NAME, 4))
            guest.commit()

        with third.reading() as tx:
            assert [row.body for row in tx.outbox.find().rows] == ["4", "3"]
            assert tx.failed.find().rows == []

    def test_the_first_use_in_a_joined_transaction(self, opening: Opening, home: Home) -> None:
        """So does the first use in a user's transaction; their rollback leaves it usable."""
        migrated(opening)
        ledger = opening()

        with guest_on("driver", home.url) as guest:
            for body, end in ((1, guest.rollback), (2, guest.commit)):
                guest.begin()
                for given in (body, [body]):
                    guest.joined(ledger, partial(published, given))
                end()

        with ledger.transaction() as tx:
            tx.outbox.publish(NAME, 3)
            assert [row.body for row in tx.outbox.find().rows] == ["3", "[2]", "2"]

    def test_the_printed_sql_is_all(self, opening: Opening, home: Home) -> None:
        """What is printed for this kind of database can be run, and then nothing is missing."""
        ledger = opening()
        setup = ledger.registry.setup
        for word in WORDS[home.kind]:
            for name in (OUTBOX, FAILED, RECEIPTS):
                run(ledger, f"DROP TABLE IF EXISTS {name}")

            run(ledger, setup.sql(word))

            assert setup.plan(ledger.database) == []
        with pytest.raises(BadInput, match="oracle"):
            setup.sql("oracle")

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_bad_names_are_refused(self, opening: Opening, name: str) -> None:
        """A name that a table cannot have is a problem of the settings."""
        for setting in NAMES:
            with pytest.raises(SettingsError, match=setting):
                opening(**{setting: name})

    def test_one_name_for_two_tables_is_refused(self, opening: Opening) -> None:
        """Two tables of one name are a problem of the settings."""
        with pytest.raises(SettingsError, match="the same"):
            opening(outbox_table="messages", failed_table="Messages")


def published(body: Any, tx: Transaction) -> None:
    """A message with this body."""
    tx.outbox.publish(NAME, body)


def migrated(opening: Opening) -> None:
    """A database with everything but the shared tables."""
    ledger = opening(auto_setup=False)
    ledger.migrate()
    assert OUTBOX not in tables_of(ledger)


def run(ledger: Ledger, script: str) -> None:
    """Statements that are divided by semicolons."""
    with ledger.database.engine.begin() as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(text(statement.replace(":", "\\:")))


def add_receipt(ledger: Ledger, message: bytes) -> None:
    """A receipt of before."""
    statement = f"INSERT INTO {RECEIPTS} VALUES (:id, 'App\\\\Placed', '2023-11-01 12:00:00')"  # noqa: S608 - fixed
    with ledger.database.engine.begin() as connection:
        connection.execute(text(statement), {"id": message})


def tables_of(ledger: Ledger) -> set[str]:
    """The names of all tables."""
    return set(inspect(ledger.database.engine).get_table_names())


def columns_of(ledger: Ledger, table: str) -> list[str]:
    """The names of its columns."""
    return [column["name"] for column in inspect(ledger.database.engine).get_columns(table)]


def indexes_of(ledger: Ledger, table: str) -> set[str]:
    """The names of its indexes."""
    found = inspect(ledger.database.engine).get_indexes(table)
    return {str(index["name"]) for index in found}


def key_of(ledger: Ledger, table: str = RECEIPTS) -> list[str]:
    """What receipts are kept by."""
    return list(inspect(ledger.database.engine).get_pk_constraint(table)["constrained_columns"])

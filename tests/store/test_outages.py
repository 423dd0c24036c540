"""Servers that die, come back, refuse, or are not there."""

from __future__ import annotations

import logging
import socket
from contextlib import closing, suppress

import pymysql
import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from ledgerstone import Ledger, errors
from ledgerstone.settings import Settings
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.server import free_port
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores.workshop import opened
from tests.harness.own_table import note, notes_kept, tables, write
from tests.harness.workers import started

SCRAM = "host all locked 127.0.0.1/32 scram-sha-256\n"


def restart(home: Home) -> None:
    assert home.server is not None
    home.server.kill()
    home.server.restart()


@pytest.fixture
def ledger(mortal: Home, clock: ManualClock) -> Ledger:
    settings = Settings.load(url=mortal.url, environ={})
    ledger = Ledger(mortal.url, settings=settings, clock=clock)
    ledger.migrate()
    tables.create_all(ledger.database.engine)
    return ledger


def test_a_stale_connection_is_replaced(ledger: Ledger, mortal: Home, clock: ManualClock) -> None:
    """A connection from before a restart is replaced in silence once it has rested a second."""
    ledger.run(lambda tx: write(tx, "before"))
    restart(mortal)
    clock.advance(1)

    ledger.run(lambda tx: write(tx, "after"))

    assert notes_kept(ledger) == ["after", "before"]
    ledger.close()


def test_one_at_hand_is_replaced(ledger: Ledger, mortal: Home, clock: ManualClock) -> None:
    """So is one that was kept at hand, for it carried nothing but statements of ours."""
    ledger.run(lambda tx: tx.jobs.enqueue("before"))
    restart(mortal)
    clock.advance(1)

    ledger.run(lambda tx: tx.jobs.enqueue("after"))

    with ledger.reading() as tx:
        assert {row.type for row in tx.jobs.find().rows} == {"before", "after"}
    ledger.close()


def test_one_at_hand_is_warned_of(ledger: Ledger, mortal: Home) -> None:
    """Without a rest its first use fails as retryable; what was in the pool is doubted then."""
    with ledger.reading() as one, ledger.reading() as two:
        assert notes_in(one) == notes_in(two) == []
    ledger.run(lambda tx: tx.jobs.enqueue("before"))
    restart(mortal)

    with pytest.raises(errors.StoreUnavailable) as raised, ledger.transaction() as tx:
        tx.jobs.enqueue("lost")
    ledger.run(lambda tx: tx.jobs.enqueue("after"))

    assert raised.value.retryable
    with ledger.reading() as tx:
        assert {row.type for row in tx.jobs.find().rows} == {"before", "after"}
    ledger.close()


def test_one_failure_warns_of_the_others(ledger: Ledger, mortal: Home) -> None:
    """Without a rest the first use fails as retryable; after it no other connection does."""
    with ledger.transaction() as one, ledger.reading() as two, ledger.reading() as three:
        write(one, "before")
        assert notes_in(two) == notes_in(three) == []
    restart(mortal)

    with pytest.raises(errors.StoreUnavailable) as raised, ledger.transaction() as tx:
        write(tx, "lost")

    assert raised.value.retryable
    with ledger.transaction() as one, ledger.reading() as two, ledger.reading() as three:
        write(one, "after")
        assert notes_in(two) == notes_in(three) == ["before"]
    assert notes_kept(ledger) == ["after", "before"]
    ledger.close()


def notes_in(tx: object) -> list[str]:
    connection = tx.connection  # type: ignore[attr-defined]
    return sorted(connection.execute(note.select().with_only_columns(note.c.name)).scalars())


def test_killed_inside_a_transaction(ledger: Ledger, mortal: Home) -> None:
    """A server that dies under a transaction makes it StoreUnavailable, and none of it is kept."""
    with pytest.raises(errors.StoreUnavailable), ledger.transaction() as tx:
        write(tx, "mine")
        restart(mortal)
        write(tx, "more")

    assert notes_kept(ledger) == []
    assert ledger.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    ledger.close()


def test_killed_before_the_commit(ledger: Ledger, mortal: Home) -> None:
    """So does one that dies between the last statement and the commit."""
    with pytest.raises(errors.StoreUnavailable), ledger.transaction() as tx:
        write(tx, "mine")
        restart(mortal)

    assert notes_kept(ledger) == []
    assert ledger.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    ledger.close()


def test_killed_while_reading(ledger: Ledger, mortal: Home) -> None:
    """And one that dies at the end of a reader: no error of the driver comes out."""
    with pytest.raises(errors.StoreUnavailable), ledger.reading() as tx:
        notes_in(tx)
        restart(mortal)

    assert notes_kept(ledger) == []
    assert ledger.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    ledger.close()


def test_killed_inside_a_savepoint(ledger: Ledger, mortal: Home) -> None:
    """An error inside a savepoint whose server is gone says that the server is gone."""
    with pytest.raises(errors.StoreUnavailable), ledger.transaction() as tx, tx.savepoint():
        write(tx, "mine")
        restart(mortal)
        message = "something else"
        raise ValueError(message)

    assert notes_kept(ledger) == []
    assert ledger.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    ledger.close()


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_nobody_answers(scheme: str) -> None:
    """Where no server is, opening is StoreUnavailable, and says where."""
    url = f"{scheme}://root@127.0.0.1:{free_port()}/ledger"

    with pytest.raises(errors.StoreUnavailable) as raised:
        opened(url)

    assert raised.value.retryable
    assert "127.0.0.1" in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_somebody_else_answers(scheme: str) -> None:
    """A port that accepts and says nothing is given up after the setting: StoreUnavailable."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"{scheme}://root@127.0.0.1:{silent.getsockname()[1]}/ledger"

        with pytest.raises(errors.StoreUnavailable):
            opened(url, store={"connect_timeout_seconds": 1})


@pytest.mark.postgres
@pytest.mark.xdist_group("mortal-p")
def test_a_wrong_password_on_postgresql(mortal_postgres: PrivatePostgres) -> None:
    """A wrong password, user or database is StoreDenied, which waiting does not help."""
    mortal_postgres.psql("CREATE ROLE locked LOGIN PASSWORD 'right'")
    rules = mortal_postgres.folder / "data" / "pg_hba.conf"
    rules.write_text(SCRAM + rules.read_text())
    mortal_postgres.kill()
    mortal_postgres.restart()
    address = f"127.0.0.1:{mortal_postgres.port}"

    for url in (
        f"postgresql://locked:wrong@{address}/postgres",
        f"postgresql://locked@{address}/postgres",
        f"postgresql://nobody@{address}/postgres",
        f"postgresql://postgres@{address}/nowhere",
    ):
        with pytest.raises(errors.StoreDenied) as raised:
            opened(url)

        assert not raised.value.retryable
        assert "wrong" not in str(raised.value)
    with pytest.raises(errors.StoreDenied, match="may not make it"):
        opened(f"postgresql://locked:right@{address}/postgres")


@pytest.mark.mysql
def test_a_wrong_password_on_mysql(quick_mariadb: PrivateMariaDB) -> None:
    """A wrong password, user or database is StoreDenied, which waiting does not help."""
    with closing(
        pymysql.connect(
            host="127.0.0.1",
            port=quick_mariadb.port,
            user="root",
            connect_timeout=WAIT_SECONDS_MAX,
        )
    ) as connection:
        connection.cursor().execute("CREATE OR REPLACE USER locked IDENTIFIED BY 'right'")
    address = f"127.0.0.1:{quick_mariadb.port}"

    for url in (
        f"mysql://locked:wrong@{address}/test",
        f"mysql://locked@{address}/test",
        f"mysql://root@{address}/nowhere",
    ):
        with pytest.raises(errors.StoreDenied) as raised:
            opened(url)

        assert not raised.value.retryable
        assert "wrong" not in str(raised.value)


@pytest.mark.postgres
@pytest.mark.xdist_group("mortal-p")
def test_a_watcher_survives_a_restart(mortal_postgres: PrivatePostgres) -> None:
    """The watcher of PostgreSQL connects again, notifies for what it missed, and is prompt."""
    url = mortal_postgres.create_database("watched")
    with opened(url) as ledger:
        wake_signal = WakeSignal()
        ledger.database.wake_signals.subscribe("chores", wake_signal)
        watcher = ledger.database.watcher()
        assert watcher is not None
        watcher.start()
        until(lambda: watcher.prompt)
        wake_signal.wait(0)

        mortal_postgres.kill()
        mortal_postgres.restart()
        assert wake_signal.wait(WAIT_SECONDS_MAX)

        assert watcher.prompt
        with opened(url) as elsewhere:
            elsewhere.run(lambda tx: tx.wake("chores"))
        assert wake_signal.wait(WAIT_SECONDS_MAX)
        watcher.stop()


def test_passwords_stay_secret() -> None:
    """Neither a ledger nor its database shows the password of its URL."""
    url = "postgresql://ann:geheim@127.0.0.1:1/ledger"
    ledger = Ledger(url, settings=Settings.load(url=url, environ={}))

    assert make_url(url).password == "geheim"
    assert "geheim" not in repr(ledger) + repr(ledger.database) + repr(ledger.settings)
    with pytest.raises(errors.StoreUnavailable) as raised:
        ledger.run(lambda _: None)
    assert "geheim" not in str(raised.value)


def test_an_outage_in_the_log(mortal: Home, caplog: pytest.LogCaptureFixture) -> None:
    """A worker logs one line when its database goes away and one when it is back, and no more."""
    assert mortal.server is not None
    settings = Settings.load(url=mortal.url, environ={"LEDGERSTONE_ENGINE_RESCUE_SECONDS": "0.1"})
    ledger = Ledger(mortal.url, settings=settings)
    ledger.migrate()
    for queue in ("a", "b", "c"):
        ledger.kinds.add(queue, lambda: None, queue=queue)
    ledger.consumer("order.*", name="mailer")(lambda _tx, _message: None)
    ledger.run(lambda tx: tx.jobs.enqueue("a"))
    worker = ledger.worker()

    with started(worker):
        until(lambda: not any(pump.counters.trouble for pump in worker.pumps))
        mortal.server.kill()
        until(lambda: all(pump.counters.trouble for pump in worker.pumps), what="trouble")
        with pytest.raises(errors.StoreUnavailable):
            ledger.run(lambda tx: tx.jobs.enqueue("a"))
        mortal.server.restart()
        until(lambda: "is back after" in caplog.text, what="the second line")
        until(lambda: not any(pump.counters.trouble for pump in worker.pumps))

    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    shown = ledger.database.url.render_as_string(hide_password=True)
    first, second = [r.getMessage() for r in said if "slow statements" not in r.getMessage()]
    assert first.startswith(f"{shown} is out of reach: ")
    assert second.startswith(f"{shown} is back after ")
    ledger.close()


def test_a_lost_connection_goes_back_quietly(
    ledger: Ledger, mortal: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is found lost when it goes back to the pool leaves no traceback."""
    assert mortal.server is not None
    server = mortal.server
    event.listen(ledger.database.engine, "reset", lambda *_: server.kill(), once=True, insert=True)
    with suppress(errors.StoreUnavailable):
        ledger.run(lambda tx: write(tx, "mine"))
    server.restart()

    assert "Exception during reset" not in caplog.text
    assert [record.name for record in caplog.records if "sqlalchemy" in record.name] == []
    until(lambda: _answers(ledger), what="another connection")
    ledger.close()


def _answers(ledger: Ledger) -> bool:
    try:
        return notes_kept(ledger) == ["mine"]
    except errors.StoreUnavailable:
        return False

"""Handles of RocksDB: used after close, forgotten, from many threads, after a fork; no leaks."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ledgerstone.errors import LedgerstoneError, StoreClosed, WrongProcess
from ledgerstone.signing.rocksdb import BackupFolder, Batch, Database
from ledgerstone.signing.rocksdb.library import load
from ledgerstone.signing.rocksdb.lifetime import Children, Rank
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.sizes import sized
from tests.signing.conftest import FAMILIES
from tests.signing.processes import started

MIB = 1024 * 1024


def test_everything_refuses_after_close(folder: Path, tmp_path: Path) -> None:
    """The database and all that was opened on it say that it is closed; closing again is fine."""
    database = Database(folder, FAMILIES)
    tx = database.transaction()
    tx.put("rows", b"a", b"1")
    scan, snapshot = tx.scan("rows"), database.snapshot()
    backups = BackupFolder(tmp_path / "backups")

    database.close()
    database.close()

    calls: list[Callable[[], object]] = [
        lambda: database.get("rows", b"a"),
        lambda: database.write(Batch()),
        database.transaction,
        database.snapshot,
        database.flush,
        lambda: database.scan("rows"),
        lambda: database.compact("rows"),
        lambda: database.text("rocksdb.stats"),
        lambda: database.checkpoint(tmp_path / "checkpoint"),
        database.file_bytes,
        lambda: tx.get("rows", b"a"),
        lambda: tx.put("rows", b"a", b"1"),
        tx.commit,
        lambda: next(scan),
        lambda: snapshot.get("rows", b"a"),
        lambda: backups.create(database),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
    tx.rollback()
    scan.close()
    snapshot.close()
    backups.close()
    assert database.closed
    with Database(folder, FAMILIES) as again:
        assert again.get("rows", b"a") is None


def test_forgotten_objects_are_destroyed_later(database: Database) -> None:
    """A transaction that nobody ended frees its locks, once another one begins."""
    forgotten = database.transaction()
    forgotten.get_for_update("rows", b"a")
    scans = [forgotten.scan("rows"), database.scan("rows"), database.snapshot()]
    assert len(database.children) == 4

    del forgotten, scans
    gc.collect()
    with database.transaction(lock_timeout_seconds=0.01) as tx:
        assert tx.get_for_update("rows", b"a") is None
        assert len(database.children) == 1
    assert len(database.children) == 0


def test_a_forgotten_database_closes_itself(folder: Path) -> None:
    """The folder can be opened again; a scan keeps its database open."""
    database = Database(folder, FAMILIES)
    scan = database.scan("rows")
    gone = weakref.ref(database)
    del database
    gc.collect()
    assert list(scan) == []

    del scan
    gc.collect()

    assert gone() is None
    Database(folder, FAMILIES).close()


@pytest.mark.torture
def test_a_program_may_end_with_everything_open(folder: Path) -> None:
    """Also while daemon threads use the database: it ends with its own exit code, silently."""
    code = (
        "import sys, threading; from pathlib import Path\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "database = Database(Path(sys.argv[1]), {'rows': FamilyOptions()})\n"
        "began = threading.Barrier(3)\n"
        "def write():\n"
        "    batch = Batch(); batch.put('rows', b'a', b'1'); began.wait()\n"
        "    try:\n"
        "        while True: database.write(batch); database.get('rows', b'a')\n"
        "    except Exception: pass\n"
        "for _ in range(2): threading.Thread(target=write, daemon=True).start()\n"
        "began.wait(); tx = database.transaction(); scan = tx.scan('rows')\n"
        "sys.exit(5)\n"
    )
    for _ in range(sized(2, full=50)):
        ended = subprocess.run(
            [sys.executable, "-c", code, folder],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (5, "", "")


@pytest.mark.torture
def test_closing_waits_for_calls_in_progress(folder: Path) -> None:
    """Threads that use the database while it closes get StoreClosed, and never a dead handle."""
    for _ in range(sized(5, full=100)):
        database = Database(folder, FAMILIES)
        strange: list[BaseException] = []
        began = threading.Barrier(5)

        def use(database: Database, strange: list[BaseException], began: threading.Barrier) -> None:
            began.wait(WAIT_SECONDS_MAX)
            try:
                while True:
                    with database.transaction() as tx:
                        tx.put("rows", b"%d" % random.randrange(10), b"1")  # noqa: S311
                        list(tx.scan("rows"))
                        list(database.scan("rows"))
                        tx.commit()
            except StoreClosed:
                pass
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells it
                strange.append(error)

        threads = [threading.Thread(target=use, args=(database, strange, began)) for _ in range(4)]
        for thread in threads:
            thread.start()
        began.wait(WAIT_SECONDS_MAX)
        database.close()
        for thread in threads:
            thread.join(WAIT_SECONDS_MAX)

        assert strange == []


@pytest.mark.parametrize(
    ("function", "line", "called", "told"),
    [
        ("checked", 1, "print(database.get('rows', b'a'))", "['StoreBusy']"),
        ("__next__", 3, "print(next(scan).value)", "['StoreBusy']"),
        ("destroy_all", 1, "database.close(); print(b'1')", "[]"),
    ],
)
def test_a_signal_handler_that_closes(
    folder: Path, function: str, line: int, called: str, told: str
) -> None:
    """It is told that its thread is in a call, which goes on; a handler may close twice."""
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from ledgerstone.errors import LedgerstoneError\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "database = Database(Path(sys.argv[1]), {'rows': FamilyOptions()})\n"
        "batch = Batch(); batch.put('rows', b'a', b'1'); database.write(batch)\n"
        "scan = database.scan('rows')\n"
        "told = []\n"
        "def close(*_):\n"
        "    try: database.close()\n"
        "    except LedgerstoneError as error: told.append(type(error).__name__)\n"
        "def line(frame, event, _):\n"
        "    if event == 'line' and frame.f_lineno > frame.f_code.co_firstlineno "
        f"+ {line}:\n"
        "        sys.settrace(None); signal.raise_signal(signal.SIGTERM)\n"
        "    return line\n"
        "signal.signal(signal.SIGTERM, close)\n"
        f"sys.settrace(lambda frame, *_: line if frame.f_code.co_name == {function!r} else None)\n"
        f"{called}\n"
        "sys.settrace(None); print(told)\n"
        "try: database.get('rows', b'a')\n"
        "except LedgerstoneError as error: print(type(error).__name__)\n"
        "database.close(); print(database.closed)\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code, folder],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )

    assert (ended.returncode, ended.stdout.splitlines()) == (
        0,
        ["b'1'", told, "StoreClosed", "True"],
    ), ended.stderr


def test_one_transaction_in_many_threads(database: Database) -> None:
    """Calls of several threads on one transaction take turns; all writes are there."""
    tx = database.transaction()

    def write(start: int) -> None:
        for number in range(start, start + 200):
            tx.put("rows", b"%05d" % number, b"1")
            tx.get("rows", b"%05d" % number)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 800, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    tx.commit()

    assert sum(1 for _ in database.scan("rows")) == 800


def test_a_forked_child_is_refused(database: Database, tmp_path: Path) -> None:
    """Every call in it raises, closing does nothing, and it ends by its own exit code."""
    tx = database.transaction()
    tx.put("rows", b"a", b"1")
    scan = database.scan("rows")
    snapshot = database.snapshot()
    # The threads in the background are what a child has not got, and must not wait for.
    database.flush()
    backups = BackupFolder(tmp_path / "backups")

    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                lambda: database.get("rows", b"a"),
                database.transaction,
                tx.commit,
                lambda: next(scan),
                lambda: snapshot.get("rows", b"a"),
                backups.backups,
                lambda: Database(tmp_path / "other", FAMILIES),
                lambda: BackupFolder(tmp_path / "other"),
            ):
                with pytest.raises(WrongProcess):
                    call()
            for close in (tx.rollback, scan.close, snapshot.close, backups.close, database.close):
                close()
            code = 7
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    tx.commit()
    assert database.get("rows", b"a") == b"1"
    backups.close()


def test_a_fork_in_the_middle_of_a_call(database: Database) -> None:
    """A child is refused at once, also where a thread of the parent was inside that transaction."""
    holder, waiting = (database.transaction(lock_timeout_seconds=WAIT_SECONDS_MAX) for _ in "ab")
    holder.get_for_update("rows", b"a")
    thread = threading.Thread(target=waiting.get_for_update, args=("rows", b"a"))
    thread.start()
    until(lambda: thread.ident in database.guard._calling)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(WrongProcess):
                waiting.get("rows", b"a")
            waiting.rollback()
            database.close()
            code = 7
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    holder.rollback()
    thread.join(WAIT_SECONDS_MAX)

    assert os.waitstatus_to_exitcode(status) == 7
    waiting.rollback()


def test_a_forked_child_ends(folder: Path) -> None:
    """One that ends in the ordinary way does not wait for RocksDB's threads, and keeps its words.

    They are threads of the parent; the library's exit handler would join them for ever.
    """
    code = (
        "import ctypes, os, sys; from pathlib import Path\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "database = Database(Path(sys.argv[1]), {'rows': FamilyOptions()})\n"
        "batch = Batch(); batch.put('rows', b'a', b'1'); database.write(batch); database.flush()\n"
        "database.compact('rows')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print('said by Python'); ctypes.CDLL(None).printf(b'said by C\\n'); sys.exit(7)\n"
        "_, status = os.waitpid(child, 0)\n"
        "sys.exit(os.waitstatus_to_exitcode(status) + database.get('rows', b'a')[0])\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code, folder],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )

    assert ended.stderr == ""
    assert ended.returncode == 7 + ord("1")
    assert sorted(ended.stdout.splitlines()) == ["said by C", "said by Python"]


def test_a_child_of_a_parent_without_a_database(folder: Path) -> None:
    """It may open one, although the module was imported before the fork."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with Database(Path(sys.argv[1]), {}) as database: database.flush()\n"
        "    sys.exit(7)\n"
        "_, status = os.waitpid(child, 0)\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code, folder], timeout=WAIT_SECONDS_MAX, check=False
    )

    assert ended.returncode == 7


@pytest.mark.torture
def test_an_interrupted_call_leaves_nothing_behind(folder: Path) -> None:
    """A signal handler that raises, in the middle of anything, never crashes nor blocks closing."""
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "class Rung(Exception): pass\n"
        "armed = []\n"
        "def ring(*_):\n"
        "    if armed: armed.clear(); raise Rung\n"
        "database = Database(Path(sys.argv[1]), {'sums': FamilyOptions(appends=True)})\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "for number in range(int(sys.argv[2])):\n"
        "    try:\n"
        "        armed.append(number)\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.0003 + number % 7 * 0.0002)\n"
        "        for _ in range(100):\n"
        "            with database.transaction() as tx:\n"
        "                tx.merge('sums', b'a', b'1'); list(tx.scan('sums'))\n"
        "                if len(tx.get('sums', b'a')) > 500: tx.delete('sums', b'a')\n"
        "                tx.commit()\n"
        "        armed.clear()\n"
        "    except Rung: pass\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "database.close(); print('closed')\n"
    )

    # Python only prints an error of a finalizer; the process must go on and close.
    for _ in range(sized(1, full=50)):
        closes_itself(code, folder, "100")


@pytest.mark.slow
@pytest.mark.torture
def test_processes_that_open_at_once(folder: Path) -> None:
    """Each opens the database, or is told that it is open; no file of one fails another."""
    code = (
        "import sys; from pathlib import Path\n"
        "from ledgerstone.errors import StoreLocked\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "folder, number, rounds = Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])\n"
        "done = 0\n"
        "while done < rounds:\n"
        "    try: database = Database(folder, {'rows': FamilyOptions()})\n"
        "    except StoreLocked: continue\n"
        "    batch = Batch(); batch.put('rows', number + b'-%d' % done, b'1')\n"
        "    database.write(batch); database.close(); done += 1\n"
    )
    folder.mkdir()
    rounds = sized(15, full=50)

    with ExitStack() as stack:
        codes = [["-c", code, str(folder), str(number), str(rounds)] for number in range(4)]
        children = [stack.enter_context(started(each)) for each in codes]
        ended = [child.wait(WAIT_SECONDS_MAX) for child in children]

    assert ended == [0] * 4
    with Database(folder, FAMILIES) as database:
        assert sum(1 for _ in database.scan("rows")) == 4 * rounds
    old_logs = [path for path in folder.iterdir() if path.name.startswith("LOG")]
    assert len(old_logs) <= 5


def test_threads_with_small_stacks(folder: Path) -> None:
    """A database is opened, written, read and closed in a thread of 32 KiB; errors come through."""
    code = (
        "import sys, threading; from pathlib import Path\n"
        "from ledgerstone.errors import StoreLocked\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "def use():\n"
        "    folder = Path(sys.argv[1])\n"
        "    with Database(folder, {'rows': FamilyOptions()}) as database:\n"
        "        with database.transaction() as tx: tx.put('rows', b'a', b'1'); tx.commit()\n"
        "        with Database(folder, {}, read_only=True) as reader: list(reader.scan('rows'))\n"
        "        try: Database(folder, {})\n"
        "        except StoreLocked: print('used')\n"
        "threading.stack_size(32768)\n"
        "thread = threading.Thread(target=use); thread.start(); thread.join()\n"
    )

    with started(["-c", code, str(folder)]) as child:
        said, _ = child.communicate(timeout=WAIT_SECONDS_MAX)

    assert (child.returncode, said) == (0, b"used\n")


def test_a_forked_child_keeps_no_lock(folder: Path) -> None:
    """A database that the parent closes can be opened again, while its child lives on."""
    database = Database(folder, FAMILIES)
    (hold, let_go), (heard, say) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        os.write(say, b"forked")
        os.read(hold, 1)
        os._exit(0)
    os.read(heard, 1)

    database.close()
    Database(folder, FAMILIES).close()

    for pipe in (hold, let_go, heard, say):
        os.close(pipe)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
@pytest.mark.torture
def test_an_interrupted_opening_or_closing(folder: Path) -> None:
    """A signal handler that raises while a database opens or closes leaves it closable."""
    code = (
        "import gc, signal, sys; from pathlib import Path\n"
        "from ledgerstone.signing.rocksdb import *\n"
        "class Rung(Exception): pass\n"
        "armed = []\n"
        "def ring(*_):\n"
        "    if armed: armed.clear(); raise Rung\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "def use(number):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.0005 + number % 60 * 0.0002)\n"
        "    with Database(Path(sys.argv[1]), {'rows': FamilyOptions()}) as database:\n"
        "        batch = Batch(); batch.put('rows', b'a', b'1'); database.write(batch)\n"
        "        snapshot = database.snapshot(); list(snapshot.scan('rows'))\n"
        "for number in range(int(sys.argv[2])):\n"
        "    try: armed.append(number); use(number); armed.clear()\n"
        "    except Rung: pass\n"
        "    gc.collect()\n"
        "Database(Path(sys.argv[1]), {}).close(); print('closed')\n"
    )

    for _ in range(sized(1, full=50)):
        closes_itself(code, folder, "60")


def closes_itself(code: str, *arguments: object) -> None:
    """The code runs to its end, as a process of its own, and says that it has closed all."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr


@pytest.mark.slow
@pytest.mark.torture
def test_nothing_leaks(tmp_path: Path) -> None:
    """Opening, writing, reading, failing and closing again and again does not grow the process."""
    process = psutil.Process()

    def cycle(number: int) -> None:
        folder = tmp_path / str(number % 3)
        with Database(folder, FAMILIES) as database:
            for key in range(50):
                with database.transaction() as tx:
                    tx.get_for_update("rows", b"%d" % key)
                    tx.put("rows", b"%d" % key, bytes(1000))
                    tx.commit()
            with database.snapshot() as snapshot:
                assert sum(1 for _ in snapshot.scan("rows")) == 50
            for _ in range(50):
                with pytest.raises(LedgerstoneError):
                    database.text("rocksdb.nothing")
                database.text("rocksdb.stats")
                database.file_bytes()
                database.get("rows", b"1")
            database.transaction().put("rows", b"left open", bytes(1000))
            assert len(database.children) <= 1

    for number in range(10):
        cycle(number)
    gc.collect()
    before, threads = process.memory_info().rss, process.num_threads()
    files = process.num_fds()
    cycles = sized(20, full=500)
    for number in range(cycles):
        cycle(number)
    gc.collect()

    assert process.memory_info().rss - before < 24 * MIB
    assert process.num_fds() <= files
    assert process.num_threads() <= threads + 2


def test_a_lock_wait_ends_when_the_database_closes(folder: Path) -> None:
    """Closing waits for the lock timeout of a call in progress, and then closes."""
    database = Database(folder, FAMILIES)
    holder = database.transaction()
    holder.get_for_update("rows", b"a")
    raised: list[LedgerstoneError] = []

    def wait() -> None:
        tx = database.transaction(lock_timeout_seconds=0.2)
        try:
            tx.get_for_update("rows", b"a")
        except LedgerstoneError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: thread.ident in database.guard._calling or raised)
    database.close()
    thread.join(WAIT_SECONDS_MAX)

    assert [error.code for error in raised] == ["lock_timeout"]
    assert database.closed


def test_the_order_of_destruction() -> None:
    """A reader is destroyed before its source: iterators, then transactions, then snapshots."""
    destroyed: list[int] = []
    children = Children(load())
    for rank in (Rank.SNAPSHOT, Rank.TRANSACTION, Rank.ITERATOR, Rank.TRANSACTION):
        children.add(rank, destroyed.append).slot.append(rank)

    children.destroy_all()

    assert destroyed == [Rank.ITERATOR, Rank.TRANSACTION, Rank.TRANSACTION, Rank.SNAPSHOT]
    assert len(children) == 0

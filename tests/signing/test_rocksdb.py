"""The binding of RocksDB: reads, writes, transactions, scans, snapshots, backups, properties."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ledgerstone.errors import (
    BadInput,
    DiskFailed,
    LedgerstoneError,
    LibraryMissing,
    LockTimeout,
    NotAllowedNow,
    NotFound,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreLocked,
    Unsupported,
)
from ledgerstone.signing.rocksdb import (
    BackupFolder,
    Batch,
    Database,
    FamilyOptions,
    exists,
    family_names,
    prefix_end,
)
from ledgerstone.signing.rocksdb.library import _QUICK, _WAITING, load
from ledgerstone.signing.rocksdb.statuses import error_of_status
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.signing.conftest import FAMILIES


def put(database: Database, key: bytes, value: bytes, family: str = "rows") -> None:
    batch = Batch()
    batch.put(family, key, value)
    database.write(batch)


def test_a_batch_is_written_as_one(database: Database) -> None:
    """All writes of a batch are there, in the families and the order that it names."""
    batch = Batch()
    batch.put("rows", b"a", b"1")
    batch.put("rows", b"b", b"2")
    batch.delete("rows", b"a")
    batch.merge("sums", b"s", b"x")
    batch.merge("sums", b"s", b"y")

    database.write(batch)

    assert len(batch) == 5
    assert database.get("rows", b"a") is None
    assert database.get("rows", b"b") == b"2"
    assert database.get("sums", b"s") == b"xy"


def test_keys_and_values_are_any_bytes(database: Database) -> None:
    """Empty values, zero bytes and long values come back as they were; so does an empty key."""
    values = {b"\0\0": b"\0a\0", b"empty": b"", b"long": b"v" * 3_000_000, b"": b"no key"}

    for key, value in values.items():
        put(database, key, value)

    assert {key: database.get("rows", key) for key in values} == values


def test_a_transaction_commits_or_is_undone(database: Database) -> None:
    """It sees its own writes, nobody else does before the commit, and without one they are gone."""
    with database.transaction() as kept:
        kept.put("rows", b"a", b"1")
        kept.merge("sums", b"s", b"x")
        seen = kept.get("rows", b"a"), database.get("rows", b"a")
        kept.commit()
    with database.transaction() as undone:
        undone.delete("rows", b"a")

    assert seen == (b"1", None)
    assert database.get("rows", b"a") == b"1"
    assert database.get("sums", b"s") == b"x"


def test_a_transaction_that_ended_refuses(database: Database) -> None:
    """After commit or rollback every call says that it has ended; a second rollback is fine."""
    ended = database.transaction()
    ended.put("rows", b"a", b"1")
    ended.commit()
    ended.rollback()

    for call in (
        lambda: ended.get("rows", b"a"),
        lambda: ended.put("rows", b"a", b"2"),
        lambda: ended.scan("rows"),
        ended.commit,
    ):
        with pytest.raises(NotAllowedNow, match="has ended"):
            call()


def test_a_key_read_for_update_is_locked(database: Database) -> None:
    """Another transaction that wants the key gets LockTimeout, also where there is no row yet."""
    with database.transaction() as first, database.transaction(lock_timeout_seconds=0.01) as second:
        assert first.get_for_update("rows", b"a") is None

        with pytest.raises(LockTimeout):
            second.get_for_update("rows", b"a")
        with pytest.raises(LockTimeout):
            second.put("rows", b"a", b"2")
        second.put("rows", b"b", b"2")
        second.commit()

    assert database.get("rows", b"b") == b"2"


def test_the_lock_timeout_is_in_seconds(folder: Path) -> None:
    """A wait for a key does not end before its timeout."""
    with (
        Database(folder, FAMILIES, lock_timeout_seconds=0.2) as database,
        database.transaction() as holder,
        database.transaction() as other,
    ):
        holder.get_for_update("rows", b"a")
        began = time.monotonic()

        with pytest.raises(LockTimeout):
            other.get_for_update("rows", b"a")

        # A slow machine only makes it longer.
        assert time.monotonic() - began >= 0.1


def test_a_commit_ends_the_scans_of_its_transaction(database: Database) -> None:
    """Their rows are not read from a transaction that is gone."""
    with database.transaction() as tx:
        tx.put("rows", b"a", b"1")
        tx.put("rows", b"b", b"2")
        scan = tx.scan("rows")
        assert next(scan).key == b"a"

        tx.commit()

        with pytest.raises(StoreClosed):
            next(scan)


def test_a_lock_that_is_freed_lets_the_next_one_on(database: Database) -> None:
    """A wait for a key ends with its holder, and the waiter reads what the holder wrote."""
    holder = database.transaction()
    holder.get_for_update("rows", b"a")
    found: list[bytes | None] = []

    def wait() -> None:
        with database.transaction(lock_timeout_seconds=WAIT_SECONDS_MAX) as waiting:
            found.append(waiting.get_for_update("rows", b"a"))

    thread = threading.Thread(target=wait)
    thread.start()
    holder.put("rows", b"a", b"1")
    holder.commit()
    thread.join(WAIT_SECONDS_MAX)

    assert found == [b"1"]


def test_a_deadlock_is_told_at_once(database: Database) -> None:
    """Of two transactions that wait for each other one gets StoreBusy, long before the timeout."""
    busy: list[LedgerstoneError] = []
    both = threading.Barrier(2)

    def lock(keys: tuple[bytes, bytes]) -> None:
        with database.transaction(lock_timeout_seconds=WAIT_SECONDS_MAX) as tx:
            tx.get_for_update("rows", keys[0])
            both.wait(WAIT_SECONDS_MAX)
            try:
                tx.get_for_update("rows", keys[1])
            except StoreBusy as error:
                busy.append(error)

    orders = ((b"a", b"b"), (b"b", b"a"))
    threads = [threading.Thread(target=lock, args=(keys,)) for keys in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)

    assert len(busy) == 1
    assert not isinstance(busy[0], LockTimeout)
    assert busy[0].retryable


def test_a_snapshot_stays(database: Database) -> None:
    """Its reads and scans are those of its moment; released, it refuses."""
    put(database, b"a", b"1")
    with database.snapshot() as then:
        put(database, b"a", b"2")
        put(database, b"b", b"2")

        assert then.get("rows", b"a") == b"1"
        assert list(then.scan("rows")) == [(b"a", b"1")]

    with pytest.raises(NotAllowedNow):
        then.get("rows", b"a")
    then.close()


def test_scans_keep_to_their_bounds(database: Database) -> None:
    """From start to before end, in the order of the bytes; a prefix is a range."""
    for key in (b"a", b"a:1", b"a:2", b"a;", b"b", b"\xff", b"\xff\xff1"):
        put(database, key, key.upper())

    assert [row.key for row in database.scan_prefix("rows", b"a:")] == [b"a:1", b"a:2"]
    assert [row.key for row in database.scan("rows", start=b"a;", end=b"\xff")] == [b"a;", b"b"]
    assert [row.key for row in database.scan_prefix("rows", b"\xff")] == [b"\xff", b"\xff\xff1"]
    assert [row.value for row in database.scan("rows", end=b"a:1")] == [b"A"]
    assert next(database.scan("rows", start=b"c")).key == b"\xff"


def test_the_end_of_a_prefix() -> None:
    """It is the next larger byte string that is no continuation."""
    assert prefix_end(b"ab") == b"ac"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\xff") is None
    assert prefix_end(b"") is None


def test_a_scan_that_ended_stays_ended(database: Database) -> None:
    """Used up it yields nothing more; closed early it refuses; closing twice is fine."""
    put(database, b"a", b"1")
    used = database.scan("rows")
    closed = database.scan("rows")

    assert [list(used), list(used)] == [[(b"a", b"1")], []]
    used.close()
    closed.close()
    closed.close()
    with pytest.raises(StoreClosed):
        next(closed)


def test_a_scan_of_a_transaction_sees_its_writes(database: Database) -> None:
    """And ends with it."""
    put(database, b"a", b"1")
    with database.transaction() as tx:
        tx.put("rows", b"b", b"2")
        tx.delete("rows", b"a")
        seen = list(tx.scan("rows"))
        left = tx.scan("rows")

    assert seen == [(b"b", b"2")]
    with pytest.raises(StoreClosed):
        next(left)


def test_a_scan_of_a_transaction_keeps_to_its_bound(database: Database) -> None:
    """Also where the transaction wrote behind the bound, which RocksDB itself does not look at."""
    put(database, b"a:1", b"1")
    with database.transaction() as tx:
        for key in (b"c", b"a:2", b"b", b"a:3"):
            tx.put("rows", key, b"1")
        found = [row.key for row in tx.scan("rows", start=b"a:", end=b"a;")]

    assert found == [b"a:1", b"a:2", b"a:3"]


def test_merges_are_kept_through_flush_and_compaction(database: Database) -> None:
    """Operands stay in order, whether they are in memory, in files, or compacted."""
    for number in range(50):
        batch = Batch()
        batch.merge("sums", b"s", b"%02d" % number)
        database.write(batch)
        if number % 10 == 0:
            database.flush()
    before = database.get("sums", b"s")
    database.compact("sums")

    assert before == b"".join(b"%02d" % number for number in range(50))
    assert database.get("sums", b"s") == before


def test_what_was_written_is_there_after_reopening(folder: Path) -> None:
    """Also families that the caller does not name, which are opened as they are."""
    with Database(folder, {**FAMILIES, "other": FamilyOptions()}) as first:
        put(first, b"a", b"1")
        put(first, b"o", b"1", family="other")

    with Database(folder, FAMILIES) as again:
        assert again.get("rows", b"a") == b"1"
        assert again.get("other", b"o") == b"1"
    assert sorted(family_names(folder)) == ["default", "other", "rows", "sums"]


def test_missing_things_are_named(folder: Path, database: Database) -> None:
    """A family, a property and a database that are not there."""
    with pytest.raises(BadInput, match="no column family 'nothing'"):
        database.get("nothing", b"a")
    with pytest.raises(BadInput, match="no column family"), database.transaction() as tx:
        tx.put("nothing", b"a", b"")
    batch = Batch()
    batch.put("nothing", b"a", b"")
    with pytest.raises(BadInput, match="no column family"):
        database.write(batch)
    with pytest.raises(BadInput, match="no property"):
        database.text("rocksdb.nothing")
    with pytest.raises(BadInput, match="no numeric property"):
        database.number("rocksdb.nothing")
    with pytest.raises(NotFound, match="no database in"):
        Database(folder.parent / "empty", {}, read_only=True)
    assert exists(folder)
    assert not exists(folder.parent / "empty")


def test_properties_and_sizes(database: Database) -> None:
    """Numbers, texts, file sizes by family and sizes of ranges are answered."""
    for number in range(100):
        put(database, b"%04d" % number, bytes([number]) * 1000)
    database.flush()

    sizes = database.file_bytes()

    assert database.number("rocksdb.estimate-num-keys", "rows") == 100
    assert "Compaction Stats" in database.text("rocksdb.stats")
    assert sizes["rows"] > 0
    assert sizes["sums"] == 0


def test_a_compaction_frees_what_was_removed(database: Database) -> None:
    """After deleting and compacting the files are smaller."""
    batch = Batch()
    for number in range(200):
        batch.put("rows", b"%04d" % number, bytes(range(256)) * 20)
    database.write(batch)
    database.flush()
    before = database.file_bytes()["rows"]
    gone = Batch()
    for number in range(200):
        gone.delete("rows", b"%04d" % number)
    database.write(gone)
    database.flush()

    database.compact("rows")

    assert database.file_bytes()["rows"] < before


def test_a_checkpoint_is_a_database_of_its_own(database: Database, tmp_path: Path) -> None:
    """It holds everything of its moment, and nothing later; an existing target is refused."""
    put(database, b"a", b"1")
    database.checkpoint(tmp_path / "checkpoint")
    put(database, b"b", b"2")

    with Database(tmp_path / "checkpoint", {}, read_only=True) as copy:
        assert copy.get("rows", b"a") == b"1"
        assert copy.get("rows", b"b") is None
    with pytest.raises(LedgerstoneError, match="checkpoint"):
        database.checkpoint(tmp_path / "checkpoint")


def test_backups_are_kept_verified_and_restored(database: Database, tmp_path: Path) -> None:
    """Each backup brings its own moment back; old ones can be purged; a damaged one is refused."""
    with BackupFolder(tmp_path / "backups") as backups:
        for number in (1, 2, 3):
            put(database, b"a", b"%d" % number)
            made = backups.create(database)
            assert made.number == number
            assert made.files > 0
        backups.verify(2)
        backups.restore(2, tmp_path / "second")
        backups.purge(1)
        left = backups.backups()
        with pytest.raises(LedgerstoneError):
            backups.verify(1)
        for file in (tmp_path / "backups" / "shared_checksum").iterdir():
            file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(StoreCorrupt):
            backups.verify(3)
        with pytest.raises(BadInput):
            backups.purge(0)
    backups.close()

    with Database(tmp_path / "second", FAMILIES) as restored:
        assert restored.get("rows", b"a") == b"2"
    assert [backup.number for backup in left] == [3]
    with pytest.raises(StoreClosed):
        backups.backups()


def test_a_restore_compares_checksums(database: Database, tmp_path: Path) -> None:
    """A byte that was flipped in a backup is reported, although the size is the same."""
    put(database, b"a", b"1" * 1000)
    with BackupFolder(tmp_path / "backups") as backups:
        backups.create(database)
        (file,) = (tmp_path / "backups" / "shared_checksum").iterdir()
        damaged = bytearray(file.read_bytes())
        damaged[100] ^= 1
        file.write_bytes(damaged)

        with pytest.raises(StoreCorrupt):
            backups.restore(1, tmp_path / "restored")


def test_reading_only_writes_nothing(folder: Path) -> None:
    """A database that is open elsewhere can be read, and every write is refused."""
    with Database(folder, FAMILIES) as writer:
        put(writer, b"a", b"1")
        with Database(folder, {}, read_only=True) as reader:
            assert reader.get("rows", b"a") == b"1"
            for call in (reader.transaction, reader.snapshot, reader.flush):
                with pytest.raises(NotAllowedNow, match="reading only"):
                    call()


def test_a_second_opener_is_told_the_folder(folder: Path, database: Database) -> None:
    """In this process and in another one; the first goes on."""
    with pytest.raises(StoreLocked, match=str(folder)):
        Database(folder, FAMILIES)
    code = (
        "import sys; from pathlib import Path; from ledgerstone.signing.rocksdb import Database\n"
        "from ledgerstone.errors import StoreLocked\n"
        "try: Database(Path(sys.argv[1]), {})\n"
        "except StoreLocked as error: print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, folder],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=True,
    )

    assert str(folder) in ended.stdout
    put(database, b"a", b"1")


def test_a_missing_library_is_named_with_its_package() -> None:
    """And what to do on another system."""
    with pytest.raises(LibraryMissing, match=r"librocksdb7\.8.*signing\.rocksdb_library"):
        load("/nowhere/librocksdb.so")


def test_another_library_is_refused() -> None:
    """A library without the functions that are needed is told by its file."""
    with pytest.raises(Unsupported, match=r"libc\.so\.6 has no function rocksdb_"):
        load("libc.so.6")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Corruption: block checksum mismatch", StoreCorrupt),
        ("Corruption: unsupported format_version: 6", Unsupported),
        ("IO error: No space left on device: While appending to file", StoreFull),
        ("IO error: While lock file: /a/LOCK: Resource temporarily unavailable", StoreLocked),
        ("IO error: lock hold by current process: /a/LOCK: No locks available", StoreLocked),
        ("IO error: While open a file for appending: /a/b: Permission denied", StoreDenied),
        ("IO error: While fsync: /a/b: Input/output error", DiskFailed),
        ("Resource busy: ", StoreBusy),
        ("Resource busy: Deadlock", StoreBusy),
        ("Operation timed out: Timeout waiting to lock key", LockTimeout),
        ("Operation aborted: ", StoreBusy),
        ("Operation expired: ", StoreBusy),
        ("Operation failed. Try again.: ", StoreBusy),
        ("Invalid argument: something", BadInput),
        ("NotFound: ", NotFound),
        ("Not implemented: ", Unsupported),
        ("Shutdown in progress: ", StoreClosed),
        ("Something new: ", StoreError),
    ],
)
def test_every_status_has_its_error(text: str, error: type[LedgerstoneError]) -> None:
    """A status text becomes the error of its kind, and the error keeps the text."""
    made = error_of_status(text, "here")

    assert type(made) is error
    assert text in str(made)
    assert "here" in str(made)


def test_a_folder_without_permission_is_told(folder: Path) -> None:
    """An error of the system becomes one of the tree that names the folder."""
    folder.write_text("a file where the folder should be")

    with pytest.raises(StoreError, match=str(folder)):
        Database(folder, FAMILIES)


def test_what_may_wait_releases_the_gil() -> None:
    """No function that may wait for the disk or a lock is called with the GIL held."""
    python_api = 4
    loaded = load()

    assert all(not getattr(loaded, name)._flags_ & python_api for name in _WAITING)
    assert "transaction_commit" in _WAITING
    assert not set(_WAITING) & set(_QUICK)


def test_a_waiting_call_lets_other_threads_run(database: Database) -> None:
    """While one thread waits inside RocksDB, another one goes on and ends its wait."""
    holder = database.transaction()
    holder.get_for_update("rows", b"a")

    def wait() -> None:
        with database.transaction(lock_timeout_seconds=WAIT_SECONDS_MAX) as waiting:
            waiting.get_for_update("rows", b"a")

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: thread.ident in database.guard._calling)
    holder.rollback()
    thread.join(WAIT_SECONDS_MAX)

    assert not thread.is_alive()

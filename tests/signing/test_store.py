"""The store of signing: lookup, inserts, updates, pages, volumes, migration, races."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ledgerstone.errors import (
    BadInput,
    KeyConflict,
    LockTimeout,
    StoreBusy,
    StoreCorrupt,
    StoreLocked,
    TooLarge,
)
from ledgerstone.settings import SigningSettings
from ledgerstone.signing.families import OPTIONS, family_of
from ledgerstone.signing.folder import migration_wanted, store_folder
from ledgerstone.signing.keys import KINDS, Family
from ledgerstone.signing.rocksdb import Batch, Database, family_names
from ledgerstone.signing.store import Page, Store, StoreTransaction, View
from ledgerstone.signing.values import Stored
from ledgerstone.signing.volume import VOLUME_MAX, volume_of, volume_value
from tests.harness.sizes import sized
from tests.signing.original import FAMILIES
from tests.signing.racing import THREADS, race

DAY = b"vol:" + bytes(8)


def pages(
    reader: Store | View | StoreTransaction,
    family: Family,
    prefix: bytes = b"",
    rows_max: int = 1000,
) -> Iterator[Page]:
    """All pages with a prefix, one after the other; no iterator stays open between two."""
    after: bytes | None = None
    while True:
        page = reader.page(family, prefix, after=after, rows_max=rows_max)
        yield page
        after = page.after
        if after is None:
            return


def test_the_folder_is_looked_up() -> None:
    """In the setting, then in the environment, then in the working directory."""
    set_there = SigningSettings(data_dir="/set")

    assert store_folder(set_there, {"KASPA_DATA_DIR": "/e"}) == Path("/set/threshold-signing")
    assert store_folder(SigningSettings(), {"KASPA_DATA_DIR": "/e"}) == Path("/e/threshold-signing")
    assert store_folder(SigningSettings(), {}) == Path(".igra/threshold-signing")


@pytest.mark.parametrize(
    ("setting", "variable", "wanted"),
    [
        (None, None, False),
        (None, "1", True),
        (None, "TRUE", True),
        (None, "false", False),
        (None, "yes please", False),
        (True, None, True),
        (False, "true", False),
    ],
)
def test_the_switch_of_the_migration(
    setting: bool | None, variable: str | None, *, wanted: bool
) -> None:
    """The setting decides, and where it is open the documented variable."""
    environ = {} if variable is None else {"KASPA_IGRA_ENABLE_MIGRATIONS": variable}

    assert migration_wanted(SigningSettings(migrate=setting), environ) is wanted


def test_opening_makes_the_ten_families(folder: Path) -> None:
    """They have the documented names, and the folder is its owner's only."""
    Store(folder).close()

    assert sorted(family_names(folder)) == sorted(FAMILIES)
    assert set(OPTIONS) == set(Family)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_database_with_the_default_family_only_is_opened(folder: Path) -> None:
    """As the original left it before it had families."""
    with Database(folder, {}) as old:
        batch = Batch()
        batch.put("default", b"cfg:app", b"{}")
        old.write(batch)

    with Store(folder) as store:
        assert store.get(Family.DEFAULT, b"cfg:app") == b"{}"
        assert store.get(Family.EVENT, b"evt:a") is None


def test_open_looks_up_and_migrates(tmp_path: Path) -> None:
    """By settings alone."""
    folder = tmp_path / "threshold-signing"
    with Store(folder) as store:
        batch = Batch()
        batch.put(Family.DEFAULT, b"evt:a", b"1")
        store.database.write(batch)

    with Store.open(SigningSettings(data_dir=str(tmp_path), migrate=True)) as store:
        assert store.folder == folder
        assert store.get(Family.EVENT, b"evt:a") == b"1"
    with pytest.raises(StoreLocked, match=str(folder)), Store(folder):
        Store.open(SigningSettings(data_dir=str(tmp_path)))


def test_reading_does_not_migrate(tmp_path: Path) -> None:
    """A store that is opened for reading only is read as it is, whatever the switch says."""
    settings = SigningSettings(data_dir=str(tmp_path), migrate=True)
    with Store.open(settings) as store:
        batch = Batch()
        batch.put(Family.DEFAULT, b"evt:a", b"1")
        store.database.write(batch)

    with Store.open(settings, read_only=True) as store:
        assert store.get(Family.DEFAULT, b"evt:a") == b"1"


def test_insert_if_absent(store: Store) -> None:
    """New once, the same afterwards, and another value is a conflict that changes nothing."""
    assert store.insert(Family.EVENT, b"evt:a", b"1") is Stored.NEW
    assert store.insert(Family.EVENT, b"evt:a", b"1") is Stored.SAME
    with pytest.raises(KeyConflict):
        store.insert(Family.EVENT, b"evt:a", b"2")
    assert store.get(Family.EVENT, b"evt:a") == b"1"
    assert store.get(Family.REQUEST, b"evt:a") is None


def test_a_block_is_all_or_nothing(store: Store) -> None:
    """An exception undoes every family."""
    with pytest.raises(RuntimeError), store.transaction() as tx:
        tx.insert(Family.EVENT, b"evt:a", b"1")
        tx.put(Family.REQUEST, b"req:a", b"1")
        tx.add_volume(DAY, 5)
        raise RuntimeError

    with store.transaction() as tx:
        tx.insert(Family.EVENT, b"evt:b", b"1")
        tx.add_volume(DAY, 7)
        assert tx.volume(DAY) == 7
        tx.delete(Family.EVENT, b"evt:a")

    assert store.get(Family.EVENT, b"evt:a") is None
    assert store.get(Family.REQUEST, b"req:a") is None
    assert store.get(Family.EVENT, b"evt:b") == b"1"
    assert store.volume(DAY) == 7


def test_bounds_are_refused(store: Store) -> None:
    """Keys, values, pages and cursors out of bounds, with nothing written."""
    small = Store(store.folder.parent / "small", SigningSettings(value_bytes_max=1024))
    with small, small.transaction() as tx:
        with pytest.raises(TooLarge, match="value_bytes_max"):
            tx.put(Family.EVENT, b"evt:a", bytes(1025))
        with pytest.raises(TooLarge):
            tx.insert(Family.EVENT, b"evt:a", bytes(1025))
        for key in (b"", bytes(4097)):
            with pytest.raises(BadInput):
                tx.put(Family.EVENT, key, b"")
        for rows_max in (0, 10_001):
            with pytest.raises(BadInput):
                tx.page(Family.EVENT, rows_max=rows_max)
        with pytest.raises(BadInput):
            tx.page(Family.EVENT, b"evt:", after=b"req:")
        assert tx.page(Family.EVENT).rows == []


def test_a_transaction_is_bounded(store: Store) -> None:
    """One that writes too much is refused, and nothing of it is stored."""
    value = bytes(16_000_000)

    with pytest.raises(TooLarge, match="several steps"), store.transaction() as tx:
        for number in range(17):
            tx.put(Family.PROPOSAL, b"proposal:%d" % number, value)

    assert store.page(Family.PROPOSAL).rows == []


@pytest.mark.parametrize("reader", ["store", "view", "transaction"])
def test_pages(store: Store, reader: str) -> None:
    """Rows of a prefix come in bounded pages, complete and in order, from whatever is read."""
    with store.transaction() as tx:
        for number in range(25):
            tx.put(Family.SIGNER_ACK, b"req_ack:a:%02d" % number, b"%d" % number)
        tx.put(Family.SIGNER_ACK, b"req_ack:ab:00", b"of another request")

    def check(source: Store | View | StoreTransaction) -> None:
        found = list(pages(source, Family.SIGNER_ACK, b"req_ack:a:", rows_max=10))
        assert [len(page.rows) for page in found] == [10, 10, 5]
        keys = [row.key for page in found for row in page.rows]
        assert keys == [b"req_ack:a:%02d" % number for number in range(25)]

    if reader == "store":
        check(store)
    elif reader == "view":
        with store.view() as view:
            store.delete_prefix(Family.SIGNER_ACK, b"req_ack:a:")
            check(view)
    else:
        with store.transaction() as tx:
            check(tx)


def test_a_page_is_bounded_in_bytes(store: Store) -> None:
    """Large values end a page before its rows do."""
    with store.transaction() as tx:
        for number in range(5):
            tx.put(Family.PROPOSAL, b"proposal:%d" % number, bytes(9_000_000))

    assert [len(page.rows) for page in pages(store, Family.PROPOSAL)] == [2, 2, 1]


def test_a_view_is_of_one_moment(store: Store) -> None:
    """Its reads, pages and volumes do not change."""
    store.insert(Family.EVENT, b"evt:a", b"1")
    store.add_volume(DAY, 1)
    with store.view() as view:
        store.insert(Family.EVENT, b"evt:b", b"1")
        store.add_volume(DAY, 1)

        assert view.get(Family.EVENT, b"evt:b") is None
        assert len(view.page(Family.EVENT).rows) == 1
        assert view.volume(DAY) == 1
    assert store.volume(DAY) == 2


def test_prefixes_are_deleted_in_bounded_steps(store: Store) -> None:
    """So many rows at a time; zero says that none is left."""
    with store.transaction() as tx:
        for number in range(25):
            tx.put(Family.SEEN, b"seen:a:%02d" % number, b"")
        tx.put(Family.SEEN, b"seen:b", b"")

    steps = [store.delete_prefix(Family.SEEN, b"seen:a:", rows_max=10) for _ in range(4)]

    assert steps == [10, 10, 5, 0]
    assert [row.key for row in store.page(Family.SEEN).rows] == [b"seen:b"]


def test_volumes_saturate(store: Store) -> None:
    """They stop at the largest number, also through reopening, flush and compaction."""
    assert store.volume(DAY) == 0
    assert store.add_volume(DAY, VOLUME_MAX - 1) == VOLUME_MAX - 1
    assert store.add_volume(DAY, 9) == VOLUME_MAX
    store.database.flush()
    store.database.compact(Family.VOLUME)

    assert store.volume(DAY) == VOLUME_MAX
    assert store.get(Family.VOLUME, DAY) == b"\xff" * 8
    for amount in (-1, VOLUME_MAX + 1):
        with pytest.raises(BadInput):
            store.add_volume(DAY, amount)


def test_operands_of_the_original_are_added_up(folder: Path) -> None:
    """A volume that was merged and never read by the original is right, whatever RocksDB did."""
    with Store(folder) as store:
        for number in (3, 4, VOLUME_MAX):
            batch = Batch()
            batch.merge(Family.VOLUME, b"vol:%d" % (number % 2), number.to_bytes(8, "big"))
            store.database.write(batch)
        assert store.volume(b"vol:0") == 4
        assert store.volume(b"vol:1") == VOLUME_MAX
    with Store(folder) as store:
        store.database.flush()
        store.database.compact(Family.VOLUME)
        assert store.add_volume(b"vol:0", 1) == 5
        assert store.get(Family.VOLUME, b"vol:0") == (5).to_bytes(8, "big")
        assert store.volume(b"vol:1") == VOLUME_MAX


@pytest.mark.parametrize("damaged", [b"", b"1234567", b"123456789"])
def test_a_malformed_volume_is_reported_and_kept(store: Store, damaged: bytes) -> None:
    """Neither a read nor a write takes it for a number, and nothing of it is dropped."""
    batch = Batch()
    batch.put(Family.VOLUME, DAY, damaged)
    store.database.write(batch)

    with pytest.raises(StoreCorrupt, match="bytes"):
        store.volume(DAY)
    with pytest.raises(StoreCorrupt, match="bytes"):
        store.add_volume(DAY, 1)
    store.database.flush()
    store.database.compact(Family.VOLUME)
    assert store.get(Family.VOLUME, DAY) == damaged
    assert store.insert(Family.EVENT, b"evt:a", b"1") is Stored.NEW


def test_a_damaged_block_of_volumes_stops_no_other_call(tmp_path: Path) -> None:
    """The store opens; a call that needs the block reports the damage."""
    settings = SigningSettings(data_dir=str(tmp_path))
    with Store.open(settings) as store:
        store.add_volume(DAY, 1)
        store.database.flush()
    (file,) = (tmp_path / "threshold-signing").glob("*.sst")
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])

    with Store.open(settings) as store:
        assert store.insert(Family.EVENT, b"evt:a", b"1") is Stored.NEW
        with pytest.raises(StoreCorrupt):
            store.volume(DAY)


def test_volume_values() -> None:
    """A number is eight bytes, the largest first."""
    assert volume_value(258) == b"\0\0\0\0\0\0\1\2"
    assert volume_of(volume_value(258)) == 258
    assert volume_of(None) == 0
    with pytest.raises(BadInput):
        volume_value(-1)


def test_the_migration_moves_each_kind(store: Store) -> None:
    """By prefix into its family; the configuration and unknown keys stay; twice is fine."""
    own = [kind for kind in KINDS if kind.family is not Family.DEFAULT]
    keys = {kind.prefix + b"x": kind.family for kind in own}
    values = {key: bytes(8) if key.startswith(b"vol:") else key.upper() for key in keys}
    batch = Batch()
    for key, value in values.items():
        batch.put(Family.DEFAULT, key, value)
    for key in (b"cfg:app", b"something else", b"requ:x", b"evt"):
        batch.put(Family.DEFAULT, key, b"stays")
    store.database.write(batch)

    first, second = store.migrate(), store.migrate()

    assert (first.moved, first.conflicts) == (len(keys), 0)
    assert (second.moved, second.conflicts) == (0, 0)
    assert {key: store.get(family, key) for key, family in keys.items()} == values
    left = [row.key for row in store.page(Family.DEFAULT).rows]
    assert left == sorted([b"cfg:app", b"something else", b"requ:x", b"evt"])
    assert all(family_of(key) is None for key in left)


def test_the_migration_overwrites_nothing(store: Store) -> None:
    """A row that its family holds otherwise stays and is told; the same row is only removed."""
    batch = Batch()
    for number in range(30):
        batch.put(Family.DEFAULT, b"evt:%02d" % number, b"old")
        batch.put(Family.EVENT, b"evt:%02d" % number, b"new" if number < 25 else b"old")
    batch.put(Family.DEFAULT, DAY, volume_value(VOLUME_MAX - 1))
    batch.put(Family.VOLUME, DAY, volume_value(5))
    store.database.write(batch)

    report = store.migrate()

    assert (report.moved, report.conflicts, len(report.conflict_keys)) == (6, 25, 20)
    assert store.get(Family.EVENT, b"evt:00") == b"new"
    assert store.get(Family.DEFAULT, b"evt:00") == b"old"
    assert store.get(Family.DEFAULT, b"evt:29") is None
    assert store.volume(DAY) == VOLUME_MAX
    assert store.migrate().conflicts == 25


@pytest.mark.torture
def test_eight_threads_insert_one_key(store: Store) -> None:
    """Exactly one of them is first; the others are told that it is there."""
    for number in range(sized(10, full=300)):
        found: list[Stored | None] = []
        key = b"evt:%d" % number

        def insert(thread: int, found: list[Stored | None] = found, key: bytes = key) -> None:
            try:
                found.append(store.insert(Family.EVENT, key, b"%d" % (thread % 2)))
            except KeyConflict:
                found.append(None)

        race(insert)

        told = Counter(found)
        assert told[Stored.NEW] == 1
        assert told[Stored.SAME] == 3
        assert told[None] == 4


@pytest.mark.torture
def test_eight_threads_add_to_one_day(store: Store) -> None:
    """The sum is right, and each was told a total of its own."""
    totals: list[int] = []
    each = sized(20, full=500)

    def add(_: int) -> None:
        totals.extend(store.add_volume(DAY, 3) for _ in range(each))

    race(add)

    assert store.volume(DAY) == 3 * THREADS * each
    assert sorted(totals) == [3 * number for number in range(1, THREADS * each + 1)]


@pytest.mark.torture
def test_eight_threads_that_lock_in_any_order(store: Store) -> None:
    """Deadlocks are retried; the work of each is there once."""

    def change(number: int) -> None:
        for turn in range(sized(5, full=200)):
            keys = [b"req:a", b"req:b"] if (number + turn) % 2 else [b"req:b", b"req:a"]

            def work(tx: StoreTransaction, keys: list[bytes] = keys) -> None:
                for key in keys:
                    now = int(tx.get_for_update(Family.REQUEST, key) or b"0")
                    tx.put(Family.REQUEST, key, b"%d" % (now + 1))

            patiently(partial(store.run, work))

    race(change)

    expected = b"%d" % (THREADS * sized(5, full=200))
    assert store.get(Family.REQUEST, b"req:a") == expected
    assert store.get(Family.REQUEST, b"req:b") == expected


def patiently(call: Callable[[], object]) -> None:
    """Again and again: with eight threads five tries may all meet another transaction."""
    for _ in range(1000):
        try:
            call()
        except StoreBusy:
            continue
        return
    raise AssertionError("met another transaction a thousand times")


def test_a_stuck_transaction_stops_only_its_keys(folder: Path) -> None:
    """Others wait for its key until their timeout, and everything else goes on."""
    settings = SigningSettings(lock_timeout_seconds=0.01, transaction_tries_max=2)
    with Store(folder, settings) as store, store.transaction() as stuck:
        stuck.put(Family.REQUEST, b"req:a", b"1")

        with pytest.raises(LockTimeout):
            store.insert(Family.REQUEST, b"req:a", b"2")
        assert store.insert(Family.REQUEST, b"req:b", b"2") is Stored.NEW
        assert store.insert(Family.EVENT, b"req:a", b"2") is Stored.NEW
        assert store.get(Family.REQUEST, b"req:a") is None
        assert store.page(Family.REQUEST).rows == [(b"req:b", b"2")]


def test_a_wait_for_a_key_is_not_repeated(folder: Path) -> None:
    """A key that stays locked costs a call one timeout, however many tries a transaction has."""
    settings = SigningSettings(lock_timeout_seconds=0.01, transaction_tries_max=5)
    tries = 0

    def work(tx: StoreTransaction) -> None:
        nonlocal tries
        tries += 1
        tx.put(Family.REQUEST, b"req:a", b"2")

    with Store(folder, settings) as store, store.transaction() as stuck:
        stuck.put(Family.REQUEST, b"req:a", b"1")
        with pytest.raises(LockTimeout):
            store.run(work)

    assert tries == 1


def test_what_is_acknowledged_is_synced(store: Store) -> None:
    """Writes wait for the disk, by fsync, with paranoid checks, and the log is not recycled."""
    handles = store.database._handles
    get_sync = ctypes.CDLL(store.database.library.file).rocksdb_writeoptions_get_sync
    get_sync.argtypes = [ctypes.c_void_p]
    options = max(store.folder.glob("OPTIONS-*")).read_text(encoding="utf-8")

    assert get_sync(handles.write_options) == 1
    for line in (
        "use_fsync=true",
        "paranoid_checks=true",
        "manual_wal_flush=false",
        "wal_recovery_mode=kTolerateCorruptedTailRecords",
        "recycle_log_file_num=0",
    ):
        assert line in options
    assert options.count("merge_operator=StringAppendOperator") == 2


def test_a_transaction_that_met_another_one_is_repeated(store: Store) -> None:
    """All of it, so many times as the settings say, and then the error is the caller's."""
    tries_max = store.settings.transaction_tries_max
    busy = StoreBusy("met another one")
    ends: Iterator[Exception | None] = iter([*[busy] * (tries_max - 1), None, *[busy] * tries_max])

    def work(tx: StoreTransaction) -> bytes | None:
        before = tx.get(Family.EVENT, b"evt:a")
        tx.put(Family.EVENT, b"evt:a", b"1")
        if (error := next(ends)) is not None:
            raise error
        return before

    assert store.run(work) is None
    with pytest.raises(StoreBusy):
        store.run(work)
    assert [*ends] == []

"""The contract of files in slices: any order, repeated, compared, owned, read by ranges."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.protocols import BlobAppendSlice, Protocol, Reading, Result
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.blobs.contents import content, cut, hash_of, mixed
from tests.harness.drivers import connect

SIZE = 1000
DATA = content(10_500)
ID = hash_of(DATA)
HOUR = 3600
READ = (
    "SELECT s.data FROM blobs b JOIN blob_slices s ON s.file_id = b.file_id "
    "WHERE b.file_id = '{id}' AND b.completed ORDER BY s.{offset}"
)
ADD = (
    "INSERT INTO blobs (file_id, total_size) VALUES ('{id}', 3)",
    "INSERT INTO blob_slices (file_id, slice_no, {offset}, data) VALUES ('{id}', 0, 0, 'abc')",
)
"""As a program writes that knows the documented columns only."""


def begun(ledger: Ledger, data: bytes = DATA) -> str:
    """An upload with slices of 1,000 bytes."""
    file_id = hash_of(data)
    ledger.run(lambda tx: tx.blobs.begin(file_id, total_size=len(data), slice_size=SIZE))
    return file_id


def stored(ledger: Ledger, data: bytes = DATA, owner: str | None = None) -> str:
    """A completed file."""
    file_id = begun(ledger, data)
    ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(data, SIZE)))
    assert ledger.run(lambda tx: tx.blobs.complete(file_id, owner=owner))
    return file_id


def begin_plainly(ledger: Ledger) -> None:
    """An upload that was begun by a program that knows the documented columns only."""
    add = text("INSERT INTO blobs (file_id, total_size) VALUES (:id, :size)")
    ledger.run(lambda tx: tx.connection.execute(add, {"id": ID, "size": len(DATA)}))


def tables_of(ledger: Ledger) -> str:
    """What stands before the name of a table in a statement by hand."""
    own = ledger.database.namespace.own
    return f"{own}." if own else ""


def rows(home: Home, table: str) -> int:
    """How many rows a table has, asked by the bare driver."""
    connection = connect(home.url)
    try:
        cursor = connection.cursor()
        cursor.execute(f"SELECT COUNT(*) FROM {table}")  # noqa: S608 - a name of ours
        return int(cursor.fetchone()[0])
    finally:
        connection.close()


class SliceContract:
    """What holds of slices. Fixtures: `ledger`, `home`, `clock`."""

    def test_the_documented_columns(self, ledger: Ledger, home: Home) -> None:
        """A program that knows the documented columns only reads what was stored and adds rows."""
        stored(ledger)

        other = hash_of(b"abc")
        connection = connect(home.url)
        cursor = connection.cursor()
        offset = {"mysql": "`offset`"}.get(home.kind, '"offset"')
        cursor.execute(READ.format(offset=offset, id=ID))
        read = b"".join(bytes(row[0]) for row in cursor.fetchall())
        for statement in ADD:
            cursor.execute(statement.format(offset=offset, id=other))
        connection.commit()
        connection.close()

        assert read == DATA
        with ledger.reading() as tx:
            theirs = tx.blobs.progress(other)
        assert theirs is not None
        assert (theirs.total_size, theirs.completed) == (3, False)

    def test_any_order_and_repeated(self, ledger: Ledger) -> None:
        """Slices in any order, each twice, are the content."""
        file_id = begun(ledger)
        given = mixed(cut(DATA, SIZE) * 2, seed=7)

        for number, data in given:
            ledger.run(lambda tx, n=number, d=data: tx.blobs.put_slice(file_id, n, d))  # type: ignore[misc]
        told = ledger.blobs.get(file_id)

        assert told is not None
        assert (told.slices, told.slices_total, told.bytes) == (11, 11, len(DATA))
        assert (told.percent, told.whole, told.completed) == (100, True, False)
        assert ledger.run(lambda tx: tx.blobs.complete(file_id))
        assert b"".join(ledger.blobs.read(file_id)) == DATA

    def test_other_content_is_refused(self, ledger: Ledger) -> None:
        """Another slice for a taken slot is a conflict, before and after the end."""
        file_id = begun(ledger)
        slices = cut(DATA, SIZE)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, slices[:3]))

        with pytest.raises(errors.KeyConflict, match="slice 2"):
            ledger.run(
                lambda tx: tx.blobs.put_slices(file_id, [(3, slices[3][1]), (2, b"x" * SIZE)])
            )
        with ledger.reading() as tx:
            missing = tx.blobs.missing(file_id)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, slices))
        ledger.run(lambda tx: tx.blobs.complete(file_id))
        with pytest.raises(errors.KeyConflict):
            ledger.run(lambda tx: tx.blobs.put_slice(file_id, 2, b"x" * SIZE))
        again = ledger.run(lambda tx: tx.blobs.put_slice(file_id, 2, slices[2][1]))

        assert missing == list(range(3, 11))
        assert again.completed
        assert b"".join(ledger.blobs.read(file_id)) == DATA

    def test_a_wrong_hash(self, ledger: Ledger, home: Home) -> None:
        """What has another hash is not completed; it is removed, and can be sent anew."""
        file_id = begun(ledger)
        wrong = content(len(DATA), seed=2)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(wrong, SIZE)))

        done = ledger.run(lambda tx: tx.blobs.complete(file_id))
        left = rows(home, "blob_slices")
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(wrong, SIZE)))
        with pytest.raises(errors.HashMismatch):
            ledger.blobs.complete(file_id)

        assert (done, left, rows(home, "blob_slices")) == (False, 0, 0)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(DATA, SIZE)))
        assert ledger.blobs.complete(file_id).completed
        assert b"".join(ledger.blobs.read(file_id)) == DATA

    def test_not_whole(self, ledger: Ledger) -> None:
        """What is not whole is neither completed nor read."""
        file_id = begun(ledger)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(DATA, SIZE)[1:]))

        with pytest.raises(errors.NotAllowedNow, match="9500 of 10500"):
            ledger.run(lambda tx: tx.blobs.complete(file_id))
        with pytest.raises(errors.NotAllowedNow, match="is not complete"):
            list(ledger.blobs.read(file_id))
        with ledger.reading() as tx:
            assert tx.blobs.missing(file_id) == [0]

    @pytest.mark.parametrize(
        ("number", "data"),
        [(11, b"x" * 500), (-1, b"x" * SIZE), (0, b"x" * 999), (10, b"x" * SIZE), (0, "x" * SIZE)],
    )
    def test_slices_that_it_cannot_have(self, ledger: Ledger, number: int, data: bytes) -> None:
        """A number or a length that the file cannot have is refused."""
        file_id = begun(ledger)

        with pytest.raises(errors.BadInput):
            ledger.run(lambda tx: tx.blobs.put_slice(file_id, number, data))

    def test_begun_again(self, ledger: Ledger) -> None:
        """The same upload is found; another size is a conflict, with or without slices."""
        file_id = begun(ledger)
        with pytest.raises(errors.KeyConflict, match="has 10500 bytes"):
            ledger.run(lambda tx: tx.blobs.begin(file_id, total_size=1))
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(DATA, SIZE)[:4]))

        found = ledger.run(lambda tx: tx.blobs.begin(file_id, total_size=len(DATA)))
        with pytest.raises(errors.KeyConflict, match="slices"):
            ledger.run(
                lambda tx: tx.blobs.begin(file_id, total_size=len(DATA), slice_size=2 * SIZE)
            )

        assert (found.slices, found.slice_size) == (4, SIZE)

    def test_it_commits_with_the_caller(self, ledger: Ledger, home: Home) -> None:
        """Slices are kept or undone with the caller's transaction."""
        file_id = begun(ledger)
        with ledger.database.engine.connect() as theirs:
            ledger.join(theirs).blobs.put_slice(file_id, 0, DATA[:SIZE])
            theirs.rollback()
            undone = rows(home, "blob_slices")
            ledger.join(theirs).blobs.put_slice(file_id, 0, DATA[:SIZE])
            theirs.commit()

        assert (undone, rows(home, "blob_slices")) == (0, 1)
        with ledger.reading() as tx:
            told = tx.blobs.progress(file_id)
        assert told is not None
        assert (told.slices, told.bytes) == (1, SIZE)

    def test_several_writers(self, ledger: Ledger) -> None:
        """Writers of one file at once store each slice once, and one of several completes it."""
        file_id = begun(ledger)
        start = threading.Barrier(4)

        def write(seed: int) -> bool:
            given = mixed(cut(DATA, SIZE), seed)
            start.wait()
            for number, data in given:
                ledger.run(lambda tx, n=number, d=data: tx.blobs.put_slice(file_id, n, d))  # type: ignore[misc]
            return ledger.blobs.complete(file_id).completed

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(write, range(4))) == [True] * 4

        assert b"".join(ledger.blobs.read(file_id)) == DATA

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 0), (0, 1), (999, 1001), (3500, 8200), (10_499, None), (0, None)]
    )
    def test_ranges(self, ledger: Ledger, start: int, end: int | None) -> None:
        """Any range of a file is read, across the borders of slices."""
        file_id = stored(ledger)

        assert b"".join(ledger.blobs.read(file_id, start, end)) == DATA[start:end]
        with ledger.reading() as tx:
            assert b"".join(tx.blobs.read(file_id, start, end)) == DATA[start:end]

    @pytest.mark.parametrize(
        ("start", "end"), [(-1, None), (5, 4), (0, 10_501), (True, None), (0, 1.5), ("0", None)]
    )
    def test_ranges_outside(self, ledger: Ledger, start: int, end: int | None) -> None:
        """A range that is no part of the file is refused."""
        with pytest.raises(errors.BadInput, match="is no part"):
            ledger.blobs.read(stored(ledger), start, end)

    def test_the_last_owner(self, ledger: Ledger, home: Home) -> None:
        """A file is removed with its slices when the last of its owners is."""
        file_id = stored(ledger, owner="message:1")
        other = stored(ledger, content(2500, 3), owner="message:1")
        ledger.run(lambda tx: tx.blobs.own(file_id, "message:2"))

        first = ledger.run(lambda tx: tx.blobs.remove_owner("message:1"))
        kept = rows(home, "blob_slices")
        second = ledger.run(lambda tx: tx.blobs.remove_owner("message:2"))

        assert (first, kept, second) == (1, 11, 1)
        assert ledger.blobs.get(other) is None
        assert [rows(home, name) for name in ("blobs", "blob_slices", "blob_owners")] == [0, 0, 0]

    def test_an_owner_that_comes_late(self, ledger: Ledger) -> None:
        """Nobody can own what is not there, and who owns it first keeps it."""
        file_id = stored(ledger)
        ledger.run(lambda tx: tx.blobs.own(file_id, "a"))
        ledger.run(lambda tx: tx.blobs.own(file_id, "a"))

        assert ledger.run(lambda tx: tx.blobs.owners(file_id)) == ["a"]
        assert ledger.run(lambda tx: tx.blobs.remove_owner("nobody")) == 0
        with pytest.raises(errors.NotFound):
            ledger.run(lambda tx: tx.blobs.own(hash_of(b"none"), "a"))

    @pytest.mark.parametrize("owner", ["", "a ", "a\0b", "\ud800", "x" * 191, 7, None])
    def test_names_that_own_nothing(self, ledger: Ledger, owner: str) -> None:
        """A name that is not the same name on every database is refused."""
        file_id = stored(ledger)

        for call in (
            lambda tx: tx.blobs.own(file_id, owner),
            lambda tx: tx.blobs.remove_owner(owner),
        ):
            with pytest.raises(errors.BadInput):
                ledger.run(call)

    @pytest.mark.parametrize("mime", ["a\nb", "\ud800", "x" * 256, 7])
    def test_types_that_are_none(self, ledger: Ledger, mime: str) -> None:
        """A type that is not printable, too long or no text is refused."""
        with pytest.raises(errors.BadInput):
            ledger.run(lambda tx: tx.blobs.begin(ID, total_size=1, mime=mime))

    def test_begun_again_lives_on(self, ledger: Ledger, clock: ManualClock) -> None:
        """An upload that is begun again lives on, also if every slice of it is there already."""
        file_id = begun(ledger)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(DATA, SIZE)[:4]))
        clock.advance(23 * HOUR)
        begun(ledger)
        clock.advance(23 * HOUR)

        found = ledger.blobs.get(file_id)

        assert found is not None
        assert found.slices == 4

    def test_removed_while_it_is_read(self, ledger: Ledger) -> None:
        """A reader of a file that is removed gets an error, never a shorter file."""
        file_id = stored(ledger)
        reader = ledger.blobs.read(file_id)
        next(reader)

        assert ledger.blobs.remove(file_id)

        with pytest.raises(errors.ContentMissing):
            list(reader)
        assert not ledger.blobs.remove(file_id)

    def test_verify(self, ledger: Ledger) -> None:
        """A byte that was changed in the database is noticed, and so is one that is missing."""
        changed, cut_off = stored(ledger), stored(ledger, content(3000, 5))
        assert ledger.blobs.verify(changed)

        with ledger.transaction() as tx:
            change = "UPDATE blob_slices SET data = :data WHERE file_id = :id AND slice_no = 4"
            tx.connection.execute(text(change), {"data": b"y" * SIZE, "id": changed})
            remove = "DELETE FROM blob_slices WHERE file_id = :id AND slice_no = 2"
            tx.connection.execute(text(remove), {"id": cut_off})

        assert not ledger.blobs.verify(changed)
        assert not ledger.blobs.verify(cut_off)

    def test_abandoned_uploads_expire(self, ledger: Ledger, clock: ManualClock, home: Home) -> None:
        """An upload that nobody continues is there no more, and is removed; a file stays."""
        kept = stored(ledger, content(2000, 9))
        file_id = begun(ledger)
        ledger.run(lambda tx: tx.blobs.put_slice(file_id, 0, DATA[:SIZE]))
        clock.advance(23 * HOUR)
        ledger.run(lambda tx: tx.blobs.put_slice(file_id, 1, DATA[SIZE : 2 * SIZE]))
        clock.advance(23 * HOUR)
        alive = ledger.blobs.get(file_id)
        clock.advance(HOUR)

        with pytest.raises(errors.NotFound, match="expired"):
            ledger.run(lambda tx: tx.blobs.put_slice(file_id, 2, DATA[2 * SIZE : 3 * SIZE]))
        worker = ledger.worker()
        worker.tick()
        worker.stop(grace_seconds=0)

        assert alive is not None
        assert (rows(home, "blobs"), rows(home, "blob_slices")) == (1, 2)
        assert b"".join(ledger.blobs.read(kept)) == content(2000, 9)

    def test_begun_after_it_expired(self, ledger: Ledger, clock: ManualClock) -> None:
        """What expired and was not removed yet begins anew."""
        file_id = begun(ledger)
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(DATA, SIZE)[:5]))
        clock.advance(25 * HOUR)

        begun(ledger)

        with ledger.reading() as tx:
            assert len(tx.blobs.missing(file_id)) == 11
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(DATA, SIZE)))
        assert ledger.blobs.complete(file_id).completed

    def test_large_uploads_expire_in_pieces(
        self, ledger: Ledger, clock: ManualClock, home: Home
    ) -> None:
        """One turn removes at most a thousand slices."""
        data = content(2_500, 4)
        file_id = hash_of(data)
        ledger.run(lambda tx: tx.blobs.begin(file_id, total_size=2_500, slice_size=1))
        ledger.run(lambda tx: tx.blobs.put_slices(file_id, cut(data, 1)))
        clock.advance(25 * HOUR)

        left = []
        for _ in range(3):
            worker = ledger.worker()
            worker.tick()
            worker.stop(grace_seconds=0)
            left.append(rows(home, "blob_slices"))
            clock.advance(HOUR)

        assert left == [1500, 500, 0]
        assert rows(home, "blobs") == 0

    def test_slices_of_any_size(self, ledger: Ledger) -> None:
        """A file that the documented columns began takes slices of any size; the last completes."""
        begin_plainly(ledger)
        parts = [(2, 7000), (0, 0), (1, 450), (0, 0)]
        ends = {0: 450, 450: 7000, 7000: len(DATA)}
        completed = []

        for number, at in parts:
            told = ledger.run(
                lambda tx, n=number, a=at: tx.blobs.add_slice(ID, n, a, DATA[a : ends[a]])  # type: ignore[misc]
            )
            completed.append(told.completed)

        assert completed == [False, False, True, True]
        assert b"".join(ledger.blobs.read(ID)) == DATA
        with pytest.raises(errors.KeyConflict):
            ledger.run(lambda tx: tx.blobs.add_slice(ID, 1, 450, b"x" * 6550))

    def test_the_wish_of_a_command(self, ledger: Ledger, home: Home) -> None:
        """A command of a protocol keeps slices in its transaction, and nothing if it fails."""
        begin_plainly(ledger)
        protocol = Protocol("films")

        @protocol.command("film.part")
        def keep(_: Reading, number: int, offset: int, end: int) -> Result:
            return Result(intents=[BlobAppendSlice(ID, number, offset, DATA[offset:end])])

        running = ledger.protocol(protocol)
        running.command("film.part", {"number": 0, "offset": 0, "end": 6000})
        with pytest.raises(errors.BadInput):
            running.command("film.part", {"number": 1, "offset": 6001, "end": 6001})
        before = rows(home, "blob_slices")
        running.command("film.part", {"number": 1, "offset": 6000, "end": len(DATA)})

        assert before == 1
        assert b"".join(ledger.blobs.read(ID)) == DATA

    def test_the_first_slice_begins_the_file(self, ledger: Ledger, clock: ManualClock) -> None:
        """One that says the size of the file needs no upload before it; an expired one is anew."""
        with pytest.raises(errors.NotFound):
            ledger.run(lambda tx: tx.blobs.add_slice(ID, 0, 0, DATA[:6000]))
        size = len(DATA)
        ledger.run(lambda tx: tx.blobs.add_slice(ID, 0, 0, b"x" * 6000, total_size=size))
        clock.advance(24 * HOUR * 365)

        first = ledger.run(lambda tx: tx.blobs.add_slice(ID, 1, 6000, DATA[6000:], total_size=size))
        with pytest.raises(errors.KeyConflict, match=f"has {size} bytes"):
            ledger.run(lambda tx: tx.blobs.add_slice(ID, 0, 0, DATA[:6000], total_size=size + 1))
        last = ledger.run(lambda tx: tx.blobs.add_slice(ID, 0, 0, DATA[:6000], total_size=size))

        assert (first.bytes, last.completed) == (size - 6000, True)
        assert b"".join(ledger.blobs.read(ID)) == DATA

    def test_slices_of_a_file_that_is_there(self, ledger: Ledger) -> None:
        """A slice of a file that came in slices of other sizes changes nothing, or is refused."""
        stored(ledger)

        told = ledger.run(lambda tx: tx.blobs.add_slice(ID, 7, 450, DATA[450:2300]))
        with pytest.raises(errors.KeyConflict):
            ledger.run(lambda tx: tx.blobs.add_slice(ID, 7, 450, b"x" * 1850))

        assert (told.slices, told.completed) == (11, True)

    def test_completed_by_another_program(self, ledger: Ledger) -> None:
        """A file that a program of the documented columns completed is read, and told as whole."""
        begin_plainly(ledger)
        ledger.run(lambda tx: tx.blobs.add_slice(ID, 0, 0, DATA[:6000]))
        place = tables_of(ledger)
        with ledger.transaction() as tx:
            offset = tx.connection.dialect.identifier_preparer.quote("offset")
            add = f"INSERT INTO {place}blob_slices (file_id, slice_no, {offset}, data)"
            row = {"id": ID, "data": DATA[6000:]}
            tx.connection.execute(text(f"{add} VALUES (:id, 1, 6000, :data)"), row)
            done = f"UPDATE {place}blobs SET completed = :yes WHERE file_id = :id"  # noqa: S608
            tx.connection.execute(text(done), {"id": ID, "yes": True})

        told = ledger.blobs.get(ID)

        assert told is not None
        assert (told.bytes, told.percent, told.bytes_per_second) == (len(DATA), 100, None)
        assert b"".join(ledger.blobs.read(ID)) == DATA

    def test_slices_that_overlap(self, ledger: Ledger, home: Home) -> None:
        """Slices that overlap and leave a gap are as a wrong hash: they are removed."""
        begin_plainly(ledger)
        half = len(DATA) // 2

        ledger.run(lambda tx: tx.blobs.add_slice(ID, 0, 0, DATA[:half]))
        told = ledger.run(lambda tx: tx.blobs.add_slice(ID, 1, 1, DATA[1 : half + 1]))

        assert (told.completed, told.bytes, rows(home, "blob_slices")) == (False, 0, 0)

    @pytest.mark.parametrize(
        ("number", "offset", "data"),
        [(0, 0, b""), (-1, 0, b"x"), (0, -1, b"x"), (0, 10_500, b"x"), (0, 10_499, b"xy")],
    )
    def test_slices_outside(self, ledger: Ledger, number: int, offset: int, data: bytes) -> None:
        """A slice that lies outside of the file is refused."""
        begin_plainly(ledger)

        with pytest.raises(errors.BadInput):
            ledger.run(lambda tx: tx.blobs.add_slice(ID, number, offset, data))

    def test_a_table_of_others(self, home: Home, ledger: Ledger) -> None:
        """A table that has one of our names and is another program's is refused by its name."""
        own = ledger.database.namespace.own
        place = f"{own}." if own else ""
        with ledger.database.engine.begin() as theirs:
            for table in ("blobs", "ledgerstone_revision_blobs"):
                theirs.exec_driver_sql(f"DROP TABLE {place}{table}")
            theirs.exec_driver_sql(f"CREATE TABLE {place}blobs (id INTEGER PRIMARY KEY)")

        with pytest.raises(errors.NotAllowedNow, match="the table blobs is there already") as told:
            ledger.migrate()
        settings = Settings.load(url=home.url, environ={}, blobs={"enabled": False})
        with Ledger(settings=settings) as without:
            without.migrate()
            without.run(lambda tx: tx.jobs.enqueue("a"))

        assert "blobs.enabled = false" in str(told.value.hint)

    def test_pages(self, ledger: Ledger) -> None:
        """Files and uploads are listed, the newest first."""
        made = {stored(ledger, content(10 + i, i)) for i in range(3)} | {begun(ledger)}

        with ledger.reading() as tx:
            first = tx.blobs.find(limit=3)
            second = tx.blobs.find(limit=3, cursor=first.next)

        assert {each.file_id for each in (*first.rows, *second.rows)} == made
        assert second.next is None

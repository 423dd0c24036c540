"""What else stops when one thing is stuck: a row that is locked, a folder, a neighbour at work."""

from __future__ import annotations

import asyncio
import fcntl
import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.blobs import folder
from ledgerstone.blobs.tus import UploadApp
from ledgerstone.blobs.tus import app as tus_app
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.blobs.serving import Answer, asked, asked_of
from tests.blobs.tus_client import BODY_TYPE
from tests.contract.blobs.contents import content, cut, hash_of
from tests.contract.blobs.slices import rows
from tests.harness.lock_waits import REFRESHED_SECONDS, WAITING
from tests.harness.sizes import sized

HOUR = 3600
BUSY = b"another request is busy with this upload"
CLIENTS = 2 * tus_app.THREADS_MAX
ROUNDS = sized(40, full=1000)
CONTENTS = [content(20_000, seed) for seed in range(4)]


def on_disk(url: str, home: Path) -> Ledger:
    """A ledger that keeps every file in the folder."""
    terms = {"folder": str(home), "disk_bytes_min": 1, "slice_bytes": 4096}
    return Ledger(settings=Settings.load(url=url, environ={}, blobs=terms))


def test_a_row_that_is_locked(server_home: Home, clock: ManualClock) -> None:
    """An expired upload that another transaction has locked keeps no other from its removal."""
    with Ledger(server_home.url, clock=clock) as ledger:
        ids = [hash_of(data) for data in CONTENTS]
        for file_id, data in zip(ids, CONTENTS, strict=True):
            size = len(data)
            ledger.run(lambda tx, i=file_id, s=size: tx.blobs.begin(i, total_size=s, slice_size=s))  # type: ignore[misc]
            ledger.run(lambda tx, i=file_id, d=data: tx.blobs.put_slices(i, cut(d, len(d))))  # type: ignore[misc]
        clock.advance(25 * HOUR)
        with ledger.database.engine.connect() as theirs:
            lock = text("UPDATE blobs SET mime = 'x' WHERE file_id = :id")
            theirs.execute(lock, {"id": ids[0]})

            meanwhile = ledger.blobs.collect()
            ledger.blobs.put(io.BytesIO(b"another"))

            theirs.rollback()
        afterwards = ledger.blobs.collect()

    assert (meanwhile.uploads, afterwards.uploads) == (3, 1)
    assert rows(server_home, "blobs") == 1


def test_an_upload_that_is_locked(server_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the row of one upload is locked, others go on; those who repeat it are told 423."""
    monkeypatch.setattr(tus_app, "TURN_SECONDS_MAX", 0.0)
    said = {"content_type": BODY_TYPE, "upload_offset": "0"}
    once = Settings.load(url=server_home.url, environ={}, store={"transaction_tries_max": 1})
    with Ledger(settings=once) as ledger, ledger.database.engine.connect() as theirs:
        app = UploadApp(ledger.blobs, authorize=lambda _: "ann")
        new = [asked_of(app, "POST", "/files", upload_length="3")[1]["location"] for _ in "12"]
        lock = text("UPDATE blobs SET mime = 'x' WHERE file_id = :id")
        theirs.execute(lock, {"id": new[0].rpartition("/")[2]})

        async def while_it_is_locked() -> tuple[list[Answer], Answer, Answer]:
            answers = asyncio.as_completed(
                [asked(app, "PATCH", new[0], b"abc", **said) for _ in range(CLIENTS)]
            )
            refused = [await next(answers) for _ in range(CLIENTS - 1)]
            other = await asked(app, "PATCH", new[1], b"abc", **said)
            theirs.rollback()
            return refused, other, await next(answers)

        refused, other, last = asyncio.run(while_it_is_locked())

    # None of them has waited for the database, which says something else.
    assert {(each.status, each.body) for each in refused} == {(423, BUSY)}
    assert (other.status, last.status) == (204, 204)


def test_begun_while_it_is_removed(server_home: Home) -> None:
    """An upload that waits for the end of one that is being removed is begun after that."""
    data = CONTENTS[0]
    file_id = hash_of(data)
    with Ledger(server_home.url) as ledger, ThreadPoolExecutor(1) as pool:
        ledger.blobs.put(io.BytesIO(data))

        def begin() -> bool:
            with ledger.transaction() as tx:
                return tx.blobs.begin(file_id, total_size=len(data)).completed

        def waits() -> bool:
            with ledger.reading() as tx:
                return bool(tx.connection.execute(text(WAITING[server_home.kind])).scalar())

        with ledger.transaction() as tx:
            tx.blobs.remove(file_id)
            begun = pool.submit(begin)
            until(waits, every_seconds=REFRESHED_SECONDS)

        assert not begun.result()
        assert ledger.blobs.get(file_id) is not None


def test_files_that_take_long_to_finish(server_home: Home) -> None:
    """While applications take long over their finished files, other uploads go on."""
    may_end = threading.Event()
    said = {"content_type": BODY_TYPE, "upload_offset": "0"}
    with Ledger(server_home.url) as ledger:

        def finished(_: object, __: object) -> None:
            may_end.wait(WAIT_SECONDS_MAX)

        app = UploadApp(ledger.blobs, authorize=lambda _: "ann", finished=finished)

        async def while_they_finish() -> tuple[Answer, list[Answer]]:
            new = [await asked(app, "POST", "/files", upload_length="4") for _ in range(CLIENTS)]
            paths = [each.headers["location"] for each in new]
            slow = [
                asyncio.create_task(asked(app, "PATCH", path, b"abc%d" % number, **said))
                for number, path in enumerate(paths[1:])
            ]
            other = await asked(app, "PATCH", paths[0], b"abc", **said)
            while app._finishing._work_queue.qsize() < len(slow) - tus_app.FINISHING_MAX:
                other = await asked(app, "HEAD", paths[0])
            may_end.set()
            return other, await asyncio.gather(*slow)

        other, ended = asyncio.run(while_they_finish())

    assert other.headers["upload-offset"] == "3"
    assert {each.status for each in ended} == {204}


def test_a_process_that_holds_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot get its name, because a process is stopped, is refused after a while."""
    monkeypatch.setattr(folder, "LOCK_SECONDS_MAX", 0.0)
    home = tmp_path / "files"
    with on_disk(f"sqlite:///{tmp_path}/ledger.db", home) as ledger:
        ledger.blobs.put(io.BytesIO(b"first"))
        with (home / folder.LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(errors.StoreLocked, match="does not end"):
                ledger.blobs.put(io.BytesIO(b"second"))

        assert ledger.blobs.put(io.BytesIO(b"second")).completed
        assert ledger.blobs.collect().files == 0


@pytest.mark.torture
def test_put_remove_and_collect_at_once(tmp_path: Path) -> None:
    """Whoever puts, removes and collects at once: a file that is complete has all its bytes."""
    url, home = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "files"
    with on_disk(url, home) as first:
        first.migrate()

    def work(seed: int) -> int:
        chance = random.Random(seed)  # noqa: S311 - it keeps no secret
        done = 0
        with on_disk(url, home) as ledger:
            for _ in range(ROUNDS):
                data = chance.choice(CONTENTS)
                match chance.randrange(3):
                    case 0:
                        # Another one may complete the same upload just now.
                        with suppress(errors.NotAllowedNow, errors.NotFound):
                            ledger.blobs.put(io.BytesIO(data))
                            done += 1
                    case 1:
                        ledger.blobs.remove(hash_of(data))
                    case _:
                        ledger.blobs.collect()
        return done

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(work, range(4)))
    with on_disk(url, home) as last:
        for data in CONTENTS:
            last.blobs.put(io.BytesIO(data))
        last.blobs.collect()
        found = [each.file_id for each in last.blobs.find().rows if each.completed]
        verdicts = {file_id: last.blobs.verify(file_id) for file_id in found}

    assert done
    assert verdicts == {hash_of(data): True for data in CONTENTS}
    kept = [path.name for path in home.rglob("*") if path.is_file() and path.name != folder.LOCK]
    assert sorted(kept) == sorted(verdicts)

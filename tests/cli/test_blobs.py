"""`ledgerstone blobs`: put, get, list, verify and gc."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledgerstone.ledger import Ledger
from tests.cli.program import Program
from tests.contract.blobs.contents import content, hash_of

DATA = content(600_000)
ID = hash_of(DATA)


@pytest.fixture
def stored(program: Program, embedded: Ledger) -> Ledger:
    """A ledger with one file, which lies beside it as `a.png`."""
    (program.folder / "a.png").write_bytes(DATA)
    embedded.blobs.put(program.folder / "a.png", mime="image/png", owner="message:7")
    return embedded


def test_put_and_get(program: Program, embedded: Ledger) -> None:
    """A file is stored under its hash, and written again as it was; a range of it, too."""
    (program.folder / "a.png").write_bytes(DATA)

    put = program.run("blobs", "put", "a.png", "--owner", "message:7", "--json")
    again = program.run("blobs", "put", "a.png")
    got = program.run("blobs", "get", ID, "-o", "b.png", "--json")
    part = program.run("blobs", "get", ID, "-o", "c.png", "--start", 1000, "--end", 300_000)

    assert (put.code, again.code, got.code, part.code) == (0, 0, 0, 0)
    assert (put.json["file_id"], put.json["mime"], put.json["completed"]) == (
        ID,
        "image/png",
        True,
    )
    assert ID in again.out.replace("\n", "").replace(" ", "")
    assert got.json == {"file": "b.png", "bytes": len(DATA)}
    assert (program.folder / "b.png").read_bytes() == DATA
    assert (program.folder / "c.png").read_bytes() == DATA[1000:300_000]
    assert embedded.run(lambda tx: tx.blobs.owners(ID)) == ["message:7"]
    assert sorted(path.name for path in program.folder.glob("*.part")) == []


@pytest.mark.slow
def test_pipes(program: Program, stored: Ledger) -> None:
    """- is stdin; without --output the bytes go to stdout, and nothing else does."""
    ours = {"env": program.environment, "cwd": program.folder, "capture_output": True}

    got = subprocess.run([*program.command, "blobs", "get", ID], check=True, **ours)  # type: ignore[call-overload]
    put = subprocess.run(  # type: ignore[call-overload]
        [*program.command, "blobs", "put", "-", "--json"], check=True, input=DATA[:1000], **ours
    )

    assert got.stdout == DATA
    assert hash_of(DATA[:1000]) in put.stdout.decode()
    assert stored.blobs.verify(hash_of(DATA[:1000]))


@pytest.mark.usefixtures("stored")
def test_a_pipe_is_no_file(program: Program) -> None:
    """A pipe is stored as a stream, and a pipe or a device is written as it stands."""
    pipe = program.folder / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        given = pool.submit(pipe.write_bytes, DATA[:1000])
        put = program.run("blobs", "put", "pipe", "--json")
        given.result()
        taken = pool.submit(pipe.read_bytes)
        got = program.run("blobs", "get", ID, "-o", "pipe")

        assert taken.result() == DATA
    assert put.json["file_id"] == hash_of(DATA[:1000])
    assert got.code == 0
    assert pipe.is_fifo()


def test_the_beginning_of_an_id(program: Program, stored: Ledger) -> None:
    """A file is found by the beginning of its id; what fits to several, or to none, is refused."""
    shown = program.run("blobs", "list").out
    got = program.run("blobs", "get", ID[:16], "-o", "b.png")
    checked = program.run("blobs", "verify", ID[:4])
    other = ID[:5] + "0" * 59
    stored.run(lambda tx: tx.blobs.begin(other, total_size=10))
    several = program.run("blobs", "get", ID[:4], "-o", "c.png")
    none = program.run("blobs", "get", "0000", "-o", "c.png")

    assert ID[:16] in shown
    assert (got.code, checked.code, several.code, none.code) == (0, 0, 1, 1)
    assert (program.folder / "b.png").read_bytes() == DATA
    assert "give more digits" in several.err
    assert "ledgerstone blobs list" in none.err


@pytest.mark.parametrize("to", ["folder", "none/x"])
@pytest.mark.usefixtures("stored")
def test_what_cannot_be_written(program: Program, to: str) -> None:
    """A place that cannot be written is named with the reason, and nothing is left beside it."""
    (program.folder / "folder").mkdir()
    before = sorted(path.name for path in program.folder.iterdir())

    ended = program.run("blobs", "get", ID, "-o", to)

    assert ended.code == 1
    assert f"error: {to} cannot be written" in ended.err
    assert sorted(path.name for path in program.folder.iterdir()) == before


@pytest.mark.usefixtures("stored")
def test_a_link_and_a_neighbour(program: Program) -> None:
    """What is written goes where a link leads, and spares a file that has a similar name."""
    (program.folder / "b.png.part").write_text("mine")
    (program.folder / "link.png").symlink_to("b.png")

    program.run("blobs", "get", ID, "-o", "link.png")

    assert (program.folder / "b.png").read_bytes() == DATA
    assert (program.folder / "link.png").is_symlink()
    assert (program.folder / "b.png.part").read_text() == "mine"


def test_list(program: Program, stored: Ledger) -> None:
    """Files and uploads are listed, page by page, with how far they are."""
    begun = hash_of(b"begun")
    stored.run(lambda tx: tx.blobs.begin(begun, total_size=4000, slice_size=1000))
    stored.run(lambda tx: tx.blobs.put_slice(begun, 1, b"x" * 1000))

    first = program.run("blobs", "list", "--limit", 1, "--json").json
    second = program.run("blobs", "list", "--limit", 1, "--cursor", first["next"], "--json").json
    shown = program.run("blobs", "list")

    (upload,), (file,) = first["blobs"], second["blobs"]
    assert (upload["file_id"], upload["percent"], upload["slices"]) == (begun, 25, 1)
    assert (file["file_id"], file["completed"], file["bytes"]) == (ID, True, len(DATA))
    assert "25 %" in shown.out
    assert "complete" in shown.out


def test_verify(program: Program, stored: Ledger) -> None:
    """Files are compared with their hashes, all or those that are named; exit 1 if one differs."""
    good = program.run("blobs", "verify", "--json")
    with stored.transaction() as tx:
        tx.connection.exec_driver_sql("UPDATE blob_slices SET data = x'00' WHERE slice_no = 1")
    bad = program.run("blobs", "verify", "--json")
    named = program.run("blobs", "verify", ID)
    unknown = program.run("blobs", "verify", hash_of(b"unknown"))

    assert (good.code, good.json) == (0, {"checked": 1, "damaged": []})
    assert (bad.code, bad.json) == (1, {"checked": 1, "damaged": [ID]})
    assert named.code == 1
    assert "restore them from a backup" in named.out
    assert (unknown.code, "there is no file" in unknown.err) == (1, True)


def test_a_damaged_file_is_not_written(program: Program, stored: Ledger) -> None:
    """A whole file that differs from its hash is refused, and the file of the name stays."""
    (program.folder / "b.png").write_text("mine")
    with stored.transaction() as tx:
        wrong = "UPDATE blob_slices SET data = zeroblob(length(data)) WHERE slice_no = 1"
        tx.connection.exec_driver_sql(wrong)

    got = program.run("blobs", "get", ID, "-o", "b.png")
    streamed = program.run("blobs", "get", ID, "-o", "/dev/null")

    assert (got.code, streamed.code) == (1, 1)
    assert f"the file {ID} is damaged" in got.err
    assert (program.folder / "b.png").read_text() == "mine"
    assert not list(program.folder.glob("*.part"))


def test_verify_goes_on(program: Program, stored: Ledger) -> None:
    """A row that another program named by no hash is damaged, obeyed by no terminal, and passed."""
    with stored.transaction() as tx:
        add = "INSERT INTO blobs (file_id, total_size, completed) VALUES (?, 5, 1)"
        tx.connection.exec_driver_sql(add, ("\x1b[31mred",))

    told = program.run("blobs", "verify")
    shown = program.run("blobs", "list")

    assert (told.code, shown.code) == (1, 0)
    assert "1 of 2 files are damaged" in told.out
    assert "\\x1b[31mred" in told.out
    assert "\x1b" not in told.out + shown.out


def test_gc(program: Program, stored: Ledger) -> None:
    """Uploads that have expired are removed, and files stay."""
    begun = hash_of(b"begun")
    stored.run(lambda tx: tx.blobs.begin(begun, total_size=4000, slice_size=1000))
    stored.run(lambda tx: tx.blobs.put_slice(begun, 1, b"x" * 1000))
    with stored.transaction() as tx:
        tx.connection.exec_driver_sql("UPDATE blobs SET expires_at_ms = 1 WHERE completed = 0")

    status = program.run("status", "--json").json["blobs"]
    doctor = program.run("doctor", "--json").json["checks"]
    done = program.run("blobs", "gc", "--json")

    assert (status["completed"], status["uploading"], status["expired"]) == (1, 0, 1)
    (told,) = [check for check in doctor if check["name"] == "files"]
    assert (told["verdict"], "ledgerstone blobs gc" in told["todo"]) == ("warning", True)
    assert (done.code, done.json) == (0, {"uploads": 1, "slices": 1, "files": 0, "problems": []})
    assert stored.blobs.verify(ID)


@pytest.mark.slow
def test_a_folder_that_is_closed(program: Program, embedded: Ledger) -> None:
    """A folder that cannot be written is told by its path, and so is a file that is kept."""
    program.obey_modes()
    folder = program.folder / "files"
    folder.mkdir()
    (program.folder / "a.png").write_bytes(DATA)
    large = {"LEDGERSTONE_BLOBS_DISK_BYTES_MIN": "1", "LEDGERSTONE_BLOBS_FOLDER": str(folder)}

    folder.chmod(0o500)
    refused = program.run("blobs", "put", "a.png", **large)
    folder.chmod(0o700)
    put = program.run("blobs", "put", "a.png", "--owner", "a", **large)
    embedded.run(lambda tx: tx.blobs.remove_owner("a"))
    (folder / ID[:2]).chmod(0o500)
    kept = program.run("blobs", "gc", **large)
    (folder / ID[:2]).chmod(0o700)
    done = program.run("blobs", "gc", **large)

    assert (refused.code, str(folder) in refused.err.replace("\n", "")) == (1, True)
    assert "give this user the folder" in refused.err
    assert (put.code, kept.code, done.code) == (0, 1, 0)
    assert "Permission denied" in kept.out
    assert list((folder / ID[:2]).iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("put", "none.png"), 1, "there is no file none.png"),
        (("put", "."), 1, ". cannot be read: Is a directory"),
        (("get", "none"), 1, "SHA-256"),
        (("get", hash_of(b"none"), "-o", "x"), 1, "there is no file"),
        (("get", ID, "--json"), 2, ""),
        (("get", ID, "--start", "-1"), 2, ""),
        (("get", ID, "-o", "x", "--end", "9999999"), 1, "is no part"),
    ],
)
@pytest.mark.usefixtures("stored")
def test_refusals(program: Program, words: tuple[str, ...], code: int, said: str) -> None:
    """What cannot be done is told, and leaves no file."""
    ended = program.run("blobs", *words)

    assert ended.code == code
    assert said in ended.err
    assert not list(program.folder.glob("x*"))

"""`ledgerstone blobs`: put, get, list and verify files, and remove what has expired."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ledgerstone.blobs import Progress
from ledgerstone.blobs.cli import views
from ledgerstone.blobs.rows import is_hash
from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.bars import byte_bar
from ledgerstone.console.byte_files import STDIO, read_from, written_to
from ledgerstone.console.call import EXIT_REFUSED, Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.pages import LIST_ROWS, CursorOption, LimitOption
from ledgerstone.errors import ContentMissing, NotFound
from ledgerstone.ledger import Ledger

PAGE_ROWS = 1000

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The SHA-256 of the file, or its beginning.")
]
IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Which; otherwise every file.")
]
OwnerOption = Annotated[
    str | None, typer.Option("--owner", metavar="NAME", help="What it belongs to, as message:7.")
]
MimeOption = Annotated[
    str | None,
    typer.Option("--mime", metavar="TYPE", help="Its type; otherwise what its name says."),
]
OutputOption = Annotated[
    str,
    typer.Option("--output", "-o", metavar="FILE", help="Where to; otherwise to stdout."),
]
StartOption = Annotated[
    int, typer.Option("--start", metavar="BYTE", min=0, help="From this byte on.")
]
EndOption = Annotated[
    int | None, typer.Option("--end", metavar="BYTE", min=0, help="Up to before this byte.")
]


def put(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for stdin.")],
    mime: MimeOption = None,
    owner: OwnerOption = None,
) -> None:
    """Store a file; one that was interrupted goes on where it stopped.

    Example: ledgerstone blobs put film.mp4 --owner message:7
    """
    path, named = Path(file), mime or mimetypes.guess_type(file)[0]
    with read_from(file) as stream:
        # A file is read twice, and goes on where it stopped; a pipe can be read once.
        source = path if file != STDIO and path.is_file() else stream
        size = path.stat().st_size if source is path else None
        with ledger_of(call) as ledger, byte_bar(f"put {file}", size, json=call.json) as shown:
            put_ = ledger.blobs.put(
                source, mime=named, owner=owner, on_progress=lambda told: shown(told.bytes)
            )
    output.show(views.facts(put_), views.one(put_), json=call.json)


def get(
    call: Call,
    file_id: IdArgument,
    to: OutputOption = STDIO,
    start: StartOption = 0,
    end: EndOption = None,
) -> None:
    """Write a file, or a range of it, to a file or to stdout.

    A whole file is compared with its hash: exit 1 if it is damaged, and nothing has its name.

    Example: ledgerstone blobs get 9f86d0… -o film.mp4
    """
    if to == STDIO and call.json:
        raise typer.BadParameter("--json needs --output: stdout has the bytes of the file")
    with ledger_of(call, tell=to != STDIO) as ledger:
        found = _found(ledger, file_id)
        pieces = ledger.blobs.read(found.file_id, start, end)
        size = (found.bytes if end is None else end) - start
        digest = hashlib.sha256()
        with written_to(to) as file, byte_bar("get", size, json=call.json or to == STDIO) as shown:
            written = 0
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                written += len(piece)
                shown(written)
            if written == found.bytes and digest.hexdigest() != found.file_id:
                message = f"the file {found.file_id} is damaged: it has the hash"
                hint = "restore it from a backup; `blobs verify` names all that are damaged"
                raise ContentMissing(f"{message} {digest.hexdigest()}", hint=hint)
    if to != STDIO:
        words = output.Text(f"{to} has {written:,} bytes")
        output.show({"file": to, "bytes": written}, words, json=call.json)


def listed(call: Call, limit: LimitOption = LIST_ROWS, cursor: CursorOption = None) -> None:
    """List files and uploads, the newest first.

    Example: ledgerstone blobs list --limit 100
    """
    with ledger_of(call) as ledger:
        page = ledger.blobs.find(limit=limit, cursor=cursor)
    facts = {"blobs": [views.facts(each) for each in page.rows], "next": page.next}
    output.show(facts, views.table(page.rows), json=call.json)
    output.say_next(page.next, json=call.json)


def verify(call: Call, ids: IdsArgument = None) -> None:
    """Compare files with their hashes; exit 1 if a byte is missing or wrong.

    Example: ledgerstone blobs verify
    """
    checked, damaged = 0, []
    with ledger_of(call) as ledger, byte_bar("verify", None, json=call.json) as shown:
        size = 0
        for found in (_found(ledger, each) for each in ids) if ids else _every(ledger):
            checked += 1
            if not _is_sound(ledger, found.file_id):
                damaged.append(found.file_id)
            size += found.bytes
            shown(size)
    facts = {"checked": checked, "damaged": damaged}
    output.show(facts, views.verdict(checked, damaged), json=call.json)
    if damaged:
        raise typer.Exit(EXIT_REFUSED)


def gc(call: Call) -> None:
    """Remove what has expired, and files of the folder that nothing names.

    Exit 1 if the system keeps a file.

    Example: ledgerstone blobs gc
    """
    with ledger_of(call) as ledger:
        done = ledger.blobs.collect()
    words = f"removed {done.uploads:,} uploads with {done.slices:,} slices, {done.files:,} files"
    output.show(done, output.Text("\n".join([words, *done.problems])), json=call.json)
    if done.problems:
        raise typer.Exit(EXIT_REFUSED)


def _found(ledger: Ledger, file_id: str) -> Progress:
    """The file of this id, or the one whose id begins so; NotFound if there is none."""
    whole = ledger.blobs.id_of(file_id)
    found = ledger.blobs.get(whole)
    if found is None:
        raise NotFound(f"there is no file {whole}")
    return found


def _is_sound(ledger: Ledger, file_id: str) -> bool:
    """Whether a file is as its hash says, or was removed meanwhile."""
    # Another program may name a file by what is no hash.
    return is_hash(file_id) and (ledger.blobs.verify(file_id) or ledger.blobs.get(file_id) is None)


def _every(ledger: Ledger) -> Iterator[Progress]:
    """Every completed file."""
    cursor = None
    while True:
        page = ledger.blobs.find(limit=PAGE_ROWS, cursor=cursor)
        yield from (each for each in page.rows if each.completed)
        cursor = page.next
        if cursor is None:
            return


app = group("Files in slices: stored, resumed, verified, read by ranges.")
app.command("put")(command(put))
app.command("get")(command(get))
app.command("list")(command(listed))
app.command("verify")(command(verify))
app.command("gc")(command(gc))

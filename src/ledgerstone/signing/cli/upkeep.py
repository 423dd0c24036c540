"""`ledgerstone signing` for operators: volume, archive, copies, health and size of the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ledgerstone.console import output
from ledgerstone.console.call import EXIT_REFUSED, Call, flag
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput, Malformed, NotAllowedNow, NotFound
from ledgerstone.signing import check_extra
from ledgerstone.signing.cli import views
from ledgerstone.signing.cli.documents import STDIN
from ledgerstone.signing.cli.opening import (
    DataOption,
    reading_of,
    settings_of,
    signing_of,
)
from ledgerstone.signing.cli.steps import Steps
from ledgerstone.signing.folder import store_folder
from ledgerstone.signing.keys import NANOS_PER_DAY, Family, day_start_nanos

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

DAYS_SHOWN = 7
DAYS_SHOWN_MAX = 366
DAYS_MAX = 36_500
"""As in the settings `archive_days` and `delete_days`."""
OWNER_ONLY = 0o600
LINE_REST_CHARS_MAX = 16 * 1024 * 1024
"""The fields of a line of an export beside its value: the key, and the record for people."""


def volume(
    call: Call,
    *,
    days: Annotated[
        int,
        typer.Option(
            "--days", metavar="N", min=1, max=DAYS_SHOWN_MAX, help="So many days, up to today."
        ),
    ] = DAYS_SHOWN,
    data: DataOption = None,
) -> None:
    """Show what was paid on each UTC day, and what approved requests reserve.

    Example: ledgerstone signing volume --days 30
    """
    with reading_of(call, data) as signing:
        today = day_start_nanos(signing.clock())
        starts = [today - back * NANOS_PER_DAY for back in range(days)]
        by_day = {views.day_of(start): signing.volume_of_day(start) for start in starts}
        paid_today = signing.volume_of_day(today)
        reserved = signing.reserved_volume()
    facts = {
        "today_sompi": paid_today,
        "reserved_sompi": reserved,
        "days": [{"day": day, "sompi": each} for day, each in by_day.items()],
    }
    output.show(facts, views.volume(by_day, reserved), json=call.json)


def archive(
    call: Call,
    *,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="DAYS",
            min=0,
            max=DAYS_MAX,
            help="What ended so long ago; otherwise as the settings say.",
        ),
    ] = None,
    delete: Annotated[
        bool, flag("--delete", help="Delete archived requests instead, with all of theirs.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Archive requests that ended, or delete archived ones, in bounded steps.

    An event that was signed for stays marked, and is never signed for again.

    Example: ledgerstone signing archive --days 30
    """
    done: list[str] = []
    wrong: dict[str, str] = {}
    verb = "deleted" if delete else "archived"
    with signing_of(call, data) as signing, Steps("Requests", verb, json=call.json) as steps:
        age = _age_days(signing, days, delete=delete)
        before = max(0, signing.clock() - int(age * NANOS_PER_DAY))

        def step(after: bytes | None) -> tuple[int, bytes | None]:
            if delete:
                gone = signing.delete_old_archives(before, after=after)
                names, errors, cursor = gone.requests, gone.errors, gone.after
            else:
                kept = signing.archive_old_requests(before, after=after)
                names, errors, cursor = kept.archived, kept.errors, kept.after
            done.extend(names)
            wrong.update({name: str(error) for name, error in errors.items()})
            return len(names), cursor

        steps.through(step)
    told = f"{len(done):,} {verb} that ended more than {age:g} days ago"
    facts = {verb: done, "days": age, "errors": wrong}
    output.show(facts, views.swept(told, done, wrong), json=call.json)
    if wrong:
        raise typer.Exit(EXIT_REFUSED)


def _age_days(signing: Signing, given: float | None, *, delete: bool) -> float:
    setting = "delete_days" if delete else "archive_days"
    days = getattr(signing.settings, setting) if given is None else given
    if days is None:
        hint = f"say --days 30, or set signing.{setting}"
        raise BadInput("how long ago a request must have ended is not said", hint=hint)
    return float(days)


def checkpoint(
    call: Call,
    *,
    target: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to; a folder that does not exist.")
    ],
    data: DataOption = None,
) -> None:
    """Make a copy of this moment beside the store, quickly.

    Both share data files on one disk: `backup` protects against its loss.

    Example: ledgerstone signing checkpoint before-upgrade
    """
    with signing_of(call, data) as signing:
        signing.create_checkpoint(target)
    output.show({"checkpoint": str(target)}, Text(f"{target}  made"), json=call.json)


def backup(
    call: Call,
    *,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of backups.")],
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, help="Keep only the newest so many."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Add a backup to a folder of backups, which share what they have in common.

    Example: ledgerstone signing backup backups --keep 7
    """
    with signing_of(call, data) as signing:
        made = signing.back_up(target, keep=keep)
    size = views.size(made.size_bytes)
    words = Text(f"backup {made.number} in {target}, {size} in {made.files:,} files")
    output.show({"folder": str(target), "backup": made}, words, json=call.json)


SourceArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A checkpoint, or a folder of backups.")
]
NumberOption = Annotated[
    int | None,
    typer.Option("--number", metavar="N", min=1, help="The backup; otherwise the newest."),
]


def verify(call: Call, source: SourceArgument, number: NumberOption = None) -> None:
    """Read every row of a checkpoint or of a backup, and report damage.

    Example: ledgerstone signing verify backups --number 3
    """
    library = settings_of(call, None).rocksdb_library
    check_extra()
    from ledgerstone.signing import upkeep

    if _is_checkpoint(source, number):
        rows = upkeep.verify(source, library_file=library)
    else:
        rows = upkeep.verify_backup(source, number, library_file=library)
    told = f"{sum(rows.values()):,} rows are whole"
    output.show({"source": str(source), "rows": rows}, Text(told), json=call.json)


def restore(
    call: Call,
    *,
    source: SourceArgument,
    number: NumberOption = None,
    data: DataOption = None,
) -> None:
    """Make the store from a checkpoint or a backup, verified; nothing is overwritten.

    Example: ledgerstone signing restore before-upgrade --data restored
    """
    settings = settings_of(call, data)
    check_extra()
    from ledgerstone.signing import upkeep

    folder, library = store_folder(settings), settings.rocksdb_library
    if _is_checkpoint(source, number):
        rows = upkeep.restore_checkpoint(source, folder, library_file=library)
    else:
        rows = upkeep.restore_backup(source, folder, number, library_file=library)
    told = f"{folder}  restored with {sum(rows.values()):,} rows"
    output.show({"folder": str(folder), "rows": rows}, Text(told), json=call.json)


def _is_checkpoint(source: Path, number: int | None) -> bool:
    from ledgerstone.signing.rocksdb import exists

    if exists(source):
        if number is not None:
            raise typer.BadParameter(f"{source} is a checkpoint, which has no --number")
        return True
    if not source.is_dir():
        raise NotFound(f"there is neither a checkpoint nor a folder of backups in {source}")
    return False


def compact(
    call: Call,
    *,
    family: Annotated[
        Family | None, typer.Option("--family", help="Only this column family.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Rewrite the data files without what was removed.

    Example: ledgerstone signing compact --family seen
    """
    with signing_of(call, data) as signing, Steps("Families", "rewritten", json=call.json) as steps:
        before = signing.disk_usage().total_bytes
        for each in [family] if family is not None else Family:
            signing.compact(each)
            steps.advance()
        after = signing.disk_usage().total_bytes
    told = f"{views.size(before)} before, {views.size(after)} now"
    facts = {"family": family, "bytes_before": before, "bytes_after": after}
    output.show(facts, told, json=call.json)


def health(call: Call, data: DataOption = None) -> None:
    """Check that the store is whole and can be written; exit 1 says that it has a problem.

    Example: ledgerstone signing health
    """
    with reading_of(call, data) as signing:
        found = signing.health_check()
        folder = signing.store.folder
    facts = {"folder": str(folder), "ok": found.ok, "health": found}
    output.show(facts, views.health(folder, found), json=call.json)
    if not found.ok:
        raise typer.Exit(EXIT_REFUSED)


def stats(
    call: Call,
    *,
    full: Annotated[bool, flag("--full", help="Add RocksDB's own words.")] = False,
    data: DataOption = None,
) -> None:
    """Show rows and bytes of each column family, as RocksDB estimates them.

    Example: ledgerstone signing stats
    """
    with reading_of(call, data) as signing:
        found, usage = signing.statistics(), signing.disk_usage()
    facts: dict[str, object] = {
        "families": found.families,
        "cache_bytes": found.cache_bytes,
        "running_compactions": found.running_compactions,
        "disk": {"log_bytes": usage.log_bytes, "total_bytes": usage.total_bytes},
    }
    if full:
        facts["text"] = found.text
    output.show(facts, views.statistics(found, usage, full=full), json=call.json)


def export(
    call: Call,
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file that does not exist; - writes stdout.")
    ],
    data: DataOption = None,
) -> None:
    """Write the whole store as JSON lines, byte for byte; secrets stay sealed.

    Example: ledgerstone signing export store.jsonl
    """
    if file == STDIN and call.json:
        raise typer.BadParameter("--json and - do not go together")
    rows = -2  # The first line names the format, the last one counts the rows.
    with (
        reading_of(call, data) as signing,
        _written(file) as stream,
        Steps("Rows", "written", json=call.json) as steps,
    ):
        for line in signing.export_lines():
            stream.write(f"{line}\n")
            rows += 1
            steps.advance()
    if file != STDIN:
        words = Text(f"{file}  written with {rows:,} rows")
        output.show({"file": file, "rows": rows}, words, json=call.json)


@contextmanager
def _written(file: str) -> Iterator[TextIO]:
    """Stdout, or a new file that only its owner reads, and that has its name only when whole."""
    if file == STDIN:
        yield sys.stdout
        return
    path = Path(file)
    unfinished = path.with_name(f"{path.name}.unfinished")
    if path.exists():
        raise NotAllowedNow(f"{path} exists", hint="name a file that does not")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def import_(
    call: Call,
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What `export` wrote; - reads stdin.")
    ],
    data: DataOption = None,
) -> None:
    """Store what `export` wrote; rows that are there already are skipped.

    Example: ledgerstone signing import store.jsonl --data other
    """
    with (
        _opened(file) as stream,
        signing_of(call, data, make=True) as signing,
        Steps("Rows", "read", json=call.json) as steps,
    ):

        def counted() -> Iterator[str]:
            for line in _lines(stream, signing.settings.value_bytes_max):
                steps.advance()
                yield line

        found = signing.import_lines(counted())
    facts = {"stored": found.stored, "same": found.same}
    told = f"{found.stored:,} rows stored, {found.same:,} were there"
    output.show(facts, told, json=call.json)


def _lines(stream: TextIO, value_bytes_max: int) -> Iterator[str]:
    """The lines of an export; Malformed if one is longer than any that can be stored."""
    chars_max = 2 * value_bytes_max + LINE_REST_CHARS_MAX
    for line in iter(partial(stream.readline, chars_max + 1), ""):
        if len(line) > chars_max:
            raise Malformed(f"a line of the file has more than {chars_max:,} characters")
        yield line


def _opened(file: str) -> TextIO:
    """The lines of a file; bytes that are no text are told by the line that holds them."""
    if file == STDIN:
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")
        return sys.stdin
    try:
        return Path(file).open(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {file}") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from error

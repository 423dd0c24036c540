"""Bars for long work: how much is done, how fast, and how long it takes yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ledgerstone.console import output

Bar = AbstractContextManager[Callable[[int], None]]
"""Its block gets a function, which is told how much is done."""


def byte_bar(words: str, size: int | None, *, json: bool) -> Bar:
    """A bar for bytes; on a terminal it is shown, on stderr."""
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return _bar(words, size, columns, json=json)


def count_bar(words: str, count: int | None, *, json: bool) -> Bar:
    """A bar for things that are counted; on a terminal it is shown, on stderr."""
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return _bar(words, count, columns, json=json)


@contextmanager
def _bar(
    words: str, total: int | None, columns: tuple[ProgressColumn, ...], *, json: bool
) -> Iterator[Callable[[int], None]]:
    console = output.console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=json or not console.is_terminal,
    ) as progress:
        # Until the first of it is done the bar only moves: a file may be hashed before.
        task = progress.add_task(output.visible(words), total=None)
        yield lambda done: progress.update(task, completed=done, total=total)

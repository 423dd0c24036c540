"""A bar for events on their way: how many, how fast, and how long it takes yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ledgerstone.console import output


@contextmanager
def bar(words: str, count: int | None, *, json: bool) -> Iterator[Callable[[int], None]]:
    """Answers what is told how many are done; it is shown on a terminal, on stderr."""
    console = output.console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=json or not console.is_terminal,
    ) as progress:
        task = progress.add_task(output.visible(words), total=count)
        yield lambda done: progress.update(task, completed=done)

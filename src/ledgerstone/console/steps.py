"""Long work in steps, each a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ledgerstone.console import output

STEPS_MAX = 10_000
"""Steps of one call: while others go on delivering there would be no end."""


def removed_in_steps(
    step: Callable[[], int], words: str, *, json: bool, verb: str = "removed"
) -> int:
    """Call it until it does nothing more, so often at most; how many it were.

    On a terminal it is shown.
    """
    console = output.console()
    removed = 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} " + verb),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=json or not console.is_terminal,
    ) as progress:
        # How many there are nobody has counted: the bar shows that it goes on.
        task = progress.add_task(words, total=None)
        for _ in range(STEPS_MAX):
            piece = step()
            if not piece:
                break
            removed += piece
            progress.update(task, completed=removed)
    return removed

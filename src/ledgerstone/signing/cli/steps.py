"""Long work in bounded steps, with a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ledgerstone.console import output

STEPS_MAX = 100_000
"""Steps of one call: while others go on there would be no end."""


class Steps:
    """A bar that shows how much is done; programs that asked for JSON, and pipes, see none."""

    def __init__(self, words: str, done: str, *, json: bool) -> None:
        console = output.console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,} " + done),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=json or not console.is_terminal,
        )
        # How much there is nobody has counted: the bar shows that it goes on.
        self._task = self._progress.add_task(words, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self._progress.advance(self._task, count)

    def through(self, step: Callable[[bytes | None], tuple[int, bytes | None]]) -> None:
        """Call `step(after)` until it has no next cursor; it answers how much it did."""
        after: bytes | None = None
        for _ in range(STEPS_MAX):
            count, after = step(after)
            self.advance(count)
            if after is None:
                return

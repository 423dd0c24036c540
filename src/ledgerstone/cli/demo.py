"""`ledgerstone demo`: the two-minute tour, told as it happens."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Self

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ledgerstone.cli.demo_protocol import chat
from ledgerstone.cli.demo_worker import DemoWorker
from ledgerstone.cli.tour import LEASE_SECONDS, WORKER_SETTINGS, Tour, TourFacts
from ledgerstone.console import output
from ledgerstone.console.call import EXIT_REFUSED, Call, flag
from ledgerstone.console.output import Console, Text
from ledgerstone.failpoints import hit
from ledgerstone.jobs import JobEvent
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings

KILL_AT, PAUSE_AT = 0.15, 0.35
SHOW_SECONDS = 0.1
EXIT_TERMINATED = 128 + signal.SIGTERM
HEADLINE = "Accept once. Do later. Prove what happened."


def demo(
    call: Call,
    items: Annotated[
        int, typer.Option("--items", min=500, max=100_000, help="How many items are accepted.")
    ] = 2000,
    workers: Annotated[
        int, typer.Option("--workers", min=3, max=16, help="How many processes work on them.")
    ] = 3,
    keep: Annotated[bool, flag("--keep", help="Keep the database, to look around in it.")] = False,
) -> None:
    """See it work: real processes, one killed, one paused; nothing lost, nothing done twice.

    On a file of its own that is gone afterwards, unless --url names a database.
    """
    console = output.console(quiet=call.json)
    with ExitStack() as stack, _undisturbed_end():
        with _uninterrupted():
            chosen = _private(call, keep=keep) if _is_private(call) else _given(call)
            settings = stack.enter_context(chosen)
        ledger = stack.enter_context(Ledger(settings=settings))
        if _is_private(call):
            ledger.migrate()
        tour = stack.enter_context(_prepared(ledger, items=items, workers=workers, keep=keep))

        def start() -> list[DemoWorker]:
            with _uninterrupted():
                return [
                    stack.enter_context(_worker(call, settings, tour.queue)) for _ in range(workers)
                ]

        console.print(Text(HEADLINE, "bold"), Text(f"{settings.url_masked}\n", "dim"), sep="\n")
        facts = _told(console, tour, start)
        if _is_private(call):
            # Its tables stay: in a database of somebody they would be left behind.
            facts = _with_events(console, ledger, facts)
        story = tour.story()
    if call.json:
        output.show_json(facts)
    console.print(numbers(facts), history(story, tour.ids), verdict(facts), sep="\n")
    if keep:
        # One line, however long, to be copied.
        console.print(Text(f"ledgerstone --url {settings.url_masked} status"), soft_wrap=True)
    if not facts.kept:
        raise typer.Exit(EXIT_REFUSED)


def _is_private(call: Call) -> bool:
    """Whether the tour makes a database of its own: no other was named."""
    return call.url is None and call.application is None


@contextmanager
def _private(call: Call, *, keep: bool) -> Iterator[Settings]:
    """A file of its own."""
    folder = Path(tempfile.mkdtemp(prefix="ledgerstone-demo-"))
    try:
        yield msgspec.structs.replace(call, url=f"sqlite:///{folder / 'ledger.db'}").settings()
    finally:
        if not keep:
            shutil.rmtree(folder)


@contextmanager
def _given(call: Call) -> Iterator[Settings]:
    """The database that the call names."""
    yield call.settings()


@contextmanager
def _prepared(ledger: Ledger, *, items: int, workers: int, keep: bool) -> Iterator[Tour]:
    """A tour in a queue of its own: its workers take nothing else, and nothing of it stays."""
    tour = Tour(ledger, items=items, workers=workers)
    try:
        yield tour
    finally:
        if not keep:
            tour.forget()


@contextmanager
def _undisturbed_end() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C does, and neither disturbs what is tidied up after it."""

    def leave(*_: object) -> None:
        sys.exit(EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A signal is obeyed at the end of the block: what was made in it is known and can be undone.

    A worker whose start was interrupted half-way would belong to nobody, and make the removed file
    anew.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _worker(call: Call, settings: Settings, queue: str) -> DemoWorker:
    config = {} if call.config is None else {"config": call.config}
    return DemoWorker(settings.url, queue, {**WORKER_SETTINGS, **config})


def _told(console: Console, tour: Tour, start: Callable[[], list[DemoWorker]]) -> TourFacts:
    """Go through the tour and tell what happens."""
    accepted = tour.accept()
    console.print(
        f"1. {accepted.items:,} jobs were accepted\n"
        f"   {accepted.duplicates:,} sent a second time were answered with the first\n"
        f"   {accepted.conflicts} with a used key and other content was refused"
    )
    hit("demo.step")
    processes = start()
    tour.began(processes)
    pids = ", ".join(str(process.pid) for process in processes)
    console.print(f"2. {len(processes)} processes work on them: {pids}")
    hit("demo.step")
    with _Bar(console, tour) as bar:
        _disturb(console, tour, processes, bar.move)
        tour.finished(bar.move)
        bar.move()
    for process in processes[1:]:
        process.terminate()
    for process in processes[1:]:
        process.wait()
    console.print("5. the work is over, and the workers have stopped\n")
    return tour.count(accepted)


def _with_events(console: Console, ledger: Ledger, facts: TourFacts) -> TourFacts:
    """Messages that arrive before what they need, by the example protocol."""
    found = chat(ledger)
    console.print(
        f"6. {found.sent} messages came twice, before the group, invite and key that they need\n"
        f"   {found.waited} waited; when all had come, {found.read} could be read, each once\n"
    )
    return msgspec.structs.replace(
        facts,
        events_waited=found.waited,
        events_applied=found.read,
        lost=facts.lost + max(found.sent - found.read, 0),
        done_twice=facts.done_twice + max(found.read - found.sent, 0),
    )


def _disturb(
    console: Console, tour: Tour, processes: list[DemoWorker], look: Callable[[], None]
) -> None:
    """Kill the first worker, pause the second one past its lease."""
    tour.reached(KILL_AT, look)
    held = tour.kill(processes[0], tour.ids[0])
    console.print(f"3. worker 1 was killed with -9 while it held {held}")
    hit("demo.step")
    tour.reached(PAUSE_AT, look)
    held = tour.pause(processes[1], tour.ids[1])
    console.print(
        f"4. worker 2 was paused while it held {held}, with a lease of {LEASE_SECONDS:g} s"
    )
    hit("demo.step")
    tour.taken_over(tour.ids[1], look)
    processes[1].resume()
    console.print("   they are due again; worker 2 goes on, and does not know that it lost them")


class _Bar:
    """How much is done, on a terminal."""

    def __init__(self, console: Console, tour: Tour) -> None:
        self._tour = tour
        self._moved_at = 0.0
        self._progress = Progress(
            TextColumn("   done"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.quiet,
        )
        self._task = self._progress.add_task("done", total=tour.items)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def move(self) -> None:
        """To where the work is; not more often than one sees."""
        if time.monotonic() >= self._moved_at + SHOW_SECONDS:
            self._moved_at = time.monotonic()
            self._progress.update(self._task, completed=self._tour.done())


_WORDS = {
    "accepted": "accepted",
    "duplicates_answered": "duplicates answered",
    "conflicts_refused": "conflicts refused",
    "done": "done",
    "rescued_after_kill": "rescued after the kill",
    "rescued_after_pause": "rescued from the paused worker",
    "late_settlements_refused": "late settlements refused",
    "lost": "lost",
    "done_twice": "done twice",
    "events_waited": "events waited for a key",
    "events_applied": "events applied",
}


def numbers(facts: TourFacts) -> RenderableType:
    """The result of the tour, as a table for people."""
    table = output.table("Read from the database", "", "items", numbers=("items",))
    for name, count in msgspec.structs.asdict(facts).items():
        promised = name in {"lost", "done_twice"}
        style = ("bold red" if count else "bold green") if promised else ""
        table.add_row(Text(_WORDS[name], style), Text(f"{count:,}", style))
    return Group(table, "")


def history(story: list[JobEvent], workers: list[str]) -> RenderableType:
    """The history of one item."""
    if not story:
        return "no item was rescued this time"
    names = {worker: f"worker {number}" for number, worker in enumerate(workers, start=1)}
    table = output.table(
        "The story of one of them",
        "after",
        "attempt",
        "from",
        "to",
        "by",
        "why",
        numbers=("after",),
    )
    for event in story:
        reason = str(event.detail.get("reason") or event.detail.get("refused") or "")
        for worker, name in names.items():
            reason = reason.replace(worker, name)
        table.add_row(
            f"{(event.ts - story[0].ts).total_seconds():.2f} s",
            str(event.detail.get("attempt", "")),
            event.prev_status or "",
            event.next_status,
            names.get(event.detail.get("worker", ""), ""),
            Text(reason),
        )
    return Group(table, "")


def verdict(facts: TourFacts) -> str:
    """The last line."""
    if facts.kept:
        return "[bold green]nothing lost, nothing done twice[/]"
    return f"[bold red]{facts.lost} lost, {facts.done_twice} done twice: this is a defect[/]"

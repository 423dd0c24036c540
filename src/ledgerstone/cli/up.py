"""`ledgerstone up`: everything in one process, until it is told to stop.

The first Ctrl-C or SIGTERM: no more is claimed, handlers finish within the grace period, the rest
is returned with its attempt refunded. The second: everything is returned at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol, assert_never

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ledgerstone import __version__, chores
from ledgerstone.cli import logs, output
from ledgerstone.cli.call import Call
from ledgerstone.cli.status import chores_of
from ledgerstone.engine.source import Claim, Handler, Source
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import LedgerstoneError
from ledgerstone.ledger import Ledger

LOOK_SECONDS = 1.0
SAY_SECONDS = 5.0
"""Without a terminal, changes are said at most so often."""

_log = logging.getLogger("ledgerstone.up")


class UpState(Enum):
    """How far it is."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class UpFacts(msgspec.Struct, frozen=True):
    """What one process does and did since it began."""

    url: str
    worker: str
    sources: tuple[str, ...]
    concurrency: int
    grace_seconds: float
    state: UpState
    up_ms: int
    running: int
    waiting: int
    claimed: int
    done: int
    failed: int
    returned: int
    refused: int
    prompt: bool
    trouble: str | None
    chores: dict[str, int] | None


def up(call: Call) -> None:
    """Run everything in one process: on an embedded database, or on that of the URL."""
    settings = call.settings()
    level = "DEBUG" if call.verbose else settings.log.level
    logs.to_stderr(level=level, json=settings.log.json)
    with Ledger(settings=settings) as ledger:
        chores.install(ledger.database)
        facts = serve(ledger, [chores.ChoreSource(Handler(echo))], json=call.json)
    if call.json:
        output.show_json(facts)


def echo(claim: Claim) -> Any:
    """The handler of chores: its result is the body."""
    return msgspec.json.decode(claim.body)


def serve(ledger: Ledger, sources: Sequence[Source], *, json: bool = False) -> UpFacts:
    """Work and show it, until a signal comes or an error that waiting cannot help."""
    worker = ledger.worker(*sources)
    observer = _Observer(ledger, worker)
    console = output.console()
    showing: _Show = _Screen(console) if console.is_terminal and not json else _Lines()
    with showing:

        def look(stopping: bool) -> None:
            showing.show(observer.look(UpState.STOPPING if stopping else UpState.RUNNING))

        worker.run(look=look, look_seconds=LOOK_SECONDS)
        last = observer.look(UpState.STOPPED)
        showing.show(last)
    return last


class _Observer:
    """Looks at a worker and at its database."""

    def __init__(self, ledger: Ledger, worker: Worker) -> None:
        self._ledger = ledger
        self._worker = worker
        self._began = time.monotonic()
        self._chores: dict[str, int] | None = None

    def look(self, state: UpState = UpState.RUNNING) -> UpFacts:
        report = self._worker.report()
        tallies = [pump.tally for pump in self._worker.pumps]
        unreached = self._count_chores()
        troubles = [tally.trouble for tally in tallies if tally.trouble]
        return UpFacts(
            url=self._ledger.settings.url_masked,
            worker=self._worker.id,
            sources=tuple(report.sources),
            concurrency=self._ledger.settings.engine.concurrency,
            grace_seconds=self._ledger.settings.engine.grace_seconds,
            state=state,
            up_ms=round((time.monotonic() - self._began) * 1000),
            running=report.running,
            waiting=report.waiting,
            claimed=sum(tally.claimed for tally in tallies),
            done=sum(tally.done for tally in tallies),
            failed=sum(tally.failed for tally in tallies),
            returned=sum(tally.returned for tally in tallies),
            refused=sum(tally.refused for tally in tallies),
            prompt=report.prompt,
            trouble=output.one_line(next(iter(troubles), unreached)),
            chores=self._chores,
        )

    def _count_chores(self) -> str | None:
        """Count them; if the database is out of reach, what it says, and the last count stands."""
        try:
            with self._ledger.reading() as tx:
                self._chores = chores_of(tx)
        except LedgerstoneError as error:
            return f"{error.code}: {error.message}"
        return None


class _Show(Protocol):
    """Shows facts as they change."""

    def __enter__(self) -> object: ...

    def __exit__(self, *raised: object) -> None: ...

    def show(self, facts: UpFacts) -> None: ...


class _Lines:
    """Log lines: one at the start, one at the end, and some when something has changed."""

    def __init__(self) -> None:
        self._said: UpFacts | None = None
        self._said_at = 0.0

    def __enter__(self) -> object:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to put back."""

    def show(self, facts: UpFacts) -> None:
        before, now = self._said, time.monotonic()
        if before is None:
            _log.info(
                "up: ledgerstone %s on %s does %s, %d at a time, as worker %s; SIGTERM stops it",
                *(
                    __version__,
                    facts.url,
                    ", ".join(facts.sources),
                    facts.concurrency,
                    facts.worker,
                ),
            )
            if facts.state is not UpState.RUNNING:
                # A signal came while it began.
                self._say_state(facts)
        elif facts.state is not before.state:
            self._say_state(facts)
        elif facts.trouble != before.trouble:
            if facts.trouble:
                _log.warning("trouble: %s", facts.trouble)
            else:
                _log.info("the trouble is over")
        elif _counts(facts) != _counts(before) and now >= self._said_at + SAY_SECONDS:
            _log.info("%s; running %d, waiting %d", _counts(facts), facts.running, facts.waiting)
            self._said_at = now
        else:
            return
        self._said = facts

    @staticmethod
    def _say_state(facts: UpFacts) -> None:
        if facts.state is UpState.STOPPED:
            _log.info("stopped after %s: %s", output.lasting(facts.up_ms), _counts(facts))
        else:
            _log.info(
                "stopping: %d running, for at most %g s; a second signal returns them at once",
                *(facts.running, facts.grace_seconds),
            )


def _counts(facts: UpFacts) -> str:
    return (
        f"done {facts.done}, failed {facts.failed},"
        f" returned {facts.returned}, refused {facts.refused}"
    )


class _Screen:
    """A live screen; what is logged meanwhile scrolls above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=True)
        self._before = (0, 0)

    def __enter__(self) -> object:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def show(self, facts: UpFacts) -> None:
        up_ms, done = self._before
        self._before = facts.up_ms, facts.done
        rate = (facts.done - done) * 1000 / max(facts.up_ms - up_ms, 1)
        self._live.update(screen(facts, per_second=rate), refresh=True)


def screen(facts: UpFacts, *, per_second: float) -> RenderableType:
    """The facts as people see them."""
    rows: dict[str, RenderableType] = {
        "database": Text(facts.url),
        "worker": f"{output.short(facts.worker)}, up {output.lasting(facts.up_ms)}",
        "sources": ", ".join(facts.sources),
    }
    if facts.state is not UpState.STOPPED:
        work = f"{facts.running} running of {facts.concurrency}, {facts.waiting} waiting"
        rows["wake-ups"] = "at once" if facts.prompt else "by polling"
        rows["work"] = f"{work}, [bold]{per_second:,.0f}[/] done per second"
    rows["so far"] = Text(_counts(facts))
    if facts.chores is not None:
        rows["chores"] = ", ".join(f"{name} {count:,}" for name, count in facts.chores.items())
    if facts.trouble:
        rows["trouble"] = Text(facts.trouble, "red")
    return Group(f"[bold]Ledgerstone {__version__}[/]  {_state(facts)}", output.pairs(rows))


def _state(facts: UpFacts) -> str:
    match facts.state:
        case UpState.RUNNING:
            return "[green]running[/]  [dim]Ctrl-C stops it[/]"
        case UpState.STOPPING:
            return "[yellow]stopping[/]  [dim]Ctrl-C again returns what runs at once[/]"
        case UpState.STOPPED:
            return "[dim]stopped[/]"
        case _:
            assert_never(facts.state)

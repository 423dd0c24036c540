"""The crash contract of messaging: real processes, killed at random, and what the database says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pytest

from ledgerstone.errors import StoreBusy
from ledgerstone.ledger import Ledger
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.harness import drivers
from tests.harness.ledgers import opened
from tests.harness.processes import WorkerProcess, stopped
from tests.harness.sizes import sized
from tests.harness.traffic import install, publish

MESSAGES_FEW = 120
ACCOUNTS_FEW = 7
MESSAGES = sized(800, full=10_000)
ACCOUNTS = sized(40, full=200)
PUBLISHERS = 4
KILLS = sized(4, full=6)
TRAFFIC = "tests.harness.traffic"
SOON = {
    "engine_lease_seconds": 2,
    "engine_rescue_seconds": 1,
    "engine_grace_seconds": 5,
    # The test kills relays: three deaths while they hold one lane would park it for people.
    "engine_crashes_max": 100,
    "engine_breaker_cooldown_seconds": 0.5,
    "store_slow_statement_ms": 60_000,
    # What stands still in the middle of a handler's transaction holds on to the message.
    "store_transaction_idle_seconds_max": 3,
    "store_pool_size_max": 20,
}

FAILPOINTS = [
    "relay.sent=kill@3",
    "relay.marked=kill@1",
    "inbox.receipt=kill@20",
    "inbox.handled=kill@20",
    "pump.settled=kill@1",
    "relay.sent=stop@3",
]

Start = Callable[..., WorkerProcess]


@pytest.mark.torture
class TrafficContract:
    """What holds of messages when relays die. Fixtures: `ledger` and the `home` it is on."""

    @pytest.mark.parametrize("failpoint", FAILPOINTS)
    def test_killed_at(self, ledger: Ledger, home: Home, failpoint: str) -> None:
        """A relay that dies or stands still at any step: nothing lost, doubled or out of order."""
        install(ledger, ACCOUNTS_FEW)
        publish(ledger, count=MESSAGES_FEW, accounts=ACCOUNTS_FEW, seed=1)

        with processes(home.url, {}) as start:
            victim = start("carry", LOCAL, failpoint=failpoint)
            until(lambda: not victim.alive or stopped(victim), what=failpoint)
            if victim.alive and ledger.database.dialect.one_writer:
                until(lambda: _lets_others_write(victim, home), what="a place outside")
            start("carry", LOCAL)
            until(lambda: effects(home.url) >= MESSAGES_FEW, what="all effects")

        assert judged(home.url) == SendResult(MESSAGES_FEW, 0, 0, 0, [])


def _lets_others_write(victim: WorkerProcess, home: Home) -> bool:
    """Whether it stands still outside of transactions; if not, it goes on for a moment."""
    try:
        # Opening it may write, too.
        with opened(home.url, store={"busy_timeout_seconds": 1}) as look, look.transaction():
            return True
    except StoreBusy:
        victim.resume()
        victim.pause()
        return False


class Executor(msgspec.Struct):
    """Processes of one kind that are replaced when they are killed."""

    start: Callable[[], WorkerProcess]
    members: list[WorkerProcess]

    def kill_one(self, dice: random.Random) -> None:
        """Kill one of them with -9 and start another."""
        number = dice.randrange(len(self.members))
        self.members[number].kill()
        self.members[number] = self.start()


class SendResult(msgspec.Struct, frozen=True):
    """What is wrong with the effects: nothing, if the promises were kept."""

    committed: int
    missing: int
    twice: int
    unfounded: int
    out_of_order: list[str]


def survive_kills(
    ledger: Ledger,
    url: str,
    *,
    carriers: tuple[str, ...],
    subscription: str | None,
    settings: Mapping[str, object],
    disturb: Callable[[], None] = lambda: None,
    messages: int = MESSAGES,
    seed: int = 1,
) -> SendResult:
    """Four publish, two carry, two consume; who carries and consumes is killed again and again.

    `disturb` is called twice in between.
    """
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
    install(ledger, ACCOUNTS)
    with processes(url, settings) as start:
        crews = [_executor(lambda: start("carry", *carriers))]
        if subscription is not None:
            crews.append(_executor(lambda: start("consume", subscription)))
        each = ("--count", str(messages // PUBLISHERS), "--accounts", str(ACCOUNTS))
        publishers = [
            start("publish", *each, "--seed", str(seed * 100 + i), says_ready=False)
            for i in range(PUBLISHERS)
        ]
        for kill in range(KILLS):
            part = messages * (kill + 1) // (KILLS + 2)
            _until_effects(
                url, part, [*publishers, *(one for executor in crews for one in executor.members)]
            )
            for executor in crews:
                executor.kill_one(dice)
            if kill in {1, 3}:
                disturb()
        for publisher in publishers:
            publisher.report()
        _until_effects(url, messages, [one for executor in crews for one in executor.members])
    return judged(url)


def _until_effects(url: str, count: int, busy: list[WorkerProcess]) -> None:
    def enough() -> bool:
        for process in busy:
            assert process.exit_code in {None, 0}, process.complaints
        return effects(url) >= count

    until(enough, what=f"{count} effects")


def effects(url: str) -> int:
    """How many effects there are."""
    return int(_rows(url, "SELECT COUNT(*) FROM account_effect")[0][0])


def judged(url: str) -> SendResult:
    """Compare what was committed with what took effect, by the database alone."""
    committed = {str(row[0]) for row in _rows(url, "SELECT ticket FROM account_change")}
    taken = _rows(url, "SELECT ticket, name, version FROM account_effect ORDER BY number")
    tickets = [str(row[0]) for row in taken]
    last: dict[str, int] = {}
    out_of_order = []
    for _, name, version in taken:
        if version != last.get(name, 0) + 1:
            out_of_order.append(f"{name}: {version} after {last.get(name, 0)}")
        last[name] = version
    return SendResult(
        committed=len(committed),
        missing=len(committed - set(tickets)),
        twice=len(tickets) - len(set(tickets)),
        unfounded=len(set(tickets) - committed),
        out_of_order=out_of_order,
    )


@contextmanager
def processes(url: str, settings: Mapping[str, object]) -> Iterator[Start]:
    """Starts processes of traffic; all are gone at the end."""
    with ExitStack() as stack:

        def start(
            *arguments: str, says_ready: bool = True, failpoint: str | None = None
        ) -> WorkerProcess:
            process = WorkerProcess(
                url,
                program=TRAFFIC,
                settings=SOON | dict(settings),
                failpoint=failpoint,
                arguments=arguments,
            )
            stack.enter_context(process)
            # One that is to die may do so before it can say anything.
            if says_ready and failpoint is None:
                process.ready()
            return process

        yield start


def _executor(start: Callable[[], WorkerProcess]) -> Executor:
    return Executor(start, [start(), start()])


def _rows(url: str, query: str) -> list[tuple[Any, ...]]:
    connection = drivers.connect(url)
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        return list(cursor.fetchall())
    finally:
        connection.close()

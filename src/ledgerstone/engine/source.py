"""The contract of a source of work: its claims, their outcomes, and the handlers that run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from ledgerstone.ids import new_id

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


T = TypeVar("T")


class Claim(msgspec.Struct, frozen=True):
    """One item, claimed by one worker for one attempt.

    - `key` names the item; `attempt` counts from 1.
    - `token` is the fencing token: every later write of this claim compares it. Each claim and each
      rescue raises it, and it never goes back, also when an attempt is refunded.
    - `body` is the content of the item; `target` what its handler calls, for the circuit breaker.
    - `timeout_seconds` limits the attempt.
    - `crashes` counts the workers that died while they held the item.
    """

    key: str
    attempt: int
    token: int
    body: str = ""
    target: str | None = None
    timeout_seconds: float | None = None
    crashes: int = 0

    @property
    def mark(self) -> str:
        """The name of this claim in the row of its worker."""
        return mark_of(self.key, self.token)

    @property
    def title(self) -> str:
        """The name of this claim in log lines."""
        return f"{self.key}, attempt {self.attempt}"

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left if the worker dies with this one."""
        return False


def mark_of(key: object, token: int) -> str:
    """The mark of a claim on this item."""
    return f"{key} {token}"


class OutcomeKind(Enum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    """The attempt counts; the item is due again after a back-off, or dead if none is left."""
    DEAD = "dead"
    """Failed, with no further attempt."""
    SNOOZED = "snoozed"
    """The handler asked for a later attempt; this one is refunded."""
    CANCELED = "canceled"
    RETURNED = "returned"
    """Ended for another reason (shutdown, target down); the attempt is refunded."""


class Failure(msgspec.Struct, frozen=True):
    """An error, as it is stored and shown. `crashed`: the process of the handler died."""

    code: str
    message: str
    traceback: str | None = None
    crashed: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """How the attempt of a claim ended.

    - `verdict` says how; `result` is the return value as JSON text, `failure` the error.
    - `delay_seconds`: when the item is due again; None leaves that to the back-off of the source.
    """

    claim: Claim
    verdict: OutcomeKind
    result: str | None = None
    failure: Failure | None = None
    delay_seconds: float | None = None


class Batch(Claim, frozen=True, eq=False):
    """The claims of several items, for one call of a handler.

    - `settle` settles one item while the handler still runs.
    - The return value or error of the handler is the outcome of every item that is still open.
    """

    items: tuple[Claim, ...] = ()
    open: dict[str, Claim] = {}
    report: Callable[[Outcome], None] = lambda _: None

    @classmethod
    def of(
        cls, items: Sequence[Claim], report: Callable[[Outcome], None] = lambda _: None
    ) -> Batch:
        """A batch of these items, at least one; `settle` passes its outcomes to `report`."""
        return cls(
            new_id(),
            1,
            0,
            target=items[0].target,
            items=tuple(items),
            open={item.key: item for item in items},
            report=report,
        )

    @property
    def title(self) -> str:
        return f"a batch of {len(self.items)}"

    def settle(self, outcome: Outcome) -> None:
        """Settle one item now; does nothing if the item is settled already."""
        # One atomic step: the engine may abandon the handler at the same moment.
        if self.open.pop(outcome.claim.key, None) is not None:
            self.report(outcome)

    def rest(self, outcome: Outcome) -> list[Outcome]:
        """The same outcome for each item that is still open, which closes it."""
        taken = [item for item in self.items if self.open.pop(item.key, None) is not None]
        return [msgspec.structs.replace(outcome, claim=item) for item in taken]


LONG_CALL_SECONDS = 1.0
"""After this time the handler call of a batch counts as long."""


class Batches(msgspec.Struct, frozen=True):
    """The limits of a source whose handler takes batches."""

    calls_max: int
    """How many handler calls run at once, not counting long ones."""
    long_calls_max: int
    """How many further calls may begin in place of calls that run longer than LONG_CALL_SECONDS: a
    slow item delays only its own call."""
    call_items_max: int
    """How many items one call takes."""
    items_max: int
    """How many items are claimed and not settled."""

    @property
    def places(self) -> int:
        """How many handler calls run at once at most."""
        return self.calls_max + self.long_calls_max


class NotSettled(msgspec.Struct, Generic[T], frozen=True):
    """The claims of a batch that were not written; the others are, by this call or an earlier one.

    - `lost`: the claim is not held any more. Its item was not changed, and the refusal is recorded.
    - `locked`: another transaction has locked the item. Try again.
    """

    lost: Sequence[T] = ()
    locked: Sequence[T] = ()


class Snooze(msgspec.Struct, frozen=True):
    """Returned by a handler: run the item again in so many seconds; 0 or less means one second."""

    seconds: float


class Cancel(msgspec.Struct, frozen=True):
    """Returned by a handler: the item need not be done any more."""

    reason: str = ""


class Settled(msgspec.Struct, frozen=True):
    """Returned by a handler that has settled its claim in a transaction of its own."""


class Ask(msgspec.Struct, frozen=True):
    """How much a worker claims: at most `limit` items, each for `lease_seconds`, as `worker`."""

    limit: int
    worker: str
    lease_seconds: float
    avoid: frozenset[str] = frozenset()
    """Targets that are down: claims for them would be returned."""


class ExecutorKind(Enum):
    """Where a handler runs."""

    THREAD = "thread"
    LOOP = "loop"
    PROCESS = "process"


class Handler(msgspec.Struct, frozen=True):
    """Runs a claim.

    - `call` is called with the claim; if `atomic`, with a transaction and the claim: the writes of
      the handler and the settlement are then one commit.
    - The handler of a source with `batches` is called with a `Batch`, and is not atomic.
    - `where`: thread, event loop or process. A process must be able to import the function.
    """

    call: Callable[..., object]
    where: ExecutorKind = ExecutorKind.THREAD
    atomic: bool = False
    gives_up: Callable[[BaseException], bool] | None = None
    """Whether an item is dead at once after an error; None: only after Hopeless."""


class Source(Protocol):
    """A kind of work in the worker's database. Its methods write in the transaction that they get.

    - `name` names the source in reports. Commits that make an item due wake `channel`.
    - `claim` claims at most `limit` due items; an item has one claim at a time, until its lease
      expires.
    - `settle` writes outcomes, and waits for no lock. It answers the claims that are no longer held
      (nothing is changed, and the refusal is recorded) and those whose item is locked (the engine
      tries them again). A claim that has settled the same before counts as settled. `waits`: the
      claim is settled in the transaction of its handler, and waits for a locked row.
    - `extend` renews the leases of claims that are held, in the same way.
    - `rescue` makes at most `limit` items of expired claims due again. An item with `crashes_max`
      crashes is dead. If it is known not to have begun (`LastHeartbeat.waited`), neither a crash
      nor an attempt is counted.
    - `handler` answers the handler of a claim.

    A source may have more:

    - `close` is called when its worker has stopped: it closes connections and ends threads. Another
      worker may use the source later.
    - `due_seconds` answers when the engine should claim again without a wake-up.
    - `held_by` answers the claims that a worker holds: a worker asks it after a commit whose answer
      was lost.
    - `batches`: the items of one `claim` go to one handler call, and capacity counts items. Each
      item is settled, extended and rescued by itself.
    """

    @property
    def name(self) -> str: ...

    @property
    def channel(self) -> str: ...

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]: ...

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]: ...

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]: ...

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int: ...

    def handler(self, claim: Claim) -> Handler: ...


class ExchangeResult(NamedTuple):
    """The answer of an exchange: new claims, and the outcomes that were not settled."""

    claims: Sequence[Claim]
    left: NotSettled[Outcome]


@runtime_checkable
class Work(Protocol):
    """A kind of work as a pump moves it, wherever it is stored.

    `engine.transactional` makes one of a `Source`; the deliveries of a broker are one without a
    database.

    - `exchange` settles outcomes, and claims if `ask` is given. With `one_writer` one thread passes
      both; otherwise two threads call it, each for one of them.
    - `extend` renews the leases of claims, as that of a `Source`.
    - `due_seconds` answers when to claim again without a wake-up.
    - `local`: due items wait in this process, claimed or not, so that all of them are claimed.
    - `places` is how many handlers run at once; None: `engine.concurrency`.
    - `start` begins to look for work, if that has to be started. After `stop` nothing is claimed,
      and outcomes still come. After `close` nothing comes, and resources are released.
    """

    @property
    def name(self) -> str: ...

    @property
    def channel(self) -> str: ...

    @property
    def one_writer(self) -> bool: ...

    @property
    def local(self) -> bool: ...

    @property
    def places(self) -> int | None: ...

    def start(self) -> None: ...

    def exchange(self, outcomes: Sequence[Outcome], ask: Ask | None) -> ExchangeResult: ...

    def extend(self, claims: Sequence[Claim], lease_seconds: float) -> NotSettled[Claim]: ...

    def due_seconds(self) -> float: ...

    def handler(self, claim: Claim) -> Handler: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


def batches_of(source: Source | Work) -> Batches | None:
    """How the source is handled in batches, if it is."""
    found: Batches | None = getattr(source, "batches", None)
    return found

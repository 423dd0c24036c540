"""What the pump moves: a source of work, a claim on one item of it, and how the item came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from ledgerstone.ids import new_id

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


T = TypeVar("T")


class Claim(msgspec.Struct, frozen=True):
    """One item, taken by one worker for one attempt.

    `token` is compared by every later write of this claim; it is raised by every change of holder
    and never goes back, also when an attempt is refunded. `crashes` counts the workers that died
    with it before.
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
        """What it is called where it is on record that it begins."""
        return mark_of(self.key, self.token)

    @property
    def title(self) -> str:
        """What log lines call it."""
        return f"{self.key}, attempt {self.attempt}"

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left after this one, if its worker dies."""
        return False


def mark_of(key: object, token: int) -> str:
    """The mark of a claim on this item."""
    return f"{key} {token}"


class OutcomeKind(Enum):
    """How an item came out of an attempt."""

    DONE = "done"
    FAILED = "failed"
    """Counts as an attempt; again after a back-off, or dead when none is left."""
    DEAD = "dead"
    """Failed for good: another attempt would end the same way."""
    SNOOZED = "snoozed"
    """Again later, at the handler's wish; the attempt is refunded."""
    CANCELED = "canceled"
    RETURNED = "returned"
    """Not the item's doing (shutdown, target down); the attempt is refunded."""


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, for people and for the record."""

    code: str
    message: str
    traceback: str | None = None
    crashed: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """A claim and how it came out; `result` is JSON text."""

    claim: Claim
    verdict: OutcomeKind
    result: str | None = None
    failure: Failure | None = None
    delay_seconds: float | None = None


class Batch(Claim, frozen=True, eq=False):
    """The claims of several items, for one call of a handler.

    - `settle` tells how one item came out, while the handler still runs.
    - What the handler returns or raises is the outcome of every item that is still open.
    """

    items: tuple[Claim, ...] = ()
    open: dict[str, Claim] = {}
    report: Callable[[Outcome], None] = lambda _: None

    @classmethod
    def of(
        cls, items: Sequence[Claim], report: Callable[[Outcome], None] = lambda _: None
    ) -> Batch:
        """These items, at least one; `report` is called with what `settle` is told."""
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
        """Settle one item now; nothing happens if it is settled already."""
        # One step: the engine may give up the handler at the same moment.
        if self.open.pop(outcome.claim.key, None) is not None:
            self.report(outcome)

    def rest(self, outcome: Outcome) -> list[Outcome]:
        """The same outcome for each item that is still open; none is open afterwards."""
        taken = [item for item in self.items if self.open.pop(item.key, None) is not None]
        return [msgspec.structs.replace(outcome, claim=item) for item in taken]


LONG_CALL_SECONDS = 1.0
"""A call of a handler that takes a batch takes long after this time."""


class Batches(msgspec.Struct, frozen=True):
    """How a source is handled in batches."""

    calls_max: int
    """Handler calls at once, without those that take long."""
    long_calls_max: int
    """Further calls, in place of those that take longer than LONG_CALL_SECONDS: what waits for one
    slow item keeps no other from being claimed."""
    call_items_max: int
    """Items that one call takes."""
    items_max: int
    """Items that are claimed and not settled."""

    @property
    def places(self) -> int:
        """Handler calls at once, all of them."""
        return self.calls_max + self.long_calls_max


class NotSettled(msgspec.Struct, Generic[T], frozen=True):
    """Those of a batch that were not written: the others were, now or by the same claim before.

    - `lost` claims are no longer held: nothing of them was changed, and that is on record.
    - `locked` are those whose item another transaction has locked: to be tried again.
    """

    lost: Sequence[T] = ()
    locked: Sequence[T] = ()


class Snooze(msgspec.Struct, frozen=True):
    """Returned by a handler: not now, again in so many seconds; 0 or less is a second."""

    seconds: float


class Cancel(msgspec.Struct, frozen=True):
    """Returned by a handler: this need not be done any more."""

    reason: str = ""


class Settled(msgspec.Struct, frozen=True):
    """Returned by a handler: it has settled its claim itself, in a transaction of its own."""


class Ask(msgspec.Struct, frozen=True):
    """What a worker asks a source for."""

    limit: int
    worker: str
    lease_seconds: float
    avoid: frozenset[str] = frozenset()
    """Targets that are down: claims for them would only be returned."""


class ExecutorKind(Enum):
    """Where a handler runs."""

    THREAD = "thread"
    LOOP = "loop"
    PROCESS = "process"


class Handler(msgspec.Struct, frozen=True):
    """What runs a claim: called with the claim, or with a transaction and the claim if atomic.

    The handler of a source with `batches` is called with a `Batch`, and is not atomic.
    An atomic handler's writes and its settlement are one transaction. A handler in a process must
    be a function that can be imported there.
    """

    call: Callable[..., Any]
    where: ExecutorKind = ExecutorKind.THREAD
    atomic: bool = False
    gives_up: Callable[[BaseException], bool] | None = None
    """Whether an item is dead at once after this error; None: only after Hopeless."""


class Source(Protocol):
    """A kind of work. All its methods write inside the transaction they are given.

    - `name` names it in reports; commits that make something due notify `channel`.
    - `claim` takes at most `limit` due items, each by one worker; a claim holds for its lease.
    - `settle` writes how claims came out, and waits for no item; a claim that is no longer held
      changes nothing, is recorded, and is answered back. Settling what this same claim settled
      before is no refusal. An item that another transaction has locked is answered back too: the
      engine comes back. `waits` is for a claim that is settled in its handler's own transaction.
    - `extend` renews the lease of claims still held, in the same way.
    - `rescue` makes items of expired claims due again, a bounded number; one whose workers died
      `crashes_max` times is dead, unless its last one is known not to have begun with it
      (`LastHeartbeat.waited`): that was no crash, and no attempt.
    - `handler` answers what runs a claim.
    - A source may have `close`: its worker has stopped, and it lets go of its connections and
      threads. Another worker may use it later.
    - A source may have `due_seconds`: how long until it wants to be asked without a wake-up.
    - A source may have `held_by`: the claims that a worker holds, for one that was not told what it
      has claimed, because the answer to the commit was lost.
    - A source may have `batches`: what one `claim` answers is then handled by one call, and its
      capacity counts items. Each item is settled, extended and rescued by itself.
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
    """What a pump gets for its outcomes."""

    claims: Sequence[Claim]
    left: NotSettled[Outcome]


@runtime_checkable
class Work(Protocol):
    """What a pump moves, wherever it is kept.

    A `Source` in the worker's database is one by `engine.transacted`; what a broker delivers is one
    without a database.

    - `exchange` settles outcomes, and claims if it is asked to; `one_writer` says that both happen
      in one call, from one thread. Otherwise they come from two threads, each with its own calls.
    - `extend` renews the lease of claims, as that of a `Source`.
    - `due_seconds` says when something becomes due without a wake-up.
    - `local`: what is due waits in this process, claimed or not, so all of it is claimed at once.
    - `places` are the handlers that run at once; None: as many as `engine.concurrency` says.
    - `start` begins to look for work, where that has to be begun. After `stop` nothing is claimed,
      and outcomes still come; after `close` nothing comes, and it lets go of what it holds.
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

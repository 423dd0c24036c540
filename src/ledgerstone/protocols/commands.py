"""Commands: pure functions whose result is applied here, in one transaction.

    run_command(name, params, key)
        BEGIN ──▶ key taken before? its answer ──▶ the command reads, and answers a Result
              ──▶ envelopes in order ──▶ items of `incoming` ──▶ intents ──▶ key's answer ──▶ COMMIT

A deadlock or serialization failure runs all of it again. What a projector raises undoes all of it;
an event that has to wait is kept in `blocked`, and the command succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, assert_never, cast

import msgspec

from ledgerstone.errors import BadInput, NotFound
from ledgerstone.protocols import applying, deferred, incoming, keys, log, outgoing, rechecks
from ledgerstone.protocols.connection import Projecting, Reading
from ledgerstone.protocols.events import content_hash
from ledgerstone.protocols.protocol import Command, Protocol
from ledgerstone.protocols.results import (
    INTENTS,
    BlobAppendSlice,
    DeferredEnqueue,
    IncomingRemove,
    Intent,
    OutgoingEnqueue,
    Result,
)
from ledgerstone.store.database import Database
from ledgerstone.store.sql.json_body import encode
from ledgerstone.store.transaction import Transaction

T = TypeVar("T")
SliceKeeper = Callable[[Transaction, BlobAppendSlice], None]
Fence = Callable[[Transaction], None]
Settle = Callable[[Transaction, Result], None]
INTENTS_MAX = 10_000
"""Envelopes and intents of one result."""


class Transactions:
    """What a command is given that manages its transactions: each call of `run` is one.

    What it answers is applied in a last one.
    """

    def __init__(self, database: Database[Any], protocol: Protocol, fence: Fence | None) -> None:
        self._database = database
        self._protocol = protocol
        self._fence = fence

    def run(self, work: Callable[[Projecting], T]) -> T:
        """Runs `work(db)` in a transaction; again after a deadlock or serialization failure."""

        def fenced(tx: Transaction) -> T:
            if self._fence is not None:
                self._fence(tx)
            db = Projecting(tx, self._protocol, log.now_of(tx))
            value = work(db)
            if db.unblocked:
                rechecks.wake(tx, self._protocol.name, db.unblocked)
            return value

        return self._database.run(fenced)

    def reading(self, work: Callable[[Reading], T]) -> T:
        """`work(db)` in a transaction that only reads."""
        with self._database.reading() as tx:
            return work(Reading(tx, self._protocol.name, log.now_of(tx)))


class Commands:
    """Runs the commands of a protocol on a database."""

    def __init__(
        self,
        database: Database[Any],
        protocol: Protocol,
        *,
        bytes_max: int,
        keep_slice: SliceKeeper | None = None,
    ) -> None:
        self._database = database
        self._protocol = protocol
        self._bytes_max = bytes_max
        self._keep_slice = keep_slice

    def run(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        fence: Fence | None = None,
        settle: Settle = lambda _tx, _result: None,
    ) -> Result:
        """Run a command; with a key once, whose answer is answered again.

        - `fence` is called first in each transaction, and raises if it must not go on.
        - `settle` is called last in the transaction that applies the result.
        """
        command = self._protocol.found(name)
        given = command.bound(params or {})

        def pure(tx: Transaction) -> Result:
            result = self.run_in(tx, command, given, key, fence=fence)
            settle(tx, result)
            return result

        if not command.manages:
            return self._database.run(pure)
        if key is not None:
            message = f"{name} manages its own transactions: a key cannot be one with them"
            raise BadInput(message, hint="call it without a key")
        result = command.call(Transactions(self._database, self._protocol, fence), **given)
        checked = _checked(command, result)

        def last(tx: Transaction) -> None:
            if fence is not None:
                fence(tx)
            self._apply(tx, checked, log.now_of(tx))
            settle(tx, checked)

        self._database.run(last)
        return checked

    def run_in(
        self,
        tx: Transaction,
        command: Command,
        given: Mapping[str, Any],
        key: str | None,
        *,
        fence: Fence | None = None,
    ) -> Result:
        """The same in a transaction of the caller."""
        if fence is not None:
            fence(tx)
        protocol = self._protocol.name
        if key is not None:
            before = keys.take(tx, protocol, command.name, key, content_hash(given))
            if before is not None:
                return Result(answer=msgspec.json.decode(before))
        now = log.now_of(tx)
        result = _checked(command, command.call(Reading(tx, protocol, now), **given))
        self._apply(tx, result, now)
        if key is not None:
            words = encode(result.answer, bytes_max=self._bytes_max, as_text=True)
            keys.answer(tx, protocol, command.name, key, words)
        return result

    def _apply(self, tx: Transaction, result: Result, now: int) -> None:
        for number, envelope in result.per_item:
            envelope.check()
            if incoming.remove(tx, self._protocol.name, number):
                applying.place(tx, self._protocol, envelope, now)
        for envelope in result.envelopes:
            envelope.check()
            applying.place(tx, self._protocol, envelope, now)
        for intent in result.intents:
            self._carry_out(tx, intent)

    def _carry_out(self, tx: Transaction, intent: Intent) -> None:
        protocol = self._protocol.name
        match intent:
            case IncomingRemove(number):
                incoming.remove(tx, protocol, number)
            case OutgoingEnqueue():
                outgoing.enqueue(tx, protocol, intent, bytes_max=self._bytes_max)
            case DeferredEnqueue():
                deferred.enqueue(tx, protocol, intent)
            case BlobAppendSlice():
                if self._keep_slice is None:
                    raise NotFound("this ledger keeps no files", hint="it has no room for blobs")
                self._keep_slice(tx, intent)
            case _:
                assert_never(intent)


def _checked(command: Command, result: object) -> Result:
    """What the command answered, if it is a result with wishes that are allowed."""
    if result is None:
        return Result()
    if not isinstance(result, Result):
        message = f"{command.name} answered {type(result).__name__}, and not a Result"
        raise BadInput(message, hint="a command is pure: it answers what shall happen")
    for intent in cast("Sequence[object]", result.intents):
        if not isinstance(intent, INTENTS):
            allowed = ", ".join(each.__name__ for each in INTENTS)
            message = f"{command.name} wishes for {type(intent).__name__}"
            raise BadInput(message, hint=f"allowed are {allowed}")
    if len(result.envelopes) + len(result.per_item) + len(result.intents) > INTENTS_MAX:
        raise BadInput(f"{command.name} answered more than {INTENTS_MAX} envelopes and intents")
    return result

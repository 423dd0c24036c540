"""An atomic handler: its writes and its settlement are one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.cancellation import current
from ledgerstone.engine import outcomes
from ledgerstone.engine.source import (
    Claim,
    ExecutorKind,
    Handler,
    Outcome,
    OutcomeKind,
    Source,
    Work,
)
from ledgerstone.errors import LeaseLost, NotAllowedNow, StoreBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction


class Committed(msgspec.Struct, frozen=True):
    """The claim is settled: by a transaction of the handler, with this outcome."""

    outcome: Outcome


def run_atomic(
    claim: Claim,
    handler: Handler,
    *,
    database: Database[Any],
    source: Source | Work,
    bytes_max: int,
) -> Committed | outcomes.ResultNotStorable:
    """Run the handler in a transaction and settle its claim in the same transaction.

    Raises the error of the handler, or the reason if it was told to stop; then the transaction is
    rolled back.
    """
    if isinstance(source, Work):
        raise NotAllowedNow(f"{source.name} is settled in no transaction of a handler")
    cancellation = current()
    in_handler = False

    def work(tx: Transaction) -> Outcome:
        nonlocal in_handler
        cancellation.open_gate()
        in_handler = True
        value = _called(handler, tx, claim)
        in_handler = False
        outcome = outcomes.of_value(claim, value, bytes_max=bytes_max)
        if outcome.verdict is OutcomeKind.FAILED:
            raise outcomes.ResultNotStorable(outcome)
        cancellation.close_gate()
        if source.settle(tx, [outcome], waits=True).lost:
            raise LeaseLost(f"the lease of attempt {claim.attempt} ran out")
        return outcome

    try:
        return Committed(database.run(work))
    except BaseException as error:
        cancellation.open_gate()
        if isinstance(error, outcomes.ResultNotStorable):
            return error
        if isinstance(error, StoreBusy | StoreUnavailable) and not in_handler:
            # The transaction could not begin, settle or commit: no failure of the item.
            rest = outcomes.REST_SECONDS
            return outcomes.ResultNotStorable(outcomes.returned(claim, error, delay_seconds=rest))
        raise


def _called(handler: Handler, tx: Transaction, claim: Claim) -> Any:
    if handler.where is ExecutorKind.LOOP:
        return run_coroutine(handler.call, tx, claim)
    return handler.call(tx, claim)


def run_coroutine(call: Callable[..., Any], *arguments: Any) -> Any:
    """Run an async handler to its end on a loop of its own."""
    import asyncio

    return asyncio.run(call(*arguments))

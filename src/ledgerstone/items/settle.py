"""Settlements: held items make their moves, and the status of each claim is returned.

    token of this claim ─┬─ held ─────────▶ SETTLED     moved, with a row of history
                         └─ not held ─┬───▶ BEFORE      this claim settled the item already
                                      └───▶ LOST        the item was returned; it is due again
    token of another claim ───────────────▶ LOST        not changed; the refusal is recorded
    locked by another transaction ────────▶ LOCKED      not changed; the engine retries
    no row ───────────────────────────────▶ DELETED

A batch waits for no row, and one row does not fail the batch. A settlement in the transaction of
the handler (`waits`) waits for the lock of its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import null, update

from ledgerstone.engine.source import Claim, NotSettled, OutcomeKind
from ledgerstone.items.claim import ItemClaim, lease_until
from ledgerstone.items.declaration import Items, Refusal
from ledgerstone.items.moves import MoveStatement, Step
from ledgerstone.store.sql.locked_rows import CHANGED, ChangeEach, LockedRow, as_words
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class ClaimStatus(Enum):
    """The state of a claim, found when it was settled or extended."""

    SETTLED = "settled"
    BEFORE = "settled by this claim before"
    LOST = "lost"
    LOCKED = "locked"
    DELETED = "deleted"


_GONE = {ClaimStatus.LOST, ClaimStatus.DELETED}


class SettleResult(NamedTuple):
    """The status of a claim after a settlement.

    `step` is the last step that was made; `state` is the state of an item that was not changed.
    """

    status: ClaimStatus
    state: str | None = None
    step: Step | None = None


class EndedClaim(NamedTuple):
    """A claim whose attempt has ended, the step of its item, and the kind of outcome."""

    claim: Claim
    step: Step
    verdict: OutcomeKind | None = None


class Settle:
    """Settles claims on items of a table."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def run(
        self,
        tx: Transaction,
        ended: Sequence[EndedClaim],
        *,
        worker: str | None,
        waits: bool = False,
    ) -> list[SettleResult]:
        """Make the steps of the items and record the refusals; one result for each claim.

        - `worker` is written to the history.
        - `waits`: wait for locked rows, for a settlement in the transaction of a handler.
        """
        result: list[SettleResult | None] = [None] * len(ended)
        open_steps = [(i, each.step) for i, each in enumerate(ended)]
        absent: list[int] = []
        while open_steps:
            following: list[tuple[int, Step]] = []
            for moving, some in _by_move(open_steps).items():
                rows = [
                    (*key_of(claim := ended[i].claim), claim.token, *step.row, *step.told)
                    for i, step in some
                ]
                common = {"prev": moving.prev, "next": moving.next, "worker": worker}
                found = moving.each.run(tx, rows, waits=waits, **common)
                moved: dict[int, SettleResult] = {}
                for (i, step), each in zip(some, found, strict=True):
                    if each is CHANGED:
                        if step.then is not None:
                            following.append((i, step.then))
                        # Many items of a batch share one step: share its result too.
                        result[i] = moved.get(id(step)) or moved.setdefault(
                            id(step), SettleResult(ClaimStatus.SETTLED, step=step)
                        )
                    elif each is None:
                        absent.append(i)
                    elif self._is_diverted(ended[i].claim, each) and step.otherwise is not None:
                        following.append((i, step.otherwise))
                    else:
                        result[i] = self._classed(ended[i], each)
            open_steps = following
        if absent:
            self._look_for(tx, ended, absent, result)
        settled = [each for each in result if each is not None]
        assert len(settled) == len(ended)
        self._refuse(tx, ended, settled, worker)
        return settled

    def _is_diverted(self, claim: Claim, found: LockedRow) -> bool:
        token, _, held = found.stands
        return token == claim.token and bool(held)

    def _classed(self, ended: EndedClaim, found: LockedRow) -> SettleResult:
        token, state, held = found.stands
        if token != ended.claim.token or held:
            return SettleResult(ClaimStatus.LOST, state)
        declared = self._items.state
        if declared is None or state in {each.value for each in declared.ended}:
            return SettleResult(ClaimStatus.BEFORE, state)
        led = state in ended.step.leads_to()
        return SettleResult(ClaimStatus.BEFORE if led else ClaimStatus.LOST, state)

    def _look_for(
        self,
        tx: Transaction,
        ended: Sequence[EndedClaim],
        absent: Sequence[int],
        result: list[SettleResult | None],
    ) -> None:
        """Tell rows that another transaction has locked from rows that do not exist."""
        keys = {i: key_of(ended[i].claim) for i in absent}
        there = ended[absent[0]].step.move.each.there(tx, list(keys.values()))
        for i, key in keys.items():
            if as_words(key) in there:
                result[i] = SettleResult(ClaimStatus.LOCKED)
            else:
                # If done items are deleted, this claim may have deleted its row before.
                deletes = ended[i].step.move.deletes
                result[i] = SettleResult(ClaimStatus.BEFORE if deletes else ClaimStatus.DELETED)

    def _refuse(
        self,
        tx: Transaction,
        ended: Sequence[EndedClaim],
        settled: Sequence[SettleResult],
        worker: str | None,
    ) -> None:
        history = self._items.history
        refuse = self._items.refuse if history is None else history.refuse
        if refuse is None or all(each.status is ClaimStatus.SETTLED for each in settled):
            return
        for each, found in zip(ended, settled, strict=True):
            if found.status is ClaimStatus.LOST:
                claim = each.claim
                verdict = "" if each.verdict is None else f" {each.verdict.value}"
                words = f"claim {claim.token} settled{verdict} too late"
                refuse(
                    tx,
                    Refusal(
                        key=key_of(claim),
                        attempt=claim.attempt,
                        state=found.state,
                        words=words,
                        worker=worker,
                    ),
                )


class Extend:
    """Renews the leases of claims that are still held."""

    def __init__(self, items: Items) -> None:
        self._each = ChangeEach(
            f"{items.name}.extend",
            items.table,
            key=items.key,
            fence=(items.token,),
            guard=items.is_held_by,
            change=lambda _: update(items.table).values({items.lease.name: lease_until()}),
            looks=(null(),),
        )

    def run(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> list[ClaimStatus]:
        """The status of each claim; `SETTLED` means extended."""
        rows = [(*key_of(claim), claim.token) for claim in claims]
        found = self._each.run(tx, rows, lease_ms=round(lease_seconds * 1000))
        absent = [key_of(c) for c, each in zip(claims, found, strict=True) if each is None]
        there = self._each.there(tx, absent) if absent else set()

        def classed(claim: Claim, each: LockedRow | None) -> ClaimStatus:
            if each is None:
                return (
                    ClaimStatus.LOCKED if as_words(key_of(claim)) in there else ClaimStatus.DELETED
                )
            return ClaimStatus.SETTLED if each is CHANGED else ClaimStatus.LOST

        return [classed(claim, each) for claim, each in zip(claims, found, strict=True)]


def remainder(each: Sequence[Any], settled: Sequence[SettleResult]) -> NotSettled[Any]:
    """The elements of `each` that were not written: the lost and the locked ones."""
    if all(found.status is ClaimStatus.SETTLED for found in settled):
        return NotSettled()
    pairs = list(zip(each, settled, strict=True))
    return NotSettled(
        lost=[one for one, found in pairs if found.status in _GONE],
        locked=[one for one, found in pairs if found.status is ClaimStatus.LOCKED],
    )


def key_of(claim: Claim) -> Row:
    """The key of the item of a claim."""
    return claim.parts if isinstance(claim, ItemClaim) else (claim.key,)


def _by_move(steps: Sequence[tuple[int, Step]]) -> Mapping[MoveStatement, list[tuple[int, Step]]]:
    """The steps, grouped by move, in the order of the first step of each move."""
    groups: dict[MoveStatement, list[tuple[int, Step]]] = {}
    for i, step in steps:
        groups.setdefault(step.move, []).append((i, step))
    return groups

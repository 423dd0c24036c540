"""Settlements: held items make their moves, and each claim is told how it was found.

    the token is the claim's ─┬─ held ────────────────▶ SETTLED     moved, and on record
                              └─ not held ─┬──────────▶ BEFORE      this claim settled it already
                                           └──────────▶ LOST        given back; another will do it
    the token is another's ───────────────────────────▶ LOST        nothing moved; that is on record
    another transaction has the row ──────────────────▶ LOCKED      nothing moved; to be tried again
    there is no row ──────────────────────────────────▶ DELETED

A batch waits for no row and fails for none. A claim that is settled inside a transaction of its
handler waits (`waits`): the transaction is the handler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import null, update

from ledgerstone.engine.source import Claim, NotSettled, OutcomeKind
from ledgerstone.items.claim import ItemClaim, lease_until
from ledgerstone.items.declaration import Items, Refusal
from ledgerstone.items.moves import Moving, Step
from ledgerstone.store.sql.locked_rows import CHANGED, ChangeEach, LockedRow, as_words
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class Class(Enum):
    """How a claim was found when it was to be written."""

    SETTLED = "settled"
    BEFORE = "settled by this claim before"
    LOST = "lost"
    LOCKED = "locked"
    DELETED = "deleted"


class Settled(NamedTuple):
    """How a claim was found: the last step that was made, or where its item stands instead."""

    found: Class
    state: str | None = None
    step: Step | None = None


class Ended(NamedTuple):
    """A claim, how it came out, and the step that its item is to make."""

    claim: Claim
    step: Step
    verdict: OutcomeKind | None = None


class Settle:
    """Settles the claims on items of a table."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def run(
        self,
        tx: Transaction,
        ended: Sequence[Ended],
        *,
        worker: str | None,
        waits: bool = False,
    ) -> list[Settled]:
        """Make the moves of all these, and put on record which were lost; how each was found."""
        result: list[Settled | None] = [None] * len(ended)
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
                moved: dict[int, Settled] = {}
                for (i, step), each in zip(some, found, strict=True):
                    if each is CHANGED:
                        if step.then is not None:
                            following.append((i, step.then))
                        # Many items of a batch make the same step.
                        result[i] = moved.get(id(step)) or moved.setdefault(
                            id(step), Settled(Class.SETTLED, step=step)
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

    def _classed(self, ended: Ended, found: LockedRow) -> Settled:
        token, state, held = found.stands
        if token != ended.claim.token or held:
            return Settled(Class.LOST, state)
        declared = self._items.state
        if declared is None or state in {each.value for each in declared.ended}:
            return Settled(Class.BEFORE, state)
        led = state in ended.step.leads_to()
        return Settled(Class.BEFORE if led else Class.LOST, state)

    def _look_for(
        self,
        tx: Transaction,
        ended: Sequence[Ended],
        absent: Sequence[int],
        result: list[Settled | None],
    ) -> None:
        """Of rows that were not answered: locked by another transaction, or not there."""
        keys = {i: key_of(ended[i].claim) for i in absent}
        there = ended[absent[0]].step.move.each.there(tx, list(keys.values()))
        for i, key in keys.items():
            if as_words(key) in there:
                result[i] = Settled(Class.LOCKED)
            else:
                # Where items are deleted when they are done, this claim may have done it.
                deletes = ended[i].step.move.deletes
                result[i] = Settled(Class.BEFORE if deletes else Class.DELETED)

    def _refuse(
        self,
        tx: Transaction,
        ended: Sequence[Ended],
        settled: Sequence[Settled],
        worker: str | None,
    ) -> None:
        history = self._items.history
        if history is None or all(each.found is Class.SETTLED for each in settled):
            return
        for each, found in zip(ended, settled, strict=True):
            if found.found is Class.LOST:
                claim = each.claim
                verdict = "" if each.verdict is None else f" {each.verdict.value}"
                words = f"claim {claim.token} settled{verdict} too late"
                history.refuse(
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

    def run(self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float) -> list[Class]:
        """How each claim was found; `SETTLED` stands for extended."""
        rows = [(*key_of(claim), claim.token) for claim in claims]
        found = self._each.run(tx, rows, lease_ms=round(lease_seconds * 1000))
        absent = [key_of(c) for c, each in zip(claims, found, strict=True) if each is None]
        there = self._each.there(tx, absent) if absent else set()

        def classed(claim: Claim, each: LockedRow | None) -> Class:
            if each is None:
                return Class.LOCKED if as_words(key_of(claim)) in there else Class.DELETED
            return Class.SETTLED if each is CHANGED else Class.LOST

        return [classed(claim, each) for claim, each in zip(claims, found, strict=True)]


def remainder(each: Sequence[Any], settled: Sequence[Settled]) -> NotSettled[Any]:
    """Those that were not written: the lost, and the locked."""
    if all(found.found is Class.SETTLED for found in settled):
        return NotSettled()
    pairs = list(zip(each, settled, strict=True))
    return NotSettled(
        lost=[one for one, found in pairs if found.found in {Class.LOST, Class.DELETED}],
        locked=[one for one, found in pairs if found.found is Class.LOCKED],
    )


def key_of(claim: Claim) -> Row:
    """The key of the item of a claim."""
    return claim.parts if isinstance(claim, ItemClaim) else (claim.key,)


def _by_move(steps: Sequence[tuple[int, Step]]) -> Mapping[Moving, list[tuple[int, Step]]]:
    """Steps of the same move, in the order in which the moves come."""
    groups: dict[Moving, list[tuple[int, Step]]] = {}
    for i, step in steps:
        groups.setdefault(step.move, []).append((i, step))
    return groups

"""Named leases: one owner at a time, by the database's clock, with a fencing token.

    free ──acquire──▶ held ──renew──▶ held
     ▲                 │ │
     │◀────release─────┘ └──time runs out──▶ free for anyone, token + 1 at the next acquire

An owner that was paused beyond its lease cannot know it, so its writes are fenced. `fence` checks
in the writing transaction that the lease is still held, and locks it until that transaction ends. A
release keeps the row, since the token must never decrease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, bindparam, case, select, update

from ledgerstone.errors import BadInput, LeaseLost
from ledgerstone.store.schema.tables import LEASE_CHARS_MAX, OWNER_CHARS_MAX, leases
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

SECONDS_MIN = 0.001
SECONDS_MAX = 86_400.0

_name = bindparam("name", type_=leases.c.lease.type)
_owner = bindparam("owner_", type_=leases.c.owner.type)
_token = bindparam("token_", type_=BigInteger())
_longest = now_ms() + bindparam("longest_ms", type_=BigInteger())
_until = now_ms() + bindparam("ttl_ms", type_=BigInteger())
# A lease that ends later than any can was taken while the clock was ahead: it does not count.
_lasts = (leases.c.expires_at_ms > now_ms()) & (
    leases.c.expires_at_ms <= now_ms() + round(SECONDS_MAX * 1000)
)
_held = (leases.c.lease == _name) & (leases.c.owner == _owner) & (leases.c.token == _token) & _lasts

_standing = select(
    leases.c.owner,
    leases.c.token,
    case((_lasts & (leases.c.expires_at_ms <= _longest), 1), else_=0),
).where(leases.c.lease == _name)
_look = Statement("leases.look", _standing.with_for_update())
_look_if_free = Statement("leases.look_if_free", _standing.with_for_update(skip_locked=True))
_there = Statement("leases.there", select(leases.c.token).where(leases.c.lease == _name))
_take = Statement(
    "leases.take",
    update(leases)
    .where(leases.c.lease == _name)
    .values(owner=_owner, token=_token, expires_at_ms=_until),
)
_create = InsertEach(
    "leases.create",
    leases,
    incoming=(leases.c.lease, leases.c.owner, leases.c.expires_at_ms),
    values=lambda row: {"expires_at_ms": now_ms() + row.expires_at_ms, "token": 1},
)
_renew = Statement("leases.renew", update(leases).where(_held).values(expires_at_ms=_until))
_release = Statement("leases.release", update(leases).where(_held).values(expires_at_ms=0))
_fence = Statement("leases.fence", select(leases.c.token).where(_held).with_for_update())


class Lease(msgspec.Struct, frozen=True):
    """A lease that `owner` has acquired, with its fencing token."""

    name: str
    owner: str
    token: int


def acquire(
    tx: Transaction,
    name: str,
    owner: str,
    *,
    seconds: float,
    longest: float = SECONDS_MAX,
    wait: bool = True,
) -> Lease | None:
    """Acquire the lease `name` for `seconds`; None if another owner holds it.

    - An owner that holds it already renews it.
    - `wait`: wait for a transaction that has fenced it; otherwise it then counts as held.
    - `longest` is the longest duration of this lease. A later end was written while the clock was
      ahead and does not count.
    """
    _check(name, owner, seconds)
    ttl_ms, longest_ms = round(seconds * 1000), round(longest * 1000)
    look = _look if wait else _look_if_free
    row = look.one(tx, name=name, longest_ms=longest_ms)
    if row is None:
        if _there.one(tx, name=name) is not None:
            return None
        # Of two that come here at once, one inserts and the other finds the lease held.
        if not _create.run(tx, [(name, owner, ttl_ms)]):
            return Lease(name, owner, 1)
        row = look.one(tx, name=name, longest_ms=longest_ms)
        if row is None:
            return None
    holder, token, held = row
    if held and holder != owner:
        return None
    token = token if held else token + 1
    _take.run(tx, name=name, owner_=owner, token_=token, ttl_ms=ttl_ms)
    return Lease(name, owner, token)


def renew(tx: Transaction, lease: Lease, *, seconds: float) -> None:
    """Extend it to `seconds` from now; LeaseLost if it ran out, also if it is still free."""
    _check(lease.name, lease.owner, seconds)
    if not _renew.run(tx, ttl_ms=round(seconds * 1000), **_identity(lease)):
        raise _lost(lease)


def release(tx: Transaction, lease: Lease) -> bool:
    """Release it; False if it was not held any more."""
    return bool(_release.run(tx, **_identity(lease)))


def fence(tx: Transaction, lease: Lease) -> None:
    """LeaseLost unless it is held now; nobody can acquire it until this transaction ends."""
    if _fence.one(tx, **_identity(lease)) is None:
        raise _lost(lease)


def _identity(lease: Lease) -> dict[str, Any]:
    return {"name": lease.name, "owner_": lease.owner, "token_": lease.token}


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"{lease.owner} no longer holds the lease {lease.name!r} ({lease.token})")


def _check(name: str, owner: str, seconds: float) -> None:
    check_name(name, "the name of a lease", chars_max=LEASE_CHARS_MAX)
    check_name(owner, "the owner of a lease", chars_max=OWNER_CHARS_MAX)
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        message = f"a lease lasts {SECONDS_MIN} to {SECONDS_MAX:.0f} seconds, not {seconds}"
        raise BadInput(message)

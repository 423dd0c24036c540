"""Idempotency keys: same key, same content: the same answer; other content: a conflict."""

from __future__ import annotations

from sqlalchemy import BigInteger, bindparam, delete, select, update

from ledgerstone.errors import KeyConflict
from ledgerstone.protocols.tables import KEY_CHARS_MAX
from ledgerstone.protocols.tables import protocol_key as key_
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

ROWS_MAX = 1000
DAY_MS = 86_400_000
UNANSWERED = "null"

_take = InsertRows(
    "protocols.take_key",
    key_,
    columns=("protocol", "scope", "key", "content_hash"),
    values={"used_at_ms": now_ms(), "answer": UNANSWERED},
)
_here = (
    (key_.c.protocol == bindparam("protocol_"))
    & (key_.c.scope == bindparam("scope_"))
    & (key_.c.key == bindparam("key_"))
)
_look = Statement("protocols.key", select(key_.c.content_hash, key_.c.answer).where(_here))
_answer = Statement(
    "protocols.answer_key",
    update(key_).where(_here).values(answer=bindparam("answer_", type_=key_.c.answer.type)),
)
_old = Statement(
    "protocols.old_keys",
    select(key_.c.protocol, key_.c.scope, key_.c.key)
    .where(key_.c.used_at_ms < now_ms() - bindparam("age_ms", type_=BigInteger()))
    .order_by(key_.c.used_at_ms)
    .limit(ROWS_MAX),
)
_forget = Statement("protocols.forget_key", delete(key_).where(_here))


def take(tx: Transaction, protocol: str, scope: str, key: str, content: str) -> str | None:
    """Take a key; the answer of the one that took it before, KeyConflict if it said otherwise."""
    check_name(key, "an idempotency key", chars_max=KEY_CHARS_MAX)
    named = {"protocol_": protocol, "scope_": scope, "key_": key}
    if _take.run(tx, [{**named, "content_hash_": content}]):
        return None
    (found,) = _look.rows(tx, **named)
    if found[0] != content:
        raise KeyConflict(f"the key {key!r} of {scope} was used before with other content")
    return str(found[1])


def answer(tx: Transaction, protocol: str, scope: str, key: str, words: str) -> None:
    """What a later call with the key is told."""
    _answer.run(tx, protocol_=protocol, scope_=scope, key_=key, answer_=words)


def forget(tx: Transaction, *, keep_days: float) -> int:
    """Remove keys that are older, a bounded number; how many."""
    rows = _old.rows(tx, age_ms=round(keep_days * DAY_MS))
    for protocol, scope, key in rows:
        _forget.run(tx, protocol_=protocol, scope_=scope, key_=key)
    return len(rows)

"""MySQL: the transactions that have written and not ended.

The server answers from a copy of its list, which it renews only if nobody has read it for 0.1 s. So
the statement contains a unique word: a copy that has this statement is new.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, column, func, select, table, text

from ledgerstone.errors import StoreDenied
from ledgerstone.ids import new_id
from ledgerstone.store.dialect import NotVisible
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

READ_ONLY_IDS = 2**48
"""The lowest id of a read-only transaction on MySQL; MariaDB gives it the id 0."""
TRIES_MAX = 5
COPY_SECONDS = 0.11

_trx = table(
    "INNODB_TRX",
    column("trx_id"),
    column("trx_mysql_thread_id"),
    column("trx_query"),
    schema="information_schema",
)
_session = func.connection_id()
_under_way = Statement(
    "store.under_way",
    select(
        bindparam("word"),
        _trx.c.trx_id,
        _trx.c.trx_mysql_thread_id == _session,
        func.coalesce(_trx.c.trx_query, text("''")),
    ),
)


def under_way(tx: Transaction) -> frozenset[int] | NotVisible:
    """The ids of the other transactions; `NotVisible.ALWAYS` without the privilege PROCESS."""
    for attempt in range(TRIES_MAX):
        if attempt:
            time.sleep(COPY_SECONDS)
        word = new_id()
        try:
            rows = _under_way.rows(tx, word=word)
        except StoreDenied:
            return NotVisible.ALWAYS
        if any(mine and word in query for _, _, mine, query in rows):
            ids = {int(number) for _, number, mine, _ in rows if not mine}
            return frozenset(number for number in ids if 0 < number < READ_ONLY_IDS)
    return NotVisible.NOW

"""Random histories of the binding against a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledgerstone.signing.rocksdb import Batch, Database, Transaction, prefix_end
from tests.harness.sizes import sized
from tests.signing.conftest import FAMILIES

KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"a:", b"\xff", b"\xff\xff"])
VALUES = st.binary(max_size=20)
Model = dict[tuple[str, bytes], bytes]
ROWS, SUMS = FAMILIES


class History(RuleBasedStateMachine):
    """One database, at most one transaction, and what both should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.database = Database(self.folder / "database", FAMILIES)
        self.committed: Model = {}
        self.tx: Transaction | None = None
        self.pending: Model = {}

    @initialize()
    def begin(self) -> None:
        self.tx = None

    @rule(key=KEYS, value=VALUES)
    @precondition(lambda self: self.tx is None)
    def write_batch(self, key: bytes, value: bytes) -> None:
        batch = Batch()
        batch.put(ROWS, key, value)
        batch.merge(SUMS, key, value)
        self.database.write(batch)
        self.committed[ROWS, key] = value
        self.committed[SUMS, key] = self.committed.get((SUMS, key), b"") + value

    @rule(key=KEYS)
    @precondition(lambda self: self.tx is None)
    def delete(self, key: bytes) -> None:
        batch = Batch()
        batch.delete(ROWS, key)
        batch.delete(SUMS, key)
        self.database.write(batch)
        self.committed.pop((ROWS, key), None)
        self.committed.pop((SUMS, key), None)

    @rule()
    @precondition(lambda self: self.tx is None)
    def begin_transaction(self) -> None:
        self.tx = self.database.transaction()
        self.pending = dict(self.committed)

    @rule(key=KEYS, value=VALUES, remove=st.booleans())
    @precondition(lambda self: self.tx is not None)
    def change(self, key: bytes, value: bytes, *, remove: bool) -> None:
        assert self.tx is not None
        assert self.tx.get_for_update(ROWS, key) == self.pending.get((ROWS, key))
        if remove:
            self.tx.delete(ROWS, key)
            self.pending.pop((ROWS, key), None)
        else:
            self.tx.put(ROWS, key, value)
            self.tx.merge(SUMS, key, value)
            self.pending[ROWS, key] = value
            self.pending[SUMS, key] = self.pending.get((SUMS, key), b"") + value

    @rule(prefix=KEYS)
    @precondition(lambda self: self.tx is not None)
    def scan_transaction(self, prefix: bytes) -> None:
        assert self.tx is not None
        for family in FAMILIES:
            rows = list(self.tx.scan(family, start=prefix, end=prefix_end(prefix)))
            assert rows == expected(self.pending, family, prefix)

    @rule(commit=st.booleans())
    @precondition(lambda self: self.tx is not None)
    def end_transaction(self, *, commit: bool) -> None:
        assert self.tx is not None
        if commit:
            self.tx.commit()
            self.committed = self.pending
        else:
            self.tx.rollback()
        self.tx = None

    @rule(compact=st.booleans())
    def rearrange(self, *, compact: bool) -> None:
        self.database.flush()
        if compact:
            for family in FAMILIES:
                self.database.compact(family)

    @rule()
    @precondition(lambda self: self.tx is None)
    def reopen(self) -> None:
        self.database.close()
        self.database = Database(self.folder / "database", FAMILIES)

    @rule(prefix=KEYS)
    def scan(self, prefix: bytes) -> None:
        for family in FAMILIES:
            rows = list(self.database.scan_prefix(family, prefix))
            assert rows == expected(self.committed, family, prefix)

    @invariant()
    def reads_agree(self) -> None:
        for (family, key), value in self.committed.items():
            assert self.database.get(family, key) == value

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)


def expected(model: Model, family: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
    return sorted(
        (key, value)
        for (name, key), value in model.items()
        if name == family and key.startswith(prefix)
    )


@pytest.mark.slow
@pytest.mark.torture
def test_random_histories() -> None:
    """Batches, transactions, scans, flushes, compactions and reopening agree with a dict."""
    History.TestCase.settings = settings(
        max_examples=sized(15, full=1000),
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),
    )

    History.TestCase().runTest()

"""The store: acknowledged inserts by one thread and by many, and point reads."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter, process_time

from bench.measure import Timing, settle_memory
from bench.signing.driver import event_key
from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Store
from ledgerstone.signing.values import Stored

MS_IN_SECOND = 1000
JOIN_SECONDS_MAX = 600.0


def insert(folder: Path, *, warm_up: int, count: int, value_bytes: int, threads: int = 1) -> Timing:
    """Insert events that are all new, each acknowledged before its thread goes on."""
    value = bytes(value_bytes)
    with Store(folder) as store:
        settle_memory()
        _insert(store, range(warm_up), value)
        each = count // threads
        starts = [warm_up + number * each for number in range(threads)]
        began, cpu_began = perf_counter(), process_time()
        if threads == 1:
            _insert(store, range(starts[0], starts[0] + each), value)
        else:
            _in_threads(store, [range(start, start + each) for start in starts], value)
        ended, cpu_ended = perf_counter(), process_time()
        if any(store.get(Family.EVENT, event_key(number)) != value for number in starts):
            raise RuntimeError("an acknowledged event is not there")
    return Timing(count=each * threads, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


def _insert(store: Store, numbers: range, value: bytes) -> None:
    for number in numbers:
        if store.insert(Family.EVENT, event_key(number), value) is not Stored.NEW:
            raise RuntimeError("an event was there before")


def _in_threads(store: Store, shares: list[range], value: bytes) -> None:
    threads = [threading.Thread(target=_insert, args=(store, share, value)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS_MAX)


def reads(folder: Path, *, rows: int, count: int, value_bytes: int) -> list[float]:
    """Milliseconds of each point read of a store whose rows were flushed and reopened."""
    value = bytes(value_bytes)
    with Store(folder) as store:
        for start in range(0, rows, 1000):
            with store.transaction() as tx:
                for number in range(start, min(start + 1000, rows)):
                    tx.put(Family.EVENT, event_key(number), value)
        store.database.flush()
    with Store(folder) as store:
        taken = []
        settle_memory()
        for number in range(count):
            key = event_key(number * 7919 % rows)
            began = perf_counter()
            found = store.get(Family.EVENT, key)
            taken.append((perf_counter() - began) * MS_IN_SECOND)
            if found != value:
                raise RuntimeError("an event is not there")
    return taken

"""The bare C calls: what an insert of the store comes to, in a hand-written loop by ctypes.

The database is opened by the store, so its options are the store's own; nothing of Ledgerstone
runs in the timed loop.
"""

from __future__ import annotations

from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from time import perf_counter, process_time

from bench.measure import Timing, settle_memory
from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Store


def insert(folder: Path, *, warm_up: int, count: int, value_bytes: int) -> Timing:
    """Insert if absent, one transaction for each: begin, get for update, put, commit, destroy."""
    with Store(folder) as store:
        loop = _Loop(store, value_bytes)
        settle_memory()
        loop.run(0, warm_up)
        began, cpu_began = perf_counter(), process_time()
        loop.run(warm_up, warm_up + count)
        ended, cpu_ended = perf_counter(), process_time()
    return Timing(count=count, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


class _Loop:
    """The C functions and their arguments, looked up before."""

    def __init__(self, store: Store, value_bytes: int) -> None:
        self._database = store.database
        self._value = bytes(value_bytes)
        library = store.database.library
        self._write_options = library.writeoptions_create()
        library.writeoptions_set_sync(self._write_options, 1)
        self._transaction_options = library.transaction_options_create()

    def run(self, start: int, end: int) -> None:
        database = self._database
        library = database.library
        begin, destroy = library.transaction_begin, library.transaction_destroy
        get, put = library.transaction_get_for_update_cf, library.transaction_put_cf
        commit = library.transaction_commit
        pointer, read_options = database.pointer, database.read_options
        write_options, options = self._write_options, self._transaction_options
        family, value, length = database.family(Family.EVENT), self._value, len(self._value)
        error, size = c_void_p(), c_size_t()
        for number in range(start, end):
            key = event_key(number)
            transaction = begin(pointer, write_options, options, None)
            found = get(transaction, read_options, family, key, 36, byref(size), 1, byref(error))
            put(transaction, family, key, 36, value, length, byref(error))
            commit(transaction, byref(error))
            destroy(transaction)
            if found is not None or error.value is not None:
                raise RuntimeError("an insert failed")


def event_key(number: int) -> bytes:
    """The key of an event, spread as hashes are."""
    spread = number * 0x9E3779B97F4A7C15 % 2**64
    return b"evt:" + spread.to_bytes(8, "big") * 4

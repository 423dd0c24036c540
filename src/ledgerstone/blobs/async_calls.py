"""What can be asked of files in a transaction of an event loop."""

from __future__ import annotations

from ledgerstone.blobs.blobs import Blobs
from ledgerstone.store.async_calls import AsyncCalls, awaited


class AsyncBlobs(AsyncCalls[Blobs]):
    """`Blobs`, awaited; what is read piece by piece is read in `tx.run`."""

    begin = awaited(Blobs.begin)
    begin_unnamed = awaited(Blobs.begin_unnamed)
    set_size = awaited(Blobs.set_size)
    put_slice = awaited(Blobs.put_slice)
    put_slices = awaited(Blobs.put_slices)
    add_slice = awaited(Blobs.add_slice)
    append = awaited(Blobs.append)
    progress = awaited(Blobs.progress)
    missing = awaited(Blobs.missing)
    complete = awaited(Blobs.complete)
    finish = awaited(Blobs.finish)
    own = awaited(Blobs.own)
    owners = awaited(Blobs.owners)
    remove_owner = awaited(Blobs.remove_owner)
    remove = awaited(Blobs.remove)
    find = awaited(Blobs.find)

"""The store of signing as the engine sees it: what duties run on.

    OpenStore       the application has the store open: duties use it beside the application's calls
    StoreOnDemand   nobody of this process has it open: it is opened for a turn, and closed after it

Both keep the engine's `DutyStore`. They lend a duty an `Access`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from ledgerstone.engine.store_duties import DutyStore
from ledgerstone.errors import StoreLocked
from ledgerstone.settings import SigningSettings
from ledgerstone.signing.folder import store_folder
from ledgerstone.signing.rocksdb import exists, file_errors
from ledgerstone.store.wakeup import WakeSignal

if TYPE_CHECKING:
    from ledgerstone.signing.signing import Signing

R = TypeVar("R")

LOCKED_HINT = "stop that process, or let it do this work; it is tried again at the next turn"


class Access(Protocol):
    """The store for the length of a turn.

    - `reader` answers it for reading, beside whoever has it open; None if there is no store.
    - `writer` answers it for writing; StoreLocked if another process has it open.
    """

    def reader(self) -> Signing | None: ...

    def writer(self) -> Signing: ...


class SigningDutyStore(DutyStore[Access], Protocol):
    """A store with what its settings say of duties; none comes sooner than `every_seconds`."""

    @property
    def settings(self) -> SigningSettings: ...

    @property
    def every_seconds(self) -> float: ...


class OpenStore:
    """A store that this process has open; the application closes it, after the worker's end."""

    one_writer = True
    every_seconds = 0.0

    def __init__(self, signing: Signing, *, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._signing = signing

    @property
    def settings(self) -> SigningSettings:
        return self._signing.settings

    def signal(self, channel: str) -> WakeSignal:
        wake_signal = WakeSignal()
        self._signing.store.wake_signals.subscribe(channel, wake_signal)
        return wake_signal

    def run(self, work: Callable[[Access], R], /) -> R:
        return work(self)

    def rest(self) -> None:
        """Nothing: the application goes on with it."""

    def reader(self) -> Signing | None:
        return self._signing

    def writer(self) -> Signing:
        return self._signing


class StoreOnDemand:
    """A store that is open only during a turn, and for writing only if there is something to do.

    - A store that is not there is not made, and is used as soon as it is there.
    - Where code of this process has it open, as a handler may, that one is used and left open.
    - A store that cannot be opened is an error of that turn: StoreLocked, StoreDenied, …
    """

    one_writer = True

    def __init__(
        self,
        settings: SigningSettings,
        *,
        every_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.monotonic = monotonic
        self.settings = settings
        self.every_seconds = every_seconds
        self._folder = store_folder(settings)
        self._reader: Signing | None = None
        self._writer: Signing | None = None

    def signal(self, channel: str) -> WakeSignal:
        # Nobody else commits in this process: nothing ever notifies this signal.
        return WakeSignal()

    def run(self, work: Callable[[Access], R], /) -> R:
        with file_errors(self._folder):
            return work(self)

    def rest(self) -> None:
        reader, writer = self._reader, self._writer
        self._reader = self._writer = None
        for signing in (reader, writer):
            if signing is not None:
                signing.close()

    def reader(self) -> Signing | None:
        found = self._writer or self._open_here()
        if found is not None:
            return found
        if self._reader is None and exists(self._folder):
            self._reader = self._opened(read_only=True)
        return self._reader

    def writer(self) -> Signing:
        found = self._writer or self._open_here()
        if found is not None:
            return found
        self.rest()
        self._writer = self._opened(read_only=False)
        return self._writer

    def _open_here(self) -> Signing | None:
        # A process that has not imported it has none open.
        module = sys.modules.get("ledgerstone.signing.signing")
        return None if module is None else module.open_in_this_process(self._folder)

    def _opened(self, *, read_only: bool) -> Signing:
        # Here and not above: a process that has no store needs none of the packages.
        from ledgerstone import signing

        try:
            return signing.Signing(settings=self.settings, read_only=read_only)
        except StoreLocked as error:
            message = f"another process has the store in {self._folder} open"
            raise StoreLocked(message, hint=LOCKED_HINT) from error

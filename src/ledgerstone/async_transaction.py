"""The calls of a transaction, awaited: what an event loop uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ledgerstone.room import Room

if TYPE_CHECKING:
    from ledgerstone.ledger import Transaction

T = TypeVar("T")


class Carry(Protocol):
    """Does work in a transaction while an event loop goes on."""

    def __call__(self, work: Callable[[Transaction], T], /) -> Awaitable[T]: ...


class AsyncTransaction:
    """The same calls, awaited: `await tx.jobs.enqueue(…)`."""

    def __init__(self, carry: Carry) -> None:
        self._carry = carry

    @property
    def jobs(self) -> Any:
        """Functions to be run later; each call is awaited."""
        return _AsyncRoom(self, "jobs")

    @property
    def schedules(self) -> Any:
        """Jobs that come again and again; each call is awaited."""
        return _AsyncRoom(self, "schedules")

    @property
    def outbox(self) -> Any:
        """Messages to be carried elsewhere; each call is awaited."""
        return _AsyncRoom(self, "outbox")

    @property
    def inbox(self) -> Any:
        """Messages that were handled; each call is awaited."""
        return _AsyncRoom(self, "inbox")

    @property
    def failed(self) -> Any:
        """Messages that could not be handled or delivered; each call is awaited."""
        return _AsyncRoom(self, "failed")

    def room(self, room: Room[Any, Any]) -> Any:
        """What the room can be asked in this transaction; each call is awaited."""
        return _AsyncRoom(self, room)

    @property
    def blobs(self) -> Any:
        """Files in slices; each call is awaited."""
        return _AsyncRoom(self, "blobs")

    @property
    def protocols(self) -> Any:
        """Events that come in; each call is awaited."""
        return _AsyncRoom(self, "protocols")

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """`work(tx)` inside the transaction."""
        return await self._carry(work)


class _AsyncRoom:
    """A room whose calls are awaited."""

    def __init__(self, tx: AsyncTransaction, room: str | Room[Any, Any]) -> None:
        self._tx = tx
        self._room = room

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._tx.run(
                lambda tx: getattr(self._calls(tx), name)(*arguments, **named)
            )

        return call

    def _calls(self, tx: Transaction) -> Any:
        return getattr(tx, self._room) if isinstance(self._room, str) else tx.room(self._room)

"""Awaitable versions of the calls of a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

CallsT = TypeVar("CallsT")
CallsT_co = TypeVar("CallsT_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class RunInTransaction(Protocol[CallsT_co]):
    """Runs a function in a transaction without blocking the event loop."""

    def __call__(self, question: Callable[[CallsT_co], T], /) -> Awaitable[T]: ...


class AsyncCalls(Generic[CallsT]):
    """The calls of a class as coroutines.

    class AsyncJobs(AsyncCalls[Jobs]):
        get = awaited(Jobs.get)
    """

    def __init__(self, ask: RunInTransaction[CallsT]) -> None:
        self.ask = ask


class awaited(Generic[CallsT, P, T]):  # noqa: N801 - it is used like a decorator
    """The awaitable version of a method, with the same parameters and result."""

    def __init__(self, method: Callable[Concatenate[CallsT, P], T]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, calls: None, kind: type) -> Self: ...

    @overload
    def __get__(
        self, calls: AsyncCalls[CallsT], kind: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(
        self, calls: AsyncCalls[CallsT] | None, kind: type
    ) -> Self | Callable[P, Coroutine[Any, Any, T]]:
        if calls is None:
            return self
        ask, method = calls.ask, self._method

        async def call(*arguments: P.args, **named: P.kwargs) -> T:
            return await ask(lambda asked: method(asked, *arguments, **named))

        return update_wrapper(call, method)

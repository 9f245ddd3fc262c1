"""Items that come one after the other, for code with an event loop and without one."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from ._pending import Pending

T = TypeVar("T")


class _End(Exception):
    """There are no more items."""


class Stream(Generic[T]):
    """Items in the order of their arrival, by ``async for`` or ``for``. Items wait until they are taken; one reader at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._waiting: Future[T] | None = None
        self._end: BaseException | None = None

    def put(self, item: T) -> None:
        """Adds an item."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            # One whose reader has given up gets nothing.
            if waiting is None or not waiting.set_running_or_notify_cancel():
                self._items.append(item)
                return
        waiting.set_result(item)

    def end(self, error: BaseException | None = None) -> None:
        """Ends it after the items that are there: with ``error``, if there is one."""
        with self._lock:
            if self._end is None:
                self._end = error or _End()
            waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.set_running_or_notify_cancel():
            waiting.set_exception(self._end)

    def _take(self) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._items:
                future.set_result(self._items.popleft())
            elif self._end is not None:
                future.set_exception(self._end)
            else:
                self._waiting = future
        return future

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await Pending[T](self._take(), _same)
        except _End:
            raise StopAsyncIteration from None

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        try:
            return Pending[T](self._take(), _same).result()
        except _End:
            raise StopIteration from None


def _same(item: T) -> T:
    return item

"""Items that come one after the other, for code with an event loop and without one."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Callable, Generic, TypeVar

from ._outcome import Outcome
from ._pending import Pending

T = TypeVar("T")
#: Items that wait for a reader where they may be dropped.
MOST = 10_000


class Stream(Generic[T]):
    """Items in the order of their arrival, by ``async for`` or ``for``.

    They wait until they are taken. Of events, 10,000 wait at most; then the oldest go, and :attr:`dropped` counts them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._most = most
        self._readers: list[Outcome] = []
        self._is_ended = False
        self._error: BaseException | None = None
        #: Gives up what the items come from.
        self._give_up: Callable[[], Any] | None = None
        #: Items that were dropped because nobody took them.
        self.dropped = 0

    def put(self, item: T) -> None:
        """Adds an item."""
        with self._lock:
            if self._most is not None and len(self._items) >= self._most:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Ends it after the items that are there: with ``error``, if there is one."""
        with self._lock:
            if not self._is_ended:
                self._is_ended, self._error = True, error
        self._wake()

    def cancel(self) -> None:
        """Gives up what the items come from, if it is a request of its own."""
        if self._give_up:
            self._give_up()

    def _wake(self) -> None:
        with self._lock:
            readers, self._readers = self._readers, []
        for reader in readers:
            reader.set()

    def _next(self) -> tuple[list[T], Pending[None] | None]:
        """An item, or what to wait for, or neither: it has ended. A reader that stops to wait loses nothing."""
        with self._lock:
            if self._items:
                return [self._items.popleft()], None
            if self._is_ended:
                if self._error:
                    raise self._error
                return [], None
            reader = Outcome()
            self._readers.append(reader)
        return [], Pending(reader, lambda _: None)

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            items, wait = self._next()
            if items:
                return items[0]
            if wait is None:
                raise StopAsyncIteration
            await wait

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        while True:
            items, wait = self._next()
            if items:
                return items[0]
            if wait is None:
                raise StopIteration
            wait.result()

"""Results that are on their way, for code with an event loop and without one."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future
from typing import Any, Callable, Generator, Generic, TypeVar

from ._errors import ToolcribError
from ._place import is_trio

T = TypeVar("T")


class Pending(Generic[T]):
    """A request under way. It can be awaited (asyncio, trio), or waited for with :meth:`result`.

    Cancelling the task that awaits it gives the request up: a tool is told to cancel.
    """

    def __init__(self, future: Future[Any], convert: Callable[[Any], T]) -> None:
        self._future, self._convert = future, convert

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result, at most ``timeout`` seconds. An interrupt gives the request up."""
        try:
            return self._convert(self._future.result(timeout))
        except CancelledError:
            raise _closed() from None
        except BaseException:
            self._future.cancel()
            raise

    def __await__(self) -> Generator[Any, Any, T]:
        if is_trio():
            return self._convert((yield from _in_trio(self._future).__await__()))
        # Cancelling the wrapper cancels the request.
        return self._convert((yield from asyncio.wrap_future(self._future).__await__()))


def follow(future: Future[Any], ended: Callable[[Future[Any]], Any] | None = None, *, gives_up: bool = True) -> Future[Any]:
    """A future with the outcome of another one, which comes when ``ended`` has been called. Cancelling it cancels the other one,
    unless that has more who wait for it."""
    outer: Future[Any] = Future()

    def done(inner: Future[Any]) -> None:
        if ended:
            ended(inner)
        if inner.cancelled():
            outer.cancel()
        elif outer.set_running_or_notify_cancel():
            error = inner.exception()
            outer.set_exception(error) if error else outer.set_result(inner.result())

    if gives_up:
        outer.add_done_callback(lambda own: future.cancel() if own.cancelled() else None)
    future.add_done_callback(done)
    return outer


def _closed() -> ToolcribError:
    return ToolcribError("it was cancelled: its manager or client was closed", code="cancelled")


async def _in_trio(future: Future[Any]) -> Any:
    import trio

    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    waits = True

    def wake() -> None:
        nonlocal waits
        if waits:
            waits = False
            trio.lowlevel.reschedule(task)

    def done(_: Future[Any]) -> None:
        try:
            token.run_sync_soon(wake)
        except trio.RunFinishedError:
            pass

    def abort(_: Any) -> Any:
        nonlocal waits
        waits = False
        future.cancel()
        return trio.lowlevel.Abort.SUCCEEDED

    future.add_done_callback(done)
    await trio.lowlevel.wait_task_rescheduled(abort)
    try:
        return future.result()
    except CancelledError:
        raise _closed() from None

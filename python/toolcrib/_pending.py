"""Results that are on their way, for code with an event loop and without one."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import CancelledError, Future
from typing import Any, Callable, Generator, Generic, TypeVar

from ._errors import ToolcribError

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
            raise ToolcribError("it was cancelled: its manager or client was closed", code="cancelled") from None
        except BaseException:
            self._future.cancel()
            raise

    def __await__(self) -> Generator[Any, Any, T]:
        if _is_trio():
            return self._convert((yield from _in_trio(self._future).__await__()))
        # Cancelling the wrapper cancels the request.
        return self._convert((yield from asyncio.wrap_future(self._future).__await__()))


def _is_trio() -> bool:
    if "trio" not in sys.modules:
        return False
    import trio

    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


async def _in_trio(future: Future[Any]) -> Any:
    import trio

    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    waits = True

    def wake() -> None:
        if waits:
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
    waits = False
    return future.result()

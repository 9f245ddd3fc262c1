"""The host: one child process that owns all servers of this one, and a thread that receives from it.

The thread does nothing but receive and hand over. It holds no lock while Python code of others runs, and needs nothing at the
exit of the interpreter: the end of this process closes the socket, and the host tears down what it owns.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from typing import Any, Callable

from . import _errors
from ._find import find_binary

PROTOCOL = 1
_LOG = logging.getLogger("toolcrib")

#: Handlers of what the host tells and asks, by the name of an object: ``handler(method, params, reply)``.
Handler = Callable[[str, dict[str, Any], "Callable[[Any], None] | None"], None]

_FORKED = "it belongs to the parent of this process: make another one in the child"


class Host:
    """A running host."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._last = 0
        self._answers: dict[int, Future[Any]] = {}
        self._listeners: dict[int, Callable[[str, dict[str, Any]], None]] = {}
        self._handlers: dict[str, Handler] = {}
        self._asked: dict[str, Callable[[], None]] = {}
        self._users = 0
        self.died: _errors.ToolcribError | None = None
        self._waiting: deque[memoryview] = deque()
        self._writer: threading.Thread | None = None
        self._writable = threading.Condition(self._lock)
        ours, theirs = socket.socketpair()
        try:
            command = [find_binary(), "host", "--fd", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        _ALL.add(self)
        hello = self._receive_hello()
        self.version: str = hello["version"]
        self.teardown: str = hello["teardown"]
        threading.Thread(target=self._receive, name="toolcrib", daemon=True).start()

    def _receive_hello(self) -> dict[str, Any]:
        self._file = self._socket.makefile("rb", buffering=1 << 16)
        line = self._file.readline()
        hello = json.loads(line) if line else {}
        if hello.get("method") != "hello" or hello["params"]["protocol"] != PROTOCOL:
            self.close()
            self._file.close()
            self._process.kill()
            self._process.wait()
            program = self._process.args[0] if isinstance(self._process.args, list) else "toolcrib"
            what = "ended at its start" if not line else "speaks another protocol than this package"
            raise _errors.HostDied(f"the host {program} {what}", help="install the package and the program of one version")
        params: dict[str, Any] = hello["params"]
        return params

    # --- what this process asks -------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: dict[str, Any],
        listener: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> Future[Any]:
        """Sends a request. Cancelling the future gives it up. ``listener`` gets what the host tells of it, in the receiving thread."""
        self._check_process()
        future: Future[Any] = Future()
        # What is no JSON is refused before anything waits for its answer.
        encoded = _encode(params)
        with self._lock:
            if self.died:
                raise self.died
            self._last += 1
            number = self._last
            self._answers[number] = future
            if listener:
                self._listeners[number] = listener
        # Running futures cannot be cancelled: this one can be, until its answer is there.
        future.add_done_callback(lambda done: self._given_up(number) if done.cancelled() else None)
        self._send(b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}\n' % (number, method.encode(), encoded))
        return future

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification, if the host is there."""
        if self.pid == os.getpid() and not self.died:
            self._send(_encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n")

    def _given_up(self, number: int) -> None:
        with self._lock:
            self._answers.pop(number, None)
            self._listeners.pop(number, None)
        self.notify("cancel", {"id": number})

    def _check_process(self) -> None:
        if self.pid != os.getpid():
            raise _errors.ForkedError(f"the host was started by another process: {_FORKED}")

    def _send(self, text: bytes) -> None:
        line = memoryview(text)
        with self._lock:
            if not self._waiting:
                # Nearly always there is room. An event loop must not wait for it.
                try:
                    sent = self._socket.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    line = line[sent:]
                except (BlockingIOError, InterruptedError):
                    pass
                except OSError:
                    return  # The receiving thread notices, and fails what waits.
            if line:
                self._waiting.append(line)
                if self._writer is None:
                    self._writer = threading.Thread(target=self._write, name="toolcrib-write", daemon=True)
                    self._writer.start()
                self._writable.notify()

    def _write(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._writable.wait()
                line = self._waiting[0]
            try:
                self._socket.sendall(line, socket.MSG_NOSIGNAL)
            except OSError:
                return
            with self._lock:
                self._waiting.popleft()

    # --- what the host tells and asks -------------------------------------------------------------------------------

    def _receive(self) -> None:
        reason = "the host has ended"
        try:
            for line in self._file:
                message = json.loads(line)
                if message.get("method") == "goodbye":
                    reason = f"the host has ended: {message['params'].get('reason')}"
                try:
                    self._take(message)
                except Exception:
                    # Of a callback of the program: it must not end the thread that everything waits for.
                    _LOG.exception("a callback failed")
        except (OSError, ValueError) as error:
            reason = f"the host is lost: {error}"
        self._ended(reason)

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            with self._lock:
                future = self._answers.pop(message["id"], None)
                self._listeners.pop(message["id"], None)
            if future is None:
                return
            if "error" in message:
                error = _errors.from_data(message["error"]["message"], message["error"].get("data"))
                # The manager was shut down under it: whoever awaits it is cancelled, as by its own task.
                future.cancel() if error.code == "cancelled" else _settle(future, error=error)
            else:
                _settle(future, result=message["result"])
            return
        params = message["params"]
        if "id" in message:
            self._take_request(message["id"], method, params)
        elif method == "cancel":
            cancel = self._asked.pop(params["id"], None)
            if cancel:
                cancel()
        elif "id" in params:
            listener = self._listeners.get(params["id"])
            if listener:
                listener(method, params)
        else:
            handler = self._handlers.get(_subject(params))
            if handler:
                handler(method, params, None)

    def _take_request(self, id: str, method: str, params: dict[str, Any]) -> None:
        def reply(outcome: Any) -> None:
            self._asked.pop(id, None)
            if not isinstance(outcome, BaseException):
                try:
                    return self._answer({"jsonrpc": "2.0", "id": id, "result": outcome})
                except (TypeError, ValueError) as unusable:
                    outcome = unusable
            error = {"code": -32000, "message": f"{type(outcome).__name__}: {outcome}"}
            self._answer({"jsonrpc": "2.0", "id": id, "error": error})

        handler = self._handlers.get(_subject(params))
        if handler is None:
            reply(LookupError("it is closed"))
            return
        try:
            handler(method, params, _Reply(reply, lambda cancel: self._asked.__setitem__(id, cancel)))
        except Exception as error:
            reply(error)

    def _answer(self, message: dict[str, Any]) -> None:
        if self.pid == os.getpid() and not self.died:
            self._send(_encode(message) + b"\n")

    def _ended(self, reason: str) -> None:
        with self._lock:
            self.died = self.died or _errors.HostDied(reason)
            waiting = list(self._answers.values())
            self._answers.clear()
            self._listeners.clear()
        for future in waiting:
            _settle(future, error=self.died)
        for handler in list(self._handlers.values()):
            handler("host.died", {}, None)
        self._file.close()
        self._socket.close()
        self._process.wait()

    # --- objects ----------------------------------------------------------------------------------------------------

    def add(self, name: str, handler: Handler | None) -> None:
        """Keeps the host for an object of that name."""
        with self._lock:
            self._users += 1
            if handler:
                self._handlers[name] = handler

    def remove(self, name: str) -> None:
        """Lets go of an object. The last one ends the host."""
        with self._lock:
            self._handlers.pop(name, None)
            self._users -= 1
            last = self._users == 0
            if last:
                self.died = self.died or _errors.HostDied("all objects of the host were closed")
        if last and self.pid == os.getpid():
            self.close()

    def close(self) -> None:
        """Closes the socket: the host ends what it owns, and itself."""
        try:
            # A thread may be reading: this wakes it, where `close` alone would not.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


class _Reply:
    """Answers a request of the host, once, from any thread."""

    def __init__(self, reply: Callable[[Any], None], on_cancel: Callable[[Callable[[], None]], None]) -> None:
        self._reply, self.on_cancel = reply, on_cancel

    def __call__(self, outcome: Any) -> None:
        self._reply(outcome)


def _settle(future: Future[Any], *, result: Any = None, error: BaseException | None = None) -> None:
    # It may be cancelled at any moment.
    if future.set_running_or_notify_cancel():
        future.set_exception(error) if error else future.set_result(result)


def _subject(params: dict[str, Any]) -> str:
    """The object that a message is about."""
    return str(params.get("channel") or params.get("run") or params.get("manager") or params.get("llm") or "")


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), default=_json, allow_nan=False).encode()


def _json(value: Any) -> Any:
    """Paths, and what is like a mapping or a list without being one."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for convert in ("model_dump", "_asdict"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


_ALL: weakref.WeakSet[Host] = weakref.WeakSet()
_SHARED_LOCK = threading.Lock()
_shared: Host | None = None


def shared_host() -> Host:
    """The host of this process, started if there is none."""
    global _shared
    with _SHARED_LOCK:
        if _shared is None or _shared.died or _shared.pid != os.getpid():
            _shared = Host()
        return _shared


def _after_fork_in_child() -> None:
    """A child that goes on must not keep the host of its parent alive."""
    global _shared, _SHARED_LOCK
    _shared, _SHARED_LOCK = None, threading.Lock()
    for host in list(_ALL):
        # Not `shutdown`, which would end the connection for the parent.
        try:
            os.close(host._socket.detach())
        except OSError:
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

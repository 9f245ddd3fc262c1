"""What managers and model clients of both kinds, with an event loop and without one, have in common."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Awaitable, Callable, Iterable, Mapping, Sequence, Union

from . import _errors, _types
from ._config import Config, Servers, config_params, environment
from ._functions import Functions, FunctionServers
from ._host import Host, shared_host
from ._pending import Pending
from ._stream import Stream

_NUMBERS = itertools.count(1)

Progress = Callable[[float, "float | None", "str | None"], None]
#: A score from 0 to 1, or ``None`` to leave it to the task's own scorer.
Scorer = Callable[[dict[str, Any], _types.TaskReport], Union["float | None", Awaitable["float | None"]]]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _without_none(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class HostObject:
    """An object at the host, with a name there. It is dropped when it is garbage-collected."""

    def __init__(self, kind: str) -> None:
        self._name = f"{kind}{next(_NUMBERS)}"
        self._host: Host | None = None
        self._release: Callable[[], Any] | None = None

    def _open(self, handler: Callable[..., None] | None) -> Host:
        host = shared_host()
        host.add(self._name, handler)
        self._host = host
        self._release = weakref.finalize(self, _drop, host, self._name)
        # The interpreter's exit closes the socket: nothing is to be done then.
        self._release.atexit = False
        return host

    def _opened(self) -> Host:
        if self._host is None:
            raise _errors.ToolcribError(f"the {type(self).__name__} is not started, or is closed")
        return self._host

    def _close(self) -> None:
        self._host = None
        if self._release:
            self._release()


def _drop(host: Host, name: str) -> None:
    host.notify("drop", {"name": name})
    host.remove(name)


class ManagerCore(HostObject):
    """Parameters of a manager, and requests on it that are on their way."""

    def __init__(
        self,
        config: Config = None,
        *,
        servers: Servers | None = None,
        functions: Functions | None = None,
        only: Iterable[str] | None = None,
        profile: str | None = None,
        set: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        locked: bool = False,
    ) -> None:
        super().__init__("m")
        def read(other: Config) -> dict[str, Any]:
            return config_params(other, servers=servers, only=only, profile=profile, set=set, env=env, cwd=cwd)

        self._read: Callable[[Config], dict[str, Any]] = read
        if config is None and functions and servers is None:
            # Functions alone need no file.
            config = {}
        self._config, self._locked = config, locked
        self._functions = FunctionServers(functions or {})
        self._events: Stream[_types.Event] | None = None
        self._tools: list[_types.Tool] = []
        #: How the start went: a row for each server, with the time of each phase.
        self.report: dict[str, Any] = {}
        #: Notes about the configuration, for people.
        self.warnings: list[str] = []
        #: What became of the servers, once they are stopped.
        self.stopped: _types.StopReport | None = None

    def _begin_start(self, loop: asyncio.AbstractEventLoop | None) -> Pending[None]:
        if self._host is not None:
            raise _errors.ToolcribError("the manager is started already")
        self._functions.run_in(loop)
        # The handler must not keep the manager alive.
        functions, events = self._functions, self._events

        def handle(method: str, params: dict[str, Any], reply: Any) -> None:
            if method == "function.call":
                functions.call(params, reply)
            elif method == "manager.event" and events is not None:
                events.put(_types.event(params["event"]))
            elif method == "host.died" and events is not None:
                events.end()

        params = {
            "manager": self._name,
            "config": self._read(self._config),
            "functions": self._functions.described,
            "events": self._events is not None,
            "locked": self._locked,
        }
        host = self._open(handle)
        future = host.request("manager.start", params)

        def started(result: dict[str, Any]) -> None:
            self.report, self.warnings = result["report"], result["warnings"]
            self._tools = [_types.tool(raw) for raw in result["tools"]]

        # A start that fails leaves no object.
        future.add_done_callback(lambda done: self._close() if done.cancelled() or done.exception() else None)
        return Pending(future, started)

    def _begin_shutdown(self) -> Pending[_types.StopReport]:
        host = self._opened()
        future = host.request("manager.shutdown", {"manager": self._name})
        self._functions.close()

        def ended(_: Future[Any]) -> None:
            if self._events is not None:
                self._events.end()
            self._close()

        def stopped(result: dict[str, Any]) -> _types.StopReport:
            self.stopped = _types.stop_report(result)
            return self.stopped

        future.add_done_callback(ended)
        return Pending(future, stopped)

    def _ask(self, what: str, convert: Callable[[Any], Any], /, **params: Any) -> Pending[Any]:
        params = _without_none({"manager": self._name, **params})
        return Pending(self._opened().request(f"manager.{what}", params), convert)

    def _begin_tools(self) -> Pending[list[_types.Tool]]:
        return self._ask("tools", lambda result: [_types.tool(raw) for raw in result["tools"]])

    def _begin_call(
        self,
        server: str | None,
        tool: str,
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        progress: Progress | None,
        check: bool,
    ) -> Pending[_types.ToolResult]:
        def told(_: str, params: dict[str, Any]) -> None:
            if progress:
                progress(params["progress"], params.get("total"), params.get("message"))

        params = _without_none(
            {
                "manager": self._name,
                "server": server,
                "tool": tool,
                "arguments": dict(arguments or {}),
                "timeout_ms": _ms(timeout),
                "progress": progress is not None,
                "unchecked": not check,
            }
        )
        future = self._opened().request("manager.call", params, told if progress else None)
        return Pending(future, _types.tool_result)

    def _begin_request(
        self, server: str, method: str, params: Mapping[str, Any] | None, timeout: float | None
    ) -> Pending[Any]:
        return self._ask(
            "request", _same, server=server, method=method, params=dict(params or {}), timeout_ms=_ms(timeout)
        )

    def _begin_apply(self, config: Config) -> Pending[dict[str, Any]]:
        return self._ask("apply", _same, config=self._read(config))

    def events(self) -> Stream[_types.Event]:
        """What happens to servers, as it happens. To be asked for before the start."""
        if self._events is None:
            if self._host is not None:
                raise _errors.ToolcribError("events are to be asked for before the manager is started")
            self._events = Stream()
        return self._events

    def _begin_agent(
        self,
        task: str | Mapping[str, Any],
        llm: LlmCore | None,
        agent: Mapping[str, Any] | None,
        tools: Sequence[str] | None,
        timeout: float | None,
        on_event: Callable[[dict[str, Any]], None] | None,
    ) -> Pending[_types.TaskReport]:
        params = _without_none(
            {
                "manager": self._name,
                "llm": llm._name if llm else None,
                "agent": dict(agent) if agent else None,
                "task": task if isinstance(task, str) else dict(task),
                "tools": list(tools) if tools is not None else None,
                "events": on_event is not None,
                "timeout_ms": _ms(timeout),
            }
        )

        def told(_: str, params: dict[str, Any]) -> None:
            if on_event:
                on_event(params["event"])

        future = self._opened().request("agent.run", params, told if on_event else None)
        return Pending(future, _types.task_report)

    def _begin_run(self, tasks: Any, llm: LlmCore | None, options: dict[str, Any]) -> RunCore:
        self._opened()
        return RunCore({"manager": self._name}, tasks, llm, options)


class RunCore(HostObject):
    """A run under way: its events, and its summary."""

    def __init__(self, of: dict[str, Any], tasks: Any, llm: LlmCore | None, options: dict[str, Any]) -> None:
        super().__init__("r")
        score: Scorer | None = options.pop("score", None)
        events, loop = Stream[_types.Event](), running_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="toolcrib-score") if score else None

        def handle(method: str, params: dict[str, Any], reply: Any) -> None:
            if method == "run.event":
                happened = _types.event(params["event"])
                if happened.kind == "task_ended":
                    happened = _types.Event("task_ended", _types.task_report(happened.data))
                events.put(happened)
            elif method == "run.score" and score and threads:
                _score(score, params, reply, loop, threads)
            elif method == "host.died":
                events.end(_errors.HostDied("the host has ended"))

        if isinstance(tasks, (str, os.PathLike)):
            given: Any = {"file": os.path.abspath(os.fspath(tasks))}
        else:
            given = [task if isinstance(task, str) else dict(task) for task in tasks]
        out = options.pop("out", None)
        params = _without_none({**of, **options, "tasks": given, "score": score is not None})
        params["out"] = os.path.abspath(os.fspath(out if out is not None else "runs"))
        if llm is not None:
            params["llm"] = llm._name
        host = self._open(handle)
        self._future = host.request("run.start", {"run": self._name, **params})
        self._stream = events

        def ended(done: Future[Any]) -> None:
            events.end(None if done.cancelled() else done.exception())
            if threads:
                threads.shutdown(wait=False)

        self._future.add_done_callback(ended)
        self._future.add_done_callback(lambda _: self._close())

    def _summary(self) -> Pending[_types.RunSummary]:
        return Pending(self._future, _types.run_summary)

    def cancel(self) -> None:
        """Stops the run: no further task begins, those under way end at once. It can be resumed."""
        self._future.cancel()


def _score(
    score: Scorer,
    params: dict[str, Any],
    reply: Any,
    loop: asyncio.AbstractEventLoop | None,
    threads: ThreadPoolExecutor,
) -> None:
    report = _types.task_report(params["report"])

    async def in_loop() -> Any:
        result = score(params["task"], report)
        return await result if inspect.isawaitable(result) else result

    running: Future[Any]
    if loop is not None and loop.is_running() and inspect.iscoroutinefunction(score):
        running = asyncio.run_coroutine_threadsafe(in_loop(), loop)
    else:
        running = threads.submit(lambda: asyncio.run(in_loop()))
    reply.on_cancel(running.cancel)

    def done(ended: Future[Any]) -> None:
        error = None if ended.cancelled() else ended.exception()
        value = None if ended.cancelled() or error else ended.result()
        reply(error or {"score": None if value is None else float(value)})

    running.add_done_callback(done)


class LlmCore(HostObject):
    """A model client at the host."""

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        *,
        config: Config = None,
        client: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__("l")
        if base_url is None and model is None and not settings:
            described: dict[str, Any] = {"config": config_params(config, env=env, cwd=cwd)}
        elif config is not None or client is not None:
            raise TypeError("a model is either one of a configuration (`config`, `client`) or has settings of its own")
        else:
            named = _without_none({"base_url": base_url, "model": model, **settings})
            described = {
                "settings": named,
                "env": environment(env),
                "folder": os.path.abspath(cwd or os.getcwd()),
            }
        params = {"llm": self._name, "model": _without_none({**described, "client": client})}
        host = self._open(None)
        try:
            # It only reads its parameters: no request is made yet.
            self.label: str = host.request("llm.open", params).result()["label"]
        except BaseException:
            self._close()
            raise

    def _begin_chat(
        self,
        messages: Any,
        timeout: float | None,
        on_delta: Callable[[dict[str, Any]], None] | None,
        options: dict[str, Any],
    ) -> Pending[_types.ModelAnswer]:
        params = {"llm": self._name, "request": request(messages, options), "stream": on_delta is not None}
        params.update(_without_none({"timeout_ms": _ms(timeout)}))

        def told(_: str, delta: dict[str, Any]) -> None:
            if on_delta:
                on_delta(delta)

        return Pending(self._opened().request("llm.chat", params, told if on_delta else None), _types.model_answer)

    def _begin_batch(
        self, requests: Iterable[Any], timeout: float | None
    ) -> tuple[Stream[tuple[int, _types.ModelAnswer | _errors.ToolcribError]], Pending[None]]:
        outcomes: Stream[tuple[int, _types.ModelAnswer | _errors.ToolcribError]] = Stream()

        def told(_: str, params: dict[str, Any]) -> None:
            if "answer" in params:
                outcomes.put((params["index"], _types.model_answer(params["answer"])))
            else:
                error = params["error"]
                outcomes.put((params["index"], _errors.from_data(error["message"], error)))

        given = [request(one, {}) for one in requests]
        params = _without_none({"llm": self._name, "requests": given, "timeout_ms": _ms(timeout)})
        future = self._opened().request("llm.batch", params, told)
        future.add_done_callback(lambda done: outcomes.end(None if done.cancelled() else done.exception()))
        return outcomes, Pending(future, lambda _: None)

    def _begin_stats(self) -> Pending[dict[str, Any]]:
        return Pending(self._opened().request("llm.stats", {"llm": self._name}), _same)

    def _begin_close(self) -> Pending[None]:
        future = self._opened().request("llm.close", {"llm": self._name})
        future.add_done_callback(lambda _: self._close())
        return Pending(future, lambda _: None)


def request(messages: Any, options: dict[str, Any]) -> dict[str, Any]:
    """A request: a text, messages of the OpenAI chat API, or a mapping with ``messages`` and options."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping) and "messages" in messages:
        options, messages = {**messages, **options}, messages["messages"]
        options.pop("messages", None)
    tools = options.get("tools")
    if tools is not None:
        options = {**options, "tools": [tool.to_openai() if isinstance(tool, _types.Tool) else tool for tool in tools]}
    return _without_none({"messages": list(messages), **options})


def _same(value: Any) -> Any:
    return value

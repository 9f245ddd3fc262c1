"""What managers, runs and model clients of both kinds, with an event loop and without one, have in common."""

from __future__ import annotations

import itertools
import os
import weakref
from concurrent.futures import Future
from typing import Any, Awaitable, Callable, Iterable, Mapping, Sequence, TypeVar, Union, overload

from . import _errors, _types
from ._config import Config, Servers, config_params, environment
from ._functions import Function, Functions, FunctionServers
from ._host import Handler, Host, Reply, host_for
from ._outcome import Outcome
from ._pending import Pending, follow
from ._place import Place
from ._stream import MOST, Stream

F = TypeVar("F", bound=Function)
T = TypeVar("T")
_NUMBERS = itertools.count(1)

#: Told of a call: ``progress(done, total, message)``.
Progress = Callable[[float, "float | None", "str | None"], None]
#: A score from 0 to 1, or ``None`` to leave it to the task's own scorer.
Scorer = Callable[[dict[str, Any], _types.TaskReport], Union["float | None", Awaitable["float | None"]]]
#: A file, or questions and tasks.
Tasks = Union[str, "os.PathLike[str]", Iterable[Union[str, Mapping[str, Any]]]]
#: The outcome of a request to a model.
ChatOutcome = Union[_types.ChatAnswer, _errors.ToolcribError]


def ms(seconds: float | None) -> float | None:
    """Milliseconds, as the host takes times."""
    return None if seconds is None else seconds * 1000


def without_none(params: Mapping[str, Any]) -> dict[str, Any]:
    """The members that are given."""
    return {key: value for key, value in params.items() if value is not None}


class HostObject:
    """An object at the host, with a name there. It is dropped when it is garbage-collected."""

    def __init__(self, kind: str) -> None:
        self._name = f"{kind}{next(_NUMBERS)}"
        self._host: Host | None = None
        self._release: Callable[[], Any] | None = None

    def _open(self, handler: Handler | None) -> Host:
        self._host = host = host_for(self._name, handler)
        release = weakref.finalize(self, _drop, host, self._name)
        # At the exit of the interpreter nothing is to be done: the end of the process closes the socket.
        release.atexit = False
        self._release = release
        return host

    def _opened(self) -> Host:
        if self._host is None:
            raise _errors.ToolcribError(f"the {type(self).__name__} is not started, or is closed", code="closed")
        return self._host

    @property
    def _is_open(self) -> bool:
        """Whether it is there to be closed: a forked child leaves it to its parent."""
        return self._host is not None and self._host.is_ours

    def _close(self) -> None:
        self._host = None
        if self._release:
            self._release()

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle a {type(self).__name__}: it belongs to its process, and another one has to make its own")


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
        only, set = None if only is None else list(only), list(set)

        def read(other: Config) -> dict[str, Any]:
            return config_params(other, servers=servers, only=only, profile=profile, set=set, env=env, cwd=cwd)

        self._read: Callable[[Config], dict[str, Any]] = read
        self._config, self._needs_file = config, servers is None
        self._locked = locked
        self._functions = FunctionServers(functions or {})
        self._events: Stream[_types.Event] | None = None
        self._on_event: list[Callable[[_types.Event], Any]] = []
        self._tools: list[_types.Tool] = []
        #: How the start went.
        self.report = _types.StartReport([], 0.0)
        #: Notes about the configuration, for people.
        self.warnings: list[str] = []
        #: What became of the servers, once they are stopped.
        self.stopped: _types.StopReport | None = None

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, *, server: str = "functions", name: str | None = None) -> Callable[[F], F]: ...
    def tool(
        self, function: F | None = None, /, *, server: str = "functions", name: str | None = None
    ) -> F | Callable[[F], F]:
        """Makes a function of this program a tool, before the start: ``@m.tool``, ``@m.tool(server="math", name="plus")``.

        The schema comes from the signature, the descriptions from the docstring (``Args:``, ``:param x:``, or ``Annotated[int, "words"]``).
        Coroutine functions run in the event loop that started the manager, others in threads. What it raises is shown to the model.
        """
        if self._host is not None:
            raise _errors.ToolcribError("functions are to be added before the manager is started")

        def add(function: F) -> F:
            self._functions.add(server, name or function.__name__, function)
            return function

        return add if function is None else add(function)

    def events(self) -> Stream[_types.Event]:
        """What happens to servers, as it happens: ``starting``, ``ready``, ``failed``, ``lost``, ``restarted``, ``stopped``, … To be asked for
        before the start. For one reader, or several that share them."""
        if self._events is None:
            if self._host is not None:
                raise _errors.ToolcribError("events are to be asked for before the manager is started")
            self._events = Stream(MOST)
        return self._events

    def on_event(self, callback: Callable[[_types.Event], Any]) -> None:
        """Has ``callback`` called with what happens to servers, as :meth:`events`: in the event loop, or without one in the receiving
        thread, which it must not block. To be asked for before the start."""
        if self._host is not None:
            raise _errors.ToolcribError("events are to be asked for before the manager is started")
        self._on_event.append(callback)

    def tools(self) -> list[_types.Tool]:
        """The tools of all servers, in stable order, as they were at the start or the last :meth:`list_tools`."""
        return list(self._tools)

    def _begin_start(self, place: Place) -> Pending[None]:
        if self._host is not None:
            raise _errors.ToolcribError("the manager is started already")
        self._functions.run_in(place)
        config = self._config
        if config is None and self._needs_file and self._functions.described:
            # Functions alone need no file.
            config = {}
        params = {
            "manager": self._name,
            "config": self._read(config),
            "functions": self._functions.described,
            "events": self._events is not None or bool(self._on_event),
            "locked": self._locked,
        }
        # The handler must not keep the manager alive.
        functions, events, callbacks = self._functions, self._events, list(self._on_event)

        def handle(method: str, params: dict[str, Any], reply: Reply | None) -> None:
            if method == "function.call" and reply:
                functions.call(params, reply)
            elif method == "manager.event":
                happened = _types.event(params["event"])
                if events:
                    events.put(happened)
                for callback in callbacks:
                    place.tell(callback, happened)
            elif method == "host.died" and events:
                events.end()

        host = self._open(handle)

        def started(result: dict[str, Any]) -> None:
            self.report, self.warnings = _types.start_report(result["report"]), result["warnings"]
            self._tools = [_types.tool(raw) for raw in result["tools"]]

        def ended(done: Outcome) -> None:
            # A start that fails leaves no object.
            if done.error():
                self._close()

        try:
            outcome = host.request("manager.start", params)
        except BaseException:
            self._close()
            raise
        return Pending(follow(outcome, ended), started)

    def _begin_shutdown(self) -> Pending[_types.StopReport]:
        outcome = self._opened().request("manager.shutdown", {"manager": self._name})

        def ended(_: Outcome) -> None:
            if self._events is not None:
                self._events.end()
                self._events = None
            self._close()

        def stopped(result: dict[str, Any]) -> _types.StopReport:
            self.stopped = _types.stop_report(result)
            return self.stopped

        return Pending(follow(outcome, ended), stopped)

    def _ask(self, what: str, convert: Callable[[Any], T], /, **params: Any) -> Pending[T]:
        params = without_none({"manager": self._name, **params})
        return Pending(self._opened().request(f"manager.{what}", params), convert)

    def _begin_tools(self) -> Pending[list[_types.Tool]]:
        def listed(result: dict[str, Any]) -> list[_types.Tool]:
            self._tools = [_types.tool(raw) for raw in result["tools"]]
            return list(self._tools)

        return self._ask("tools", listed)

    def _begin_call(
        self,
        server: str,
        tool: str | None,
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        progress: Progress | None,
        check: bool,
    ) -> Pending[_types.ToolResult]:
        place = Place.of_caller() if progress else None

        def told(_: str, params: dict[str, Any]) -> None:
            if progress and place:
                place.tell(progress, params["progress"], params.get("total"), params.get("message"))

        params: dict[str, Any] = {
            "manager": self._name,
            "server": server if tool is not None else None,
            "tool": server if tool is None else tool,
            "arguments": dict(arguments or {}),
            "timeout_ms": ms(timeout),
            "progress": progress is not None,
            "unchecked": not check,
        }
        outcome = self._opened().request("manager.call", without_none(params), told if progress else None)
        return Pending(outcome, _types.tool_result)

    def _begin_request(
        self, server: str, method: str, params: Mapping[str, Any] | None, timeout: float | None
    ) -> Pending[Any]:
        given = {"server": server, "method": method, "params": dict(params or {}), "timeout_ms": ms(timeout)}
        return self._ask("request", same, **given)

    def _begin_read(self, server: str, uri: str, timeout: float | None) -> Pending[list[dict[str, Any]]]:
        given = {"server": server, "method": "resources/read", "params": {"uri": uri}, "timeout_ms": ms(timeout)}
        return self._ask("request", _contents, **given)

    def _begin_prompt(
        self, server: str, name: str, arguments: Mapping[str, str] | None, timeout: float | None
    ) -> Pending[dict[str, Any]]:
        params = {"name": name, "arguments": dict(arguments or {})}
        return self._begin_request(server, "prompts/get", params, timeout)

    def _begin_status(self) -> Pending[list[_types.ServerStatus]]:
        return self._ask("status", lambda result: [_types.server_status(row) for row in result["servers"]])

    def _begin_on(self, what: str, server: str) -> Pending[None]:
        return self._ask(what, lambda _: None, server=server)

    def _begin_apply(self, config: Config) -> Pending[_types.ApplyReport]:
        def applied(result: dict[str, Any]) -> _types.ApplyReport:
            self._tools = [_types.tool(raw) for raw in result["tools"]]
            return _types.apply_report(result)

        return self._ask("apply", applied, config=self._read(config))


class AgentCore:
    """The settings of an agent, and tasks of it that are on their way."""

    def __init__(
        self,
        manager: ManagerCore,
        llm: LlmCore | None,
        tools: Sequence[str] | None,
        on_event: Callable[[dict[str, Any]], None] | None,
        settings: Mapping[str, Any],
    ) -> None:
        self._manager, self._llm = manager, llm
        self._tools = None if tools is None else list(tools)
        self._on_event, self._settings = on_event, dict(settings)

    def _begin(self, task: str | Mapping[str, Any], target: Any, timeout: float | None) -> Pending[_types.TaskReport]:
        task = {"input": task} if isinstance(task, str) else dict(task)
        if target is not None:
            task["target"] = target
        on_event, llm = self._on_event, self._llm
        place = Place.of_caller() if on_event else None
        params = without_none(
            {
                "manager": self._manager._name,
                "llm": llm._name if llm else None,
                "agent": self._settings or None,
                "task": {"id": "question", **task},
                "tools": self._tools,
                "events": on_event is not None,
                "timeout_ms": ms(timeout),
            }
        )

        def told(_: str, params: dict[str, Any]) -> None:
            if on_event and place:
                place.tell(on_event, params["event"])

        after = llm._opened_llm() if llm else None
        host = self._manager._opened()
        return Pending(host.request("agent.run", params, told if on_event else None, after=after), _types.task_report)


class RunCore(HostObject):
    """A run under way: its events, and its summary."""

    def __init__(self, of: dict[str, Any], tasks: Tasks, llm: LlmCore | None, options: Mapping[str, Any]) -> None:
        super().__init__("r")
        options = dict(options)
        score: Scorer | None = options.pop("score", None)
        out = options.pop("out", None)
        if isinstance(tasks, (str, os.PathLike)):
            given: Any = {"file": os.path.abspath(os.fspath(tasks))}
        else:
            given = [task if isinstance(task, str) else dict(task) for task in tasks]
        params = {
            "run": self._name,
            **of,
            **options,
            "tasks": given,
            "out": os.path.abspath(os.fspath(out) if out is not None else "runs"),
            "score": score is not None,
            "llm": llm._name if llm else None,
        }
        events, place = Stream[_types.Event](MOST), Place.of_caller()

        def handle(method: str, params: dict[str, Any], reply: Reply | None) -> None:
            if method == "run.event":
                happened = _types.event(params["event"])
                if happened.kind == "task_ended":
                    happened = _types.Event("task_ended", _types.task_report(happened.data))
                events.put(happened)
            elif method == "run.score" and score and reply:
                _score(score, params, reply, place)

        after = llm._opened_llm() if llm else None
        host = self._open(handle)
        try:
            outcome = host.request("run.start", without_none(params), after=after)
        except BaseException:
            self._close()
            raise
        self._stream = events
        # It must not keep the run alive: one that nobody refers to is stopped.
        release = self._release

        def ended(done: Outcome) -> None:
            events.end(None if done.cancelled() else done.error())
            if release:
                release()

        self._outcome = follow(outcome, ended)

    @property
    def events(self) -> Stream[_types.Event]:
        """What happens: ``opened``, ``server``, ``servers_started``, ``warning``, ``agent``, and ``task_ended`` with a report."""
        return self._stream

    def cancel(self) -> None:
        """Stops the run: no further task begins, those under way end at once. It can be resumed."""
        self._outcome.cancel()

    def _summary(self) -> Pending[_types.RunSummary]:
        return Pending(self._outcome, _types.run_summary)


def run_of_config(config: Config, options: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a run on servers of its own; takes those of the configuration out of ``options``."""
    keys = ("servers", "only", "profile", "set", "env", "cwd")
    read = {key: options.pop(key) for key in keys if key in options}
    return {"config": config_params(config, **read)}


def _score(score: Scorer, params: dict[str, Any], reply: Reply, place: Place) -> None:
    running = place.run(score, params["task"], _types.task_report(params["report"]))
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
            named = without_none({"base_url": base_url, "model": model, **settings})
            described = {
                "settings": named,
                "env": environment(env),
                "folder": os.path.abspath(cwd or os.getcwd()),
            }
        params = {"llm": self._name, "model": without_none({**described, "client": client})}
        host = self._open(None)
        try:
            # Not waited for: what is asked of it afterwards comes after it, and has its error if it fails.
            self._opening = host.request("llm.open", params)
        except BaseException:
            self._close()
            raise
        release = self._release
        self._opening.add_done_callback(lambda done: release() if release and done.error() else None)

    def _opened_llm(self) -> Outcome:
        if self._opening.done():
            self._opening.result()
        self._opened()
        return self._opening

    def _ask(self, what: str, listener: Any = None, /, **params: Any) -> Outcome:
        after = self._opened_llm()
        params = without_none({"llm": self._name, **params})
        return self._opened().request(f"llm.{what}", params, listener, after=after)

    def _begin_open(self) -> Pending[None]:
        return Pending(self._opening, lambda _: None).shared()

    def _begin_chat(
        self,
        messages: Any,
        timeout: float | None,
        on_delta: Callable[[_types.Delta], None] | None,
        options: dict[str, Any],
    ) -> Pending[_types.ChatAnswer]:
        place = Place.of_caller() if on_delta else None

        def told(_: str, params: dict[str, Any]) -> None:
            if on_delta and place:
                place.tell(on_delta, _types.delta(params))

        request, is_streamed = request_of(messages, options), on_delta is not None
        return Pending(
            self._ask("chat", told if on_delta else None, request=request, stream=is_streamed, timeout_ms=ms(timeout)),
            _types.chat_answer,
        )

    def _begin_stream(
        self, messages: Any, timeout: float | None, options: dict[str, Any]
    ) -> tuple[Stream[_types.Delta], Pending[_types.ChatAnswer]]:
        deltas: Stream[_types.Delta] = Stream()

        def told(_: str, params: dict[str, Any]) -> None:
            deltas.put(_types.delta(params))

        request = request_of(messages, options)
        outcome = self._ask("chat", told, request=request, stream=True, timeout_ms=ms(timeout))
        deltas._give_up = outcome.cancel
        outcome.add_done_callback(lambda done: deltas.end(None if done.cancelled() else done.error()))
        return deltas, Pending(outcome, _types.chat_answer)

    def _begin_batch(
        self, requests: Iterable[Any], timeout: float | None
    ) -> tuple[Stream[tuple[int, ChatOutcome]], Pending[None]]:
        outcomes: Stream[tuple[int, ChatOutcome]] = Stream()

        def told(_: str, params: dict[str, Any]) -> None:
            if "answer" in params:
                outcomes.put((params["index"], _types.chat_answer(params["answer"])))
            else:
                error = params["error"]
                outcomes.put((params["index"], _errors.from_data(error["message"], error)))

        given = [request_of(one, {}) for one in requests]
        outcome = self._ask("batch", told, requests=given, timeout_ms=ms(timeout))
        outcomes._give_up = outcome.cancel
        outcome.add_done_callback(lambda done: outcomes.end(None if done.cancelled() else done.error()))
        return outcomes, Pending(outcome, lambda _: None)

    def _begin_stats(self) -> Pending[dict[str, Any]]:
        return Pending(self._ask("stats"), same)

    def _begin_close(self) -> Pending[None]:
        return Pending(follow(self._ask("close"), lambda _: self._close()), lambda _: None)


def ordered(outcomes: Iterable[tuple[int, ChatOutcome]]) -> list[ChatOutcome]:
    """The outcomes of a batch in the order of its requests."""
    return [outcome for _, outcome in sorted(outcomes, key=lambda one: one[0])]


def request_of(messages: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A request: a text, messages of the OpenAI chat API, or a mapping with ``messages`` and options."""
    options = dict(options)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    elif isinstance(messages, Mapping) and "messages" in messages:
        options = {**messages, **options}
        messages = options.pop("messages")
    elif isinstance(messages, Mapping):
        messages = [messages]
    if options.get("tools") is not None:
        options["tools"] = [one.to_openai() if isinstance(one, _types.Tool) else one for one in options["tools"]]
    return without_none({"messages": list(messages), **options})


def same(value: Any) -> Any:
    """The value as it came."""
    return value


def _contents(result: dict[str, Any]) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = result["contents"]
    return contents

"""The same for programs without an event loop: each method waits until its work is done.

They can be called from any thread. In a program with an event loop they would block it: use ``toolcrib.Manager`` there.

>>> from toolcrib import sync
>>> with sync.Manager({"servers": {"calc": {"builtin": "calc"}}}) as m:
...     m.call_tool("calc", "evaluate", {"expression": "2^10"}).text
'1024'
"""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from . import _errors, _manager, _types
from ._config import Config, config_params
from ._core import LlmCore, ManagerCore, Progress, RunCore, Scorer, _same
from ._stream import Stream

__all__ = ["Agent", "LlmClient", "Manager", "Run", "run"]


class Manager(ManagerCore):
    """All servers of one configuration, running: ``with Manager("servers.toml") as m``. Arguments as of :class:`toolcrib.Manager`."""

    def start(self) -> Manager:
        """Starts all servers. Errors as of :meth:`toolcrib.Manager.start`."""
        self._begin_start(None).result()
        return self

    def shutdown(self) -> _types.StopReport:
        """Asks every server to leave, all at once, and ends those that do not."""
        return self._begin_shutdown().result()

    def __enter__(self) -> Manager:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._host is not None:
            try:
                self.shutdown()
            except _errors.HostDied:
                if error is None:
                    raise

    def tools(self) -> list[_types.Tool]:
        """The tools of all servers, as they were at the start or the last :meth:`list_tools`."""
        return list(self._tools)

    def list_tools(self) -> list[_types.Tool]:
        """The tools of all servers at this moment."""
        self._tools = self._begin_tools().result()
        return list(self._tools)

    def call_tool(
        self,
        server: str,
        tool: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
        check: bool = True,
    ) -> _types.ToolResult:
        """Calls a tool, as :meth:`toolcrib.Manager.call_tool`. Ctrl-C gives the call up."""
        if tool is None:
            return self._begin_call(None, server, arguments, timeout, progress, check).result()
        return self._begin_call(server, tool, arguments, timeout, progress, check).result()

    def request(
        self, server: str, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Sends any other request of MCP to a server; the result as the server gave it."""
        return self._begin_request(server, method, params, timeout).result()

    def status(self) -> list[dict[str, Any]]:
        """Each server at this moment."""
        rows: list[dict[str, Any]] = self._ask("status", lambda result: result["servers"]).result()
        return rows

    def wait(self, server: str) -> None:
        """Waits until a server that is being started can be called."""
        self._ask("wait", _same, server=server).result()

    def restart(self, server: str) -> None:
        """Restarts a server."""
        self._ask("restart", _same, server=server).result()

    def apply(self, config: Config) -> dict[str, Any]:
        """Goes over to another configuration, as :meth:`toolcrib.Manager.apply`."""
        result = self._begin_apply(config).result()
        self._tools = [_types.tool(raw) for raw in result.pop("tools")]
        return result

    def agent(
        self,
        llm: LlmClient | None = None,
        *,
        tools: Sequence[str] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **settings: Any,
    ) -> Agent:
        """An agent on these servers, as :meth:`toolcrib.Manager.agent`."""
        return Agent(_manager.Agent(self, llm, tools, on_event, settings))

    def run(
        self,
        tasks: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]],
        llm: LlmClient | None = None,
        *,
        score: Scorer | None = None,
        **options: Any,
    ) -> Run:
        """Runs tasks on these servers, as :meth:`toolcrib.Manager.run`: ``for event in run``, then ``run.result()``."""
        return Run({"manager": self._name}, tasks, llm, {"score": score, **options})


class Agent:
    """Carries out tasks."""

    def __init__(self, agent: _manager.Agent) -> None:
        self._agent = agent

    def run(
        self, task: str | Mapping[str, Any], *, target: Any = None, timeout: float | None = None
    ) -> _types.TaskReport:
        """Carries out a question or a task. Every failure is in the report."""
        return self._agent._begin(task, target, timeout).result()


class Run(RunCore):
    """A run under way."""

    def __iter__(self) -> Iterator[_types.Event]:
        return self._stream

    def result(self) -> _types.RunSummary:
        """Waits for the end of the run. Ctrl-C stops it; it can be resumed."""
        return self._summary().result()


def run(
    config: Config,
    tasks: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]],
    llm: LlmClient | None = None,
    **options: Any,
) -> Run:
    """Runs tasks on servers of their own, as :func:`toolcrib.run`."""
    keys = ("servers", "only", "profile", "set", "env", "cwd")
    read = {key: options.pop(key) for key in keys if key in options}
    return Run({"config": config_params(config, **read)}, tasks, llm, options)


class LlmClient(LlmCore):
    """A model, ready to be asked. Arguments as of :class:`toolcrib.LlmClient`."""

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]] | Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_delta: Callable[[dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> _types.ModelAnswer:
        """Asks the model, as :meth:`toolcrib.LlmClient.chat`."""
        return self._begin_chat(messages, timeout, on_delta, options).result()

    def generate_batch(
        self, requests: Iterable[Any], *, timeout: float | None = None
    ) -> list[_types.ModelAnswer | _errors.ToolcribError]:
        """Asks all requests at once. One outcome for each, in their order: an answer, or its own error."""
        outcomes, done = self._begin_batch(requests, timeout)
        done.result()
        return [outcome for _, outcome in sorted(outcomes, key=lambda one: one[0])]

    def stream_batch(
        self, requests: Iterable[Any], *, timeout: float | None = None
    ) -> Stream[tuple[int, _types.ModelAnswer | _errors.ToolcribError]]:
        """Asks all requests at once; each outcome with the index of its request as soon as it is there."""
        return self._begin_batch(requests, timeout)[0]

    def stats(self) -> dict[str, Any]:
        """Counters of the client."""
        return self._begin_stats().result()

    def close(self) -> None:
        """Ends requests under way, and lets go of the client."""
        self._begin_close().result()

    def __enter__(self) -> LlmClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self._host is not None:
            self.close()

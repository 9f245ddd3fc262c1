"""A tool manager in place of that of MiroFlow and MiroThinker (``miroflow_tools.ToolManager``), with sessions that are kept.

The same names, arguments, results and error texts, for the same prompts and parsers. What differs: a server is started once and
not for each call, so that what it remembers between calls is kept; the blacklist holds for remote servers and for calls too;
remote servers may speak streamable HTTP as well as SSE. Servers end with this process, or with :meth:`ToolManager.cleanup`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Container, Iterable, Mapping

from . import _errors
from ._config import server as table_of
from ._manager import Manager

__all__ = ["ToolManager"]

#: Seconds that a call may take in all.
LIMIT = 1200.0
#: Tools that read pages, and the pages of which they must not give the text.
_READERS = ("scrape", "scrape_website")
_DATASETS = ("huggingface.co/datasets", "huggingface.co/spaces")
_NO_DATASET = (
    "You are trying to scrape a Hugging Face dataset for answers, please do not use the scrape tool for this purpose."
)


class ToolManager:
    """The tools of all servers.

    Args:
        server_configs: ``{"name": NAME, "params": P}`` each, where P is ``StdioServerParameters`` of the MCP SDK or an address.
        tool_blacklist: pairs of a server and a tool that are not shown, and not called.
    """

    def __init__(
        self, server_configs: Iterable[Mapping[str, Any]], tool_blacklist: Container[tuple[str, str]] | None = None
    ) -> None:
        self.server_configs = list(server_configs)
        #: Of equal names the last one counts.
        self.server_dict: dict[str, Any] = {config["name"]: config["params"] for config in self.server_configs}
        self.browser_session: Any = None
        self.tool_blacklist: Container[tuple[str, str]] = tool_blacklist or set()
        self.task_log: Any = None
        self._manager: Manager | None = None
        self._starting: asyncio.Task[Manager] | None = None

    def set_task_log(self, task_log: Any) -> None:
        """The log of a task: ``log_step(level, step, message, metadata)``."""
        self.task_log = task_log
        self._log("info", "Initialization", f"ToolManager initialized, loaded servers: {list(self.server_dict)}")

    def get_server_params(self, server_name: str) -> Any:
        """The parameters of a server, or ``None``."""
        return self.server_dict.get(server_name)

    async def get_all_tool_definitions(self) -> list[dict[str, Any]]:
        """One entry for each configured server, in that order: ``{"name", "tools": [{"name", "description", "schema"}]}``. The tools of a
        server that failed are ``[{"error": "Unable to fetch tools: ..."}]``."""
        manager = await self._started()
        tools, failed = await manager.list_tools(), self._failures(manager)
        entries = []
        for config in self.server_configs:
            name = config["name"]
            self._log("info", "Get Tool Definitions", f"Getting tool definitions for server '{name}'...")
            error = self._unusable(name) or failed.get(name)
            if error is not None:
                self._log("error", "Connection Error", f"Unable to connect or get tools from server '{name}': {error}")
                entries.append({"name": name, "tools": [{"error": f"Unable to fetch tools: {error}"}]})
                continue
            shown = []
            for tool in tools:
                if tool.server != name:
                    continue
                if (name, tool.name) in self.tool_blacklist:
                    self._log("info", "Tool Blacklisted", f"Tool '{tool.name}' in server '{name}' is blacklisted, skipping.")
                    continue
                shown.append({"name": tool.name, "description": tool.description, "schema": tool.input_schema})
            self._log("info", "Tool Definitions Success", f"Successfully obtained {len(shown)} tools from server '{name}'.")
            entries.append({"name": name, "tools": shown})
        return entries

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Any) -> dict[str, Any]:
        """Calls a tool: ``{"server_name", "tool_name"}`` with ``result``, the text of the last block, or ``error``.

        Raises:
            asyncio.TimeoutError: it took more than 1200 seconds.
        """
        named = {"server_name": server_name, "tool_name": tool_name}
        if not self.get_server_params(server_name):
            self._log("error", "Server Not Found", f"Attempting to call server '{server_name}' not found")
            return {**named, "error": f"Server '{server_name}' not found."}
        what = f"Connecting to server '{server_name}' to call tool '{tool_name}'"
        self._log("info", "Tool Call Start", what, {"arguments": arguments})
        calling = self._call(server_name, tool_name, arguments)
        # Cancelled with the time limit, the server hears of it.
        outcome = await asyncio.wait_for(calling, LIMIT)
        if "error" in outcome:
            step = "Tool Execution Error" if outcome["error"].startswith("Tool execution") else "Tool Call Failed"
            self._log("error", step, outcome["error"])
        else:
            self._log("info", "Tool Call Success", f"Tool '{tool_name}' (server: '{server_name}') called successfully.")
        return {**named, **outcome}

    async def cleanup(self) -> None:
        """Stops the servers. The next call starts them again."""
        manager, self._manager, self._starting = self._manager, None, None
        if manager is not None:
            await manager.shutdown()

    async def _call(self, server: str, tool: str, arguments: Any) -> dict[str, str]:
        try:
            manager = await self._started()
            unusable = self._unusable(server) or self._failures(manager).get(server)
            if unusable is not None:
                # It may have come up meanwhile.
                try:
                    await manager.restart(server)
                except _errors.ToolcribError:
                    return {"error": f"Tool call failed: {unusable}"}
        except _errors.ToolcribError as error:
            return {"error": f"Tool call failed: {error}"}
        if (server, tool) in self.tool_blacklist:
            return {"result": f"Unknown tool: {tool}"}
        try:
            result = await manager.call_tool(server, tool, arguments or {}, check=False)
        except _errors.NotFound:
            # In the words by which its callers know that the model has made a mistake.
            return {"result": f"Unknown tool: {tool}"}
        except _errors.ArgumentsInvalid as error:
            return {"result": f"Error executing tool {tool}: {error.message}"}
        except _errors.ToolcribError as error:
            return {"error": f"Tool execution failed: {error.message}"}
        url = arguments.get("url") if isinstance(arguments, Mapping) else None
        if tool in _READERS and isinstance(url, str) and any(place in url for place in _DATASETS):
            return {"result": _NO_DATASET}
        block = result.content[-1] if result.content else {"type": "text", "text": ""}
        if block.get("type") != "text":
            kind = str(block.get("type", "")).title().replace("_", "") + "Content"
            return {"error": f"Tool execution failed: '{kind}' object has no attribute 'text'"}
        return {"result": block["text"]}

    async def _started(self) -> Manager:
        """The manager, started once for all that ask."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        # Who is cancelled does not take the start along.
        try:
            return await asyncio.shield(self._starting)
        except _errors.ToolcribError:
            self._starting = None
            raise

    async def _start(self) -> Manager:
        tables = {name: table_of(params) for name, params in self.server_dict.items() if not self._unusable(name)}
        manager = Manager({"servers": tables, "defaults": {"call_timeout": f"{LIMIT:.0f}s"}})
        self._manager = await manager.start()
        return manager

    def _unusable(self, name: str) -> str | None:
        params = self.server_dict.get(name)
        if isinstance(params, str) and params.startswith(("http://", "https://")) or hasattr(params, "command"):
            return None
        self._log("error", "Unknown Parameter Type", f"Unknown parameter type for server '{name}': {type(params)}.")
        return f"Unknown server params type for {name}: {type(params)}"

    @staticmethod
    def _failures(manager: Manager) -> dict[str, str]:
        failed = {}
        for row in manager.report["servers"]:
            error = row["outcome"].get("Err")
            if error:
                failed[row["name"]] = ": ".join([error["message"], *error["cause"]])
        return failed

    def _log(self, level: str, step: str, message: str, metadata: Any = None) -> None:
        if self.task_log:
            self.task_log.log_step(level, f"ToolManager | {step}", message, metadata)

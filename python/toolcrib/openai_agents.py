"""The servers of a manager for openai-agents, without a second process.

>>> from agents import Agent
>>> from toolcrib.openai_agents import MCPServer
>>> async with toolcrib.Manager("servers.toml") as m, MCPServer(m) as server:
...     agent = Agent(name="a", mcp_servers=[server])

Needs the package ``openai-agents``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents.mcp import MCPServer as _MCPServer

from ._channel import mcp_session
from ._core import ManagerCore

__all__ = ["MCPServer"]


class MCPServer(_MCPServer):
    """All servers of a manager, with tools named ``SERVER__TOOL``, or one of them with its own names.

    Args:
        manager: a manager that is started.
        server: only this server.
        options: those of ``agents.mcp.MCPServer``.
    """

    def __init__(self, manager: ManagerCore, server: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._manager, self._server = manager, server
        self._session: Any = None
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    @property
    def name(self) -> str:
        return self._server or "toolcrib"

    async def connect(self) -> None:
        # In a task of its own: `cleanup` may be called by another task than this.
        if self._task is None:
            opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._end.clear()
            self._task = asyncio.create_task(self._serve(opened))
            self._session = await opened

    async def _serve(self, opened: asyncio.Future[Any]) -> None:
        try:
            async with mcp_session(self._manager, self._server) as session:
                opened.set_result(session)
                await self._end.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            elif not isinstance(error, Exception):
                raise

    async def cleanup(self) -> None:
        task, self._task, self._session = self._task, None, None
        if task is not None:
            self._end.set()
            await task

    async def __aenter__(self) -> MCPServer:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    def _opened(self) -> Any:
        if self._session is None:
            raise RuntimeError("the server is not connected: call `connect`, or use `async with`")
        return self._session

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        tools, cursor = [], None
        while True:
            page = await self._opened().list_tools(cursor)
            tools += page.tools
            cursor = page.nextCursor
            if not cursor:
                return tools

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> Any:
        return await self._opened().call_tool(tool_name, arguments, meta=meta)

    async def list_prompts(self) -> Any:
        return await self._opened().list_prompts()

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return await self._opened().get_prompt(name, arguments)

    async def list_resources(self, cursor: str | None = None) -> Any:
        return await self._opened().list_resources(cursor)

    async def list_resource_templates(self, cursor: str | None = None) -> Any:
        return await self._opened().list_resource_templates(cursor)

    async def read_resource(self, uri: str) -> Any:
        return await self._opened().read_resource(uri)

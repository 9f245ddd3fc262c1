"""The official Python SDK 1.x (PyPI `mcp`)."""

from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

from . import sessions
from .sessions import valid  # noqa: F401  (drive.py asks for it)


class Client(sessions.Client):
    async def templates(self):
        return [template.uriTemplate for template in (await self.session.list_resource_templates()).resourceTemplates]


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        transport = streamablehttp_client(target[0])
    else:
        transport = stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    async with transport as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield Client(session)

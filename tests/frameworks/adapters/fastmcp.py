"""The client of FastMCP (PyPI `fastmcp`), which talks in the old era of the protocol, or in whichever the server speaks."""

from contextlib import asynccontextmanager

from fastmcp import Client as Connection
from fastmcp.client.transports import StdioTransport

from . import sessions


class Client(sessions.Client):
    async def templates(self):
        return [template.uri_template for template in await self.session.list_resource_templates()]


@asynccontextmanager
async def connect(target, variant):
    server = target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:], keep_alive=False)
    async with Connection(server, mode=variant) as session:
        yield Client(session)

"""The client of FastMCP (PyPI `fastmcp`), which talks in the old era of the protocol, or in whichever the server speaks."""

from contextlib import asynccontextmanager

from fastmcp import Client as Connection
from fastmcp.client.transports import StdioTransport


class Client:
    def __init__(self, session):
        self.session = session

    async def tools(self):
        return [tool.name for tool in await self.session.list_tools()]

    async def prompts(self):
        return [prompt.name for prompt in await self.session.list_prompts()]

    async def resources(self):
        return [resource.uri for resource in await self.session.list_resources()]

    async def templates(self):
        return [template.uri_template for template in await self.session.list_resource_templates()]

    async def call(self, name, arguments):
        return await self.session.call_tool(name, arguments)

    async def prompt(self, name, arguments):
        return await self.session.get_prompt(name, arguments)

    async def read(self, uri):
        return await self.session.read_resource(uri)


@asynccontextmanager
async def connect(target, variant):
    server = target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:], keep_alive=False)
    async with Connection(server, mode=variant) as session:
        yield Client(session)

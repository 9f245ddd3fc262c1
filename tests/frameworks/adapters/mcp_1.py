"""The official Python SDK 1.x (PyPI `mcp`)."""

from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

TYPES = {
    "tools": types.Tool,
    "prompts": types.Prompt,
    "resources": types.Resource,
    "resourceTemplates": types.ResourceTemplate,
}


def valid(of, item):
    TYPES[of].model_validate(item)


class Client:
    def __init__(self, session):
        self.session = session

    async def tools(self):
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def prompts(self):
        return [prompt.name for prompt in (await self.session.list_prompts()).prompts]

    async def resources(self):
        return [resource.uri for resource in (await self.session.list_resources()).resources]

    async def templates(self):
        return [template.uriTemplate for template in (await self.session.list_resource_templates()).resourceTemplates]

    async def call(self, name, arguments):
        return await self.session.call_tool(name, arguments)

    async def prompt(self, name, arguments):
        return await self.session.get_prompt(name, arguments)

    async def read(self, uri):
        return await self.session.read_resource(uri)


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        transport = streamablehttp_client(target[0])
    else:
        transport = stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    async with transport as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield Client(session)

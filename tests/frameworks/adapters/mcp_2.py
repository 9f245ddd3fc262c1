"""The official Python SDK 2.x (PyPI `mcp`), in the old era of the protocol and in the new one."""

from contextlib import asynccontextmanager

from mcp import Client as Connection
from mcp import StdioServerParameters, types

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
        return [template.uri_template for template in (await self.session.list_resource_templates()).resource_templates]

    async def call(self, name, arguments):
        return await self.session.call_tool(name, arguments)

    async def prompt(self, name, arguments):
        return await self.session.get_prompt(name, arguments)

    async def read(self, uri):
        return await self.session.read_resource(uri)


@asynccontextmanager
async def connect(target, variant):
    server = target[0] if target[0].startswith("http") else StdioServerParameters(command=target[0], args=target[1:])
    async with Connection(server, mode=variant) as session:
        yield Client(session)

"""Pydantic AI (PyPI `pydantic-ai-slim`), with a model by chat completions."""

from contextlib import asynccontextmanager

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Client:
    def __init__(self, toolset):
        self.toolset = toolset

    async def tools(self):
        return [tool.name for tool in await self.toolset.list_tools()]

    async def resources(self):
        return [resource.uri for resource in await self.toolset.list_resources()]

    async def templates(self):
        return [template.uri_template for template in await self.toolset.list_resource_templates()]

    async def call(self, name, arguments):
        return await self.toolset.direct_call_tool(name, arguments)

    async def read(self, uri):
        return await self.toolset.read_resource(uri)

    async def agent(self, base_url, question):
        model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=base_url, api_key="none"))
        return (await Agent(model, toolsets=[self.toolset]).run(question)).output


@asynccontextmanager
async def connect(target, _variant):
    server = target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:], keep_alive=False)
    async with MCPToolset(server) as toolset:
        yield Client(toolset)

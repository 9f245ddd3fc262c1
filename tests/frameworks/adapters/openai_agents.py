"""OpenAI's Agents SDK (PyPI `openai-agents`), with a model by chat completions."""

from contextlib import asynccontextmanager

from agents import Agent, OpenAIChatCompletionsModel, Runner
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai import AsyncOpenAI


class Client:
    def __init__(self, server):
        self.server = server

    async def tools(self):
        return [tool.name for tool in await self.server.list_tools()]

    async def prompts(self):
        return [prompt.name for prompt in (await self.server.list_prompts()).prompts]

    async def resources(self):
        return [resource.uri for resource in (await self.server.list_resources()).resources]

    async def templates(self):
        return [template.uri_template for template in (await self.server.list_resource_templates()).resource_templates]

    async def call(self, name, arguments):
        return await self.server.call_tool(name, arguments)

    async def prompt(self, name, arguments):
        return await self.server.get_prompt(name, arguments)

    async def read(self, uri):
        return await self.server.read_resource(uri)

    async def agent(self, base_url, question):
        model = OpenAIChatCompletionsModel("fake", AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0))
        return (await Runner.run(Agent(name="agent", model=model, mcp_servers=[self.server]), question)).final_output


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        server = MCPServerStreamableHttp({"url": target[0]}, name="toolcrib", client_session_timeout_seconds=30)
    else:
        server = MCPServerStdio({"command": target[0], "args": target[1:]}, name="toolcrib", client_session_timeout_seconds=30)
    async with server:
        yield Client(server)
